"""Plan for a pod without a node: bind it to a cloud node, or say in a condition why not. Pure.

One write per reconcile: the pod is patched first, and bound when the cache shows the patch. So a crash in between
leaves a pod that the next reconcile completes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from skysail.base.names import Condition, EventReason, Reason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Action, Bind, Event, PatchMetadata, PatchStatus, Plan
from skysail.kinds.offload.objects import Pod
from skysail.kinds.offload.plan import placement
from skysail.kinds.offload.plan.placement import Leave, Place, Refuse, Wait
from skysail.kinds.offload.plan.snapshot import PodSnapshot
from skysail.kube.api.resources import POD

Manifest = dict[str, Any]

_MAX_MESSAGE_LENGTH = 1024
# Delay until the owners of a pod that the scheduler refused are read again.
_RECHECK_SECONDS = 60.0


def plan(snapshot: PodSnapshot) -> Plan:
    """Return the next write for the pod, if any."""
    decision = placement.decide(snapshot.facts)
    match decision:
        case Place():
            return _place(snapshot, decision)
        case Refuse():
            return _report(snapshot, decision.reason, decision.message, warning=True)
        case Wait():
            return _report(
                snapshot, decision.reason, decision.message, warning=False, requeue_after=decision.requeue_after
            )
        case Leave():
            return msgspec.structs.replace(_forget(snapshot), requeue_after=_recheck_delay(snapshot))


def on_rejected(event: Event) -> Plan:
    """Return the event about a write that the API server rejected."""
    return Plan(events=(event,))


def _place(snapshot: PodSnapshot, place: Place) -> Plan:
    pod = snapshot.object
    labels = {name: value for name, value in place.labels.items() if pod.labels.get(name) != value}
    annotations = {name: value for name, value in place.annotations.items() if pod.annotations.get(name) != value}
    if labels or annotations:
        return Plan(actions=(PatchMetadata(resource=POD, object=pod, labels=labels, annotations=annotations),))
    present = pod.condition(Condition.OFFLOAD)
    if present is not None and present.get("status") == "False":
        message = f"The pod is placed on node {place.node}."
        return Plan(actions=(_set_condition(pod, "True", Reason.OFFLOADED, message, snapshot.now),))
    price = place.offer.total(_gpu_count(snapshot)) if place.offer else None
    bind = Bind(resource=POD, object=pod, node=place.node, provider=place.provider, usd_per_hour=price)
    return Plan(actions=(bind,), events=(Event(EventReason.OFFLOADED, _offloaded(place, price)),))


def _gpu_count(snapshot: PodSnapshot) -> int:
    gpus = snapshot.facts.request.gpus
    return gpus.count if gpus else 0


def _offloaded(place: Place, price: float | None) -> str:
    known = "" if price is None else f" The best offer costs {price:g} USD/h."
    return f"The pod was bound to node {place.node} of {place.provider} ({place.rule.value}).{known}"


def _report(
    snapshot: PodSnapshot, reason: str, message: str, *, warning: bool, requeue_after: float | None = None
) -> Plan:
    """Set the condition if it is not set yet. Its event is recorded with the write, so that it is recorded once."""
    text = message[:_MAX_MESSAGE_LENGTH]
    present = snapshot.object.condition(Condition.OFFLOAD) or {}
    written = tuple(present.get(field) for field in ("status", "reason", "message"))
    if not text or written == ("False", reason, text):
        return Plan(requeue_after=requeue_after)
    actions: tuple[Action, ...] = (_set_condition(snapshot.object, "False", reason, text, snapshot.now),)
    is_gang = reason == Reason.GANG_NOT_OFFLOADED
    event = Event(EventReason.GANG_NOT_OFFLOADED if is_gang else EventReason.OFFLOAD_REFUSED, text, warning=True)
    return Plan(actions=actions, events=(event,) if warning else (), requeue_after=requeue_after)


def _recheck_delay(snapshot: PodSnapshot) -> float | None:
    """Return the delay until the owners of a pod are read again, or None if a change of them enqueues the pod.

    Users add an annotation when they see that their pods wait.
    """
    facts = snapshot.facts
    waits = facts.may_be_asked_later and facts.verdict is not None and not facts.is_settled
    return _RECHECK_SECONDS if waits else None


def _forget(snapshot: PodSnapshot) -> Plan:
    """Remove the condition of a pod that is no longer for a cloud."""
    pod = snapshot.object
    if pod.condition(Condition.OFFLOAD) is None or placement.rule_of(snapshot.facts) or snapshot.facts.is_settled:
        return Plan()
    others = [row for row in pod.status.conditions if row.get("type") != Condition.OFFLOAD]
    return Plan(actions=(PatchStatus(POD, pod, {"conditions": others}),))


def _set_condition(pod: Pod, status: str, reason: str, message: str, now: datetime) -> PatchStatus:
    """Return the write of the condition. The list is replaced as a whole, if the pod is unchanged."""
    present = pod.condition(Condition.OFFLOAD) or {}
    since = present.get("lastTransitionTime") if present.get("status") == status else None
    row: Manifest = {
        "type": Condition.OFFLOAD.value,
        "status": status,
        "reason": str(reason),
        "message": message,
        "lastTransitionTime": since or timestamp(now),
    }
    others = [other for other in pod.status.conditions if other.get("type") != Condition.OFFLOAD]
    return PatchStatus(POD, pod, {"conditions": [*others, row]})
