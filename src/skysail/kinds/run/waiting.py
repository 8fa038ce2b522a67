"""What a TrainingJob that does not run yet waits for, in one sentence. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.kinds.run import completion
from skysail.kinds.run.completion import Rank
from skysail.kinds.run.gangs import leave
from skysail.kinds.run.snapshot import Obstacle, Run, Snapshot
from skysail.kinds.run.workload import Pod, named, newest

_GATED = "SchedulingGated"
_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_NO_CONFIG = {"CreateContainerConfigError"}
_BACK_OFF = "ImagePullBackOff"
_ON_ITS_WAY = {"", "ContainerCreating", "PodInitializing"}
# What the kubelet and the attacher of volumes tell by events only.
_NOT_MOUNTED = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
_NOT_STARTED = {"FailedCreatePodSandBox"}
_REFERRED_TO = ('configmap "', 'secret "')
# A pod that has a node is started at once, unless something keeps it from it.
_PATIENCE = timedelta(seconds=10)
_NO_VOLUME = ("persistentvolumeclaim", "volume node affinity", "volume(s)")
_QUOTA = "exceeded quota"
# What pods say that a gang scheduler holds back, without knowing why.
_HELD_BACK = {Reason.INSUFFICIENT_RESOURCES, Reason.STARTING}
_LONGEST = 512


class Wait(msgspec.Struct, frozen=True):
    reason: Reason
    message: str


def waits_for(snapshot: Snapshot, run: Run) -> Wait | None:
    """None when every pod runs or has done its work."""
    ranks = completion.ranks(snapshot.object.spec)
    pods = newest(pod for pod in run.pods if not pod.metadata.is_deleting)
    up = completion.done(run) | {rank for rank, pod in pods.items() if pod.runs or pod.status.phase == "Succeeded"}
    late = [rank for rank in ranks if rank not in up]
    if not late:
        return None
    # Who is not even allowed to be made comes first: room for the others would not help.
    if snapshot.complaint is not None and any(rank not in pods for rank in late):
        return _refused(snapshot.complaint)
    found = (_obstacle(snapshot, pods[rank]) for rank in late if rank in pods)
    wait = next((each for each in found if each is not None), None) or _starting(late, len(ranks))
    said = leave.complaint(snapshot) if wait.reason in _HELD_BACK else None
    return wait if said is None else Wait(Reason.NOT_ADMITTED, _cut(said))


def starting(run: Run) -> list[Pod]:
    """Pods that have a node and have not begun there, the oldest first."""
    found = [pod for pod in run.pods if pod.spec.node_name and pod.status.phase == "Pending" and _is_on_its_way(pod)]
    return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.role, pod.index))


def stuck(run: Run, now: datetime) -> Pod | None:
    """One that should have begun long ago, and does not say itself why it has not."""
    pod = next(iter(starting(run)), None)
    made = pod.metadata.creation_timestamp if pod else None
    return pod if made and now - datetime.fromisoformat(made) >= _PATIENCE else None


def _is_on_its_way(pod: Pod) -> bool:
    waiting = [row.state.waiting for row in pod.containers if row.state.waiting is not None]
    return not pod.metadata.is_deleting and all(each.reason in _ON_ITS_WAY for each in waiting)


def _obstacle(snapshot: Snapshot, pod: Pod) -> Wait | None:
    who = named(pod.role, pod.index)
    unscheduled = pod.unscheduled
    if unscheduled is not None:
        return _unscheduled(who, unscheduled.reason, unscheduled.message)
    if pod.status.phase == "Failed":
        return Wait(Reason.POD_FAILED, f"{who} has failed; the others go on.")
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ON_ITS_WAY:
            return _held(snapshot, who, waiting.reason, waiting.message)
    told = snapshot.obstacle
    return _not_started(who, told) if told is not None and told.pod == pod.metadata.name else None


def _unscheduled(who: str, reason: str, message: str) -> Wait:
    if reason == _GATED:
        return Wait(Reason.SCHEDULING_GATED, f"{who} is held back by a scheduling gate, until its owner removes it.")
    if any(word in message.lower() for word in _NO_VOLUME):
        return Wait(Reason.VOLUME_UNAVAILABLE, f"{who} waits for its volume: {_cut(message)}")
    return Wait(Reason.INSUFFICIENT_RESOURCES, f"{who} waits for a node with room for it: {_cut(message)}")


def _held(snapshot: Snapshot, who: str, reason: str, message: str) -> Wait:
    said = _cut(f"{reason}: {message}" if message else reason)
    if reason in _NO_IMAGE:
        return _no_image(snapshot, f"{who} waits for its image, which cannot be pulled", reason, message)
    if reason in _NO_CONFIG:
        return Wait(Reason.CONFIG_MISSING, f"{who} waits for something that it refers to: {said}")
    return Wait(Reason.STARTING, f"{who} does not start: {said}")


def _no_image(snapshot: Snapshot, what: str, reason: str, message: str) -> Wait:
    """Between two tries the pod only says that it waits: what the last one told stays, and nothing is written."""
    before = conditions.find(snapshot.object.status.conditions, Type.RUNNING)
    if reason == _BACK_OFF and before is not None and before.message.startswith(what):
        return Wait(Reason.IMAGE_PULL_FAILED, before.message)
    return Wait(Reason.IMAGE_PULL_FAILED, f"{what}: {_cut(message or reason)}")


def _not_started(who: str, told: Obstacle) -> Wait | None:
    if told.reason in _NOT_MOUNTED and any(word in told.note for word in _REFERRED_TO):
        return Wait(Reason.CONFIG_MISSING, f"{who} waits for something that it refers to: {_cut(told.note)}")
    if told.reason in _NOT_MOUNTED:
        return Wait(Reason.VOLUME_UNAVAILABLE, f"{who} waits for its volume: {_cut(told.note)}")
    if told.reason in _NOT_STARTED:
        return Wait(Reason.STARTING, f"{who} does not start: {_cut(told.note)}")
    return None


def _refused(complaint: str) -> Wait:
    if _QUOTA in complaint:
        return Wait(Reason.QUOTA_EXCEEDED, f"The pods wait for quota in the namespace: {_cut(complaint)}")
    return Wait(Reason.PODS_REFUSED, f"The pods cannot be made: {_cut(complaint)}")


def _starting(late: list[Rank], all_: int) -> Wait:
    who = named(*late[0])
    others = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return Wait(Reason.STARTING, f"{all_ - len(late)} of {all_} pods run; {who}{others} will start soon.")


def _cut(message: str) -> str:
    """The first sentence or two: a scheduler tells of every node, and people read one line."""
    line = " ".join(message.split())[:_LONGEST]
    return line if line.endswith(".") else f"{line}."
