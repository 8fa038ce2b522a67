"""What a TrainingJob that does not run yet waits for, in one sentence. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.kinds.run.gangs import leave
from skysail.kinds.run.groups import Group, groups
from skysail.kinds.run.snapshot import Run, Snapshot
from skysail.kinds.run.workload import Pod, named, newest

_GATED = "SchedulingGated"
_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_NO_CONFIG = {"CreateContainerConfigError"}
_ON_ITS_WAY = {"", "ContainerCreating", "PodInitializing"}
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
    ranks = [(group, index) for group in groups(snapshot.object.spec) for index in range(group.replicas)]
    pods = newest(pod for pod in run.pods if not pod.metadata.is_deleting)
    late = [(group, index) for group, index in ranks if not _is_up(pods.get((group.role, index)))]
    if not late:
        return None
    # Who is not even allowed to be made comes first: room for the others would not help.
    if snapshot.complaint is not None and any((group.role, index) not in pods for group, index in late):
        return _refused(snapshot.complaint)
    found = (_obstacle(pod) for group, index in late if (pod := pods.get((group.role, index))) is not None)
    wait = next((each for each in found if each is not None), None) or _starting(late, len(ranks))
    said = leave.complaint(snapshot) if wait.reason in _HELD_BACK else None
    return wait if said is None else Wait(Reason.NOT_ADMITTED, _cut(said))


def _is_up(pod: Pod | None) -> bool:
    return pod is not None and (pod.runs or pod.status.phase == "Succeeded")


def _obstacle(pod: Pod) -> Wait | None:
    who = named(pod.role, pod.index)
    unscheduled = pod.unscheduled
    if unscheduled is not None:
        return _unscheduled(who, unscheduled.reason, unscheduled.message)
    if pod.status.phase == "Failed":
        return Wait(Reason.POD_FAILED, f"{who} has failed; the others go on.")
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ON_ITS_WAY:
            return _held(who, waiting.reason, waiting.message)
    return None


def _unscheduled(who: str, reason: str, message: str) -> Wait:
    if reason == _GATED:
        return Wait(Reason.SCHEDULING_GATED, f"{who} is held back by a scheduling gate, until its owner removes it.")
    if any(word in message.lower() for word in _NO_VOLUME):
        return Wait(Reason.VOLUME_UNAVAILABLE, f"{who} waits for its volume: {_cut(message)}")
    return Wait(Reason.INSUFFICIENT_RESOURCES, f"{who} waits for a node with room for it: {_cut(message)}")


def _held(who: str, reason: str, message: str) -> Wait:
    said = _cut(f"{reason}: {message}" if message else reason)
    if reason in _NO_IMAGE:
        return Wait(Reason.IMAGE_PULL_FAILED, f"{who} waits for its image, which cannot be pulled: {said}")
    if reason in _NO_CONFIG:
        return Wait(Reason.CONFIG_MISSING, f"{who} waits for something that it refers to: {said}")
    return Wait(Reason.STARTING, f"{who} does not start: {said}")


def _refused(complaint: str) -> Wait:
    if _QUOTA in complaint:
        return Wait(Reason.QUOTA_EXCEEDED, f"The pods wait for quota in the namespace: {_cut(complaint)}")
    return Wait(Reason.PODS_REFUSED, f"The pods cannot be made: {_cut(complaint)}")


def _starting(late: list[tuple[Group, int]], all_: int) -> Wait:
    group, index = late[0]
    who = named(group.role, index)
    others = f" and {len(late) - 1} more" if len(late) > 1 else ""
    return Wait(Reason.STARTING, f"{all_ - len(late)} of {all_} pods run; {who}{others} will start soon.")


def _cut(message: str) -> str:
    """The first sentence or two: a scheduler tells of every node, and people read one line."""
    line = " ".join(message.split())[:_LONGEST]
    return line if line.endswith(".") else f"{line}."
