"""What keeps a pod from running, in one sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from skysail.base import terminal_text
from skysail.base.names import Reason
from skysail.kube.api.workloads import Pod

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
# In the words of the scheduler: nobody is what the pod asks for, and room would not help.
_NO_MATCH = ("didn't match pod's node affinity/selector", "untolerated taint")
_NO_ROOM = ("insufficient ", "too many pods")
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<claim>[^"]+)" (?P<what>not found|is being deleted)')
_UNSUPPORTED = "Unsupported"
_NO_VOLUME = ("persistentvolumeclaim", "volume node affinity", "volume(s)")
_QUOTA = "exceeded quota"
_LONGEST = 512

P = TypeVar("P", bound=Pod)


class Wait(msgspec.Struct, frozen=True):
    reason: Reason
    message: str


class Obstacle(msgspec.Struct, frozen=True):
    """The newest event about a pod that has a node and does not start: its name, and the event's reason and words."""

    pod: str
    reason: str
    note: str


def obstacle(pod: Pod, who: str, *, told: Obstacle | None = None, before: str = "") -> Wait | None:
    """None where nothing is known to keep it. `who` begins the sentence; `before` is what was said last time."""
    unscheduled = pod.unscheduled
    if unscheduled is not None:
        return _unscheduled(who, unscheduled.reason, unscheduled.message)
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ON_ITS_WAY:
            return _held(who, waiting.reason, waiting.message, before)
    return _not_started(who, told) if told is not None and told.pod == pod.metadata.name else None


def refused(complaint: str) -> Wait:
    """Pods that cannot even be made, in the words of who should make them."""
    if _QUOTA in complaint:
        return Wait(Reason.QUOTA_EXCEEDED, f"The pods wait for quota in the namespace: {cut(complaint)}")
    return Wait(Reason.PODS_REFUSED, f"The pods cannot be made: {cut(complaint)}")


def starting(pods: Iterable[P]) -> list[P]:
    """Pods that have a node and have not begun there, the oldest first."""
    found = [pod for pod in pods if pod.spec.node_name and pod.status.phase == "Pending" and _is_on_its_way(pod)]
    return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))


def stuck(pods: Iterable[P], now: datetime) -> P | None:
    """One that should have begun long ago, and does not say itself why it has not."""
    pod = next(iter(starting(pods)), None)
    made = pod.metadata.creation_timestamp if pod else None
    return pod if made and now - datetime.fromisoformat(made) >= _PATIENCE else None


def cut(message: str) -> str:
    """A line that people read. Of a long one both ends: what is wrong comes first, and what to do about it last."""
    line = " ".join(terminal_text.shown(message).split())
    if len(line) > _LONGEST:
        half = _LONGEST // 2
        first, last = line[:half], line[-half:]
        line = f"{first.rpartition(' ')[0] or first} … {last.partition(' ')[2] or last}"
    return line if line.endswith(".") else f"{line}."


def _is_on_its_way(pod: Pod) -> bool:
    waiting = [row.state.waiting for row in pod.containers if row.state.waiting is not None]
    return not pod.metadata.is_deleting and all(each.reason in _ON_ITS_WAY for each in waiting)


def _unscheduled(who: str, reason: str, message: str) -> Wait:
    if reason == _GATED:
        return Wait(Reason.SCHEDULING_GATED, f"{who} is held back by a scheduling gate, until its owner removes it.")
    said = message.lower()
    if any(word in said for word in _NO_VOLUME):
        return Wait(Reason.VOLUME_UNAVAILABLE, f"{who} waits for its volume: {_volume(message)}")
    if any(word in said for word in _NO_MATCH) and not any(word in said for word in _NO_ROOM):
        return Wait(Reason.NO_MATCHING_NODE, f"{who} waits for a node that it may run on: {cut(message)}")
    told = f"{who} waits for a node with room for it: {cut(message)} Ask for less, or make room."
    return Wait(Reason.INSUFFICIENT_RESOURCES, told)


def _volume(message: str) -> str:
    """A claim that is missing is named; the rest is what the scheduler says of each node."""
    found = _CLAIM.search(message)
    if found is None:
        return cut(message)
    if found["what"] == "not found":
        return f"the claim {found['claim']} does not exist: create it."
    return f"the claim {found['claim']} is being deleted: it can be made anew when it is gone."


def _held(who: str, reason: str, message: str, before: str) -> Wait:
    said = cut(f"{reason}: {message}" if message else reason)
    if reason in _NO_IMAGE:
        return _no_image(f"{who} waits for its image, which cannot be pulled", reason, message, before)
    if reason == _UNSUPPORTED:
        return Wait(Reason.UNSUPPORTED, f"{who} never starts on its node, which cannot carry it: {cut(message)}")
    if reason in _NO_CONFIG:
        return Wait(Reason.CONFIG_MISSING, f"{who} waits for something that it refers to: {said}")
    return Wait(Reason.STARTING, f"{who} does not start: {said}")


def _no_image(what: str, reason: str, message: str, before: str) -> Wait:
    """Between two tries the pod only says that it waits: what the last one told stays, and nothing is written."""
    if reason == _BACK_OFF and before.startswith(what):
        return Wait(Reason.IMAGE_PULL_FAILED, before)
    return Wait(Reason.IMAGE_PULL_FAILED, f"{what}: {cut(message or reason)}")


def _not_started(who: str, told: Obstacle) -> Wait | None:
    if told.reason in _NOT_MOUNTED and any(word in told.note for word in _REFERRED_TO):
        return Wait(Reason.CONFIG_MISSING, f"{who} waits for something that it refers to: {cut(told.note)}")
    if told.reason in _NOT_MOUNTED:
        return Wait(Reason.VOLUME_UNAVAILABLE, f"{who} waits for its volume: {cut(told.note)}")
    if told.reason in _NOT_STARTED:
        return Wait(Reason.STARTING, f"{who} does not start: {cut(told.note)}")
    return None
