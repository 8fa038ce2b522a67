"""Pending reason of a pod, as one sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from skysail.base import terminal_text
from skysail.base.names import Condition, Label, Reason
from skysail.kube.api.workloads import Condition as PodCondition
from skysail.kube.api.workloads import Pod

_GATED = "SchedulingGated"
_HOSTNAME = "kubernetes.io/hostname"
_CLOUD_NODE = "virtual-kubelet"
_NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_NO_CONFIG = {"CreateContainerConfigError"}
_BACK_OFF = "ImagePullBackOff"
_ON_ITS_WAY = {"", "ContainerCreating", "PodInitializing"}
# Event reasons of the kubelet and the attach/detach controller; the pod status does not contain them.
_NOT_MOUNTED = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}
_NOT_STARTED = {"FailedCreatePodSandBox"}
_REFERRED_TO = ('configmap "', 'secret "')
# A pod with a node starts at once unless something blocks it.
_GRACE = timedelta(seconds=10)
# Fragments of scheduler messages that mean: no node matches the pod, and more capacity would not help.
_NO_MATCH = ("didn't match pod's node affinity/selector", "untolerated taint")
_NO_ROOM = ("insufficient ", "too many pods")
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<claim>[^"]+)" (?P<what>not found|is being deleted)')
_UNSUPPORTED = "Unsupported"
_NO_VOLUME = ("persistentvolumeclaim", "volume node affinity", "volume(s)")
_QUOTA = "exceeded quota"
_MAX_TEXT_LENGTH = 512
_REASONS = {reason.value: reason for reason in Reason}
# Reasons of containers at clouds that say by themselves what a user or an administrator can do.
NAMED = {
    Reason.BUDGET_EXHAUSTED,
    Reason.CLOUD_UNREACHABLE,
    Reason.ENTRYPOINT_UNKNOWN,
    Reason.INSTANCE_LIMIT_REACHED,
    Reason.LAUNCH_RATE_LIMITED,
    Reason.LIMITS_UNKNOWN,
    Reason.NO_ACCOUNT,
    Reason.NO_CAPACITY,
    Reason.NO_SHELL,
    Reason.POLICY_DENIED,
    Reason.PRICE_ABOVE_CAP,
    Reason.THROTTLED,
}

P = TypeVar("P", bound=Pod)


class PendingReason(msgspec.Struct, frozen=True):
    reason: Reason
    message: str


class PodEvent(msgspec.Struct, frozen=True):
    """Newest event about a pod that has a node and does not start: name of the pod, reason and message of the event."""

    pod: str
    reason: str
    note: str


def pending_reason(pod: Pod, who: str, *, event: PodEvent | None = None, previous: str = "") -> PendingReason | None:
    """Return why the pod does not run, or None if no reason is known.

    `who` names the pod in the message; `previous` is the message of the previous reconcile.
    """
    unscheduled = pod.unscheduled_condition
    refused = next((row for row in pod.status.conditions if row.type == Condition.OFFLOAD), None)
    if refused is not None and refused.status == "False" and not pod.spec.node_name:
        return _refused(who, refused, None if _is_for_cloud(pod) else unscheduled)
    if unscheduled is not None:
        return _unscheduled(who, unscheduled.reason, unscheduled.message)
    for container in pod.containers:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ON_ITS_WAY:
            return _held(who, waiting.reason, waiting.message, previous)
        # Node `local` says there how far the image is.
        if waiting is not None and waiting.message:
            return PendingReason(Reason.STARTING, f"{who} is {truncate(waiting.message)}")
    return _not_started(who, event) if event is not None and event.pod == pod.metadata.name else None


def creation_rejected(message: str) -> PendingReason:
    """Return the pending reason of pods that the API server rejects; `message` is the error of their controller."""
    if _QUOTA in message:
        return PendingReason(Reason.QUOTA_EXCEEDED, f"The pods exceed the quota of the namespace: {truncate(message)}")
    return PendingReason(Reason.PODS_REJECTED, f"The API server rejects the pods: {truncate(message)}")


def starting_pods(pods: Iterable[P]) -> list[P]:
    """Return pods that have a node and have not started there, oldest first."""
    found = [pod for pod in pods if pod.spec.node_name and pod.status.phase == "Pending" and _is_on_its_way(pod)]
    return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))


def first_stuck_pod(pods: Iterable[P], now: datetime) -> P | None:
    """Return the oldest pod that should have started by now and whose status does not say why it has not."""
    pod = next(iter(starting_pods(pods)), None)
    made = pod.metadata.creation_timestamp if pod else None
    return pod if made and now - datetime.fromisoformat(made) >= _GRACE else None


def truncate(message: str) -> str:
    """Return the message as one line of limited length.

    A long message keeps its beginning and its end: the error comes first, the fix last.
    """
    line = " ".join(terminal_text.strip_control(message).split())
    if len(line) > _MAX_TEXT_LENGTH:
        half = _MAX_TEXT_LENGTH // 2
        first, last = line[:half], line[-half:]
        line = f"{first.rpartition(' ')[0] or first} … {last.partition(' ')[2] or last}"
    return line if line.endswith(".") else f"{line}."


def _is_on_its_way(pod: Pod) -> bool:
    waiting = [container.state.waiting for container in pod.containers if container.state.waiting is not None]
    return not pod.metadata.is_deleting and all(each.reason in _ON_ITS_WAY for each in waiting)


def _is_for_cloud(pod: Pod) -> bool:
    """Return whether the pod selects a cloud's node: the scheduler only says that the other nodes do not match."""
    selector = pod.spec.node_selector
    return _HOSTNAME in selector or selector.get(Label.TYPE) == _CLOUD_NODE


def _refused(who: str, refused: PodCondition, unscheduled: PodCondition | None) -> PendingReason:
    """Return why no cloud takes the pod, and why the cluster does not. A gate says nothing about the cluster."""
    message = f"{who}: {refused.message}"
    if unscheduled is not None and unscheduled.reason != _GATED:
        message = f"{message} {_unscheduled(who, unscheduled.reason, unscheduled.message).message}"
    return PendingReason(_REASONS.get(refused.reason, Reason.NO_MATCHING_NODE), message)


def _unscheduled(who: str, reason: str, message: str) -> PendingReason:
    if reason == _GATED:
        return PendingReason(
            Reason.SCHEDULING_GATED, f"{who} has a scheduling gate and starts when the gate is removed."
        )
    scheduler_message = message.lower()
    if any(word in scheduler_message for word in _NO_VOLUME):
        return PendingReason(Reason.VOLUME_UNAVAILABLE, _volume(who, message))
    if any(word in scheduler_message for word in _NO_MATCH) and not any(word in scheduler_message for word in _NO_ROOM):
        return PendingReason(Reason.NO_MATCHING_NODE, f"{who} matches no node: {truncate(message)}")
    text = f"{who} fits on no node: {truncate(message)} Lower its requests, or free capacity."
    return PendingReason(Reason.INSUFFICIENT_RESOURCES, text)


def _volume(who: str, message: str) -> str:
    """Return the name of a missing PVC with the fix; otherwise the message of the scheduler."""
    match = _CLAIM.search(message)
    if match is None:
        # The scheduler appends an empty result of preemption.
        return f"{who} waits for a volume: {truncate(message.strip().removesuffix('. not found'))}"
    if match["what"] == "not found":
        return f"{who} needs PVC {match['claim']}, which does not exist: create it."
    return f"{who} needs PVC {match['claim']}, which is being deleted: create it again when it is gone."


def _held(who: str, reason: str, message: str, previous: str) -> PendingReason:
    reason_text = truncate(f"{reason}: {message}" if message else reason)
    if reason in _NO_IMAGE:
        return _no_image(who, reason, message, previous)
    if reason == _UNSUPPORTED:
        return PendingReason(
            Reason.UNSUPPORTED, f"{who} cannot run on its node: unsupported fields: {truncate(message)}"
        )
    if reason in NAMED:
        return PendingReason(_REASONS[reason], f"{who} does not start: {truncate(message)}")
    if reason in _NO_CONFIG:
        return PendingReason(Reason.CONFIG_MISSING, f"{who} refers to something that is missing: {reason_text}")
    return PendingReason(Reason.STARTING, f"{who} does not start: {reason_text}")


def _no_image(who: str, reason: str, message: str, previous: str) -> PendingReason:
    """Keep the last pull error during ImagePullBackOff, so that the status is not written for each retry."""
    if reason == _BACK_OFF and previous.startswith(f"{who} cannot pull its image: "):
        return PendingReason(Reason.IMAGE_PULL_FAILED, previous)
    return PendingReason(Reason.IMAGE_PULL_FAILED, f"{who} cannot pull its image: {truncate(message or reason)}")


def _not_started(who: str, event: PodEvent) -> PendingReason | None:
    if event.reason in _NOT_MOUNTED and any(word in event.note for word in _REFERRED_TO):
        return PendingReason(
            Reason.CONFIG_MISSING, f"{who} refers to something that is missing: {truncate(event.note)}"
        )
    if event.reason in _NOT_MOUNTED:
        return PendingReason(Reason.VOLUME_UNAVAILABLE, f"{who} cannot mount its volume: {truncate(event.note)}")
    if event.reason in _NOT_STARTED:
        return PendingReason(Reason.STARTING, f"{who} does not start: {truncate(event.note)}")
    return None
