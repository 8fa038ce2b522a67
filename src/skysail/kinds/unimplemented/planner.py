"""Plan for an object of a kind without a controller: a condition that says so. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, finalizers
from skysail.core.actions import Event, Plan
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.fields import Condition


class Snapshot(msgspec.Struct, frozen=True):
    """Object and current time."""

    kind: CustomKind
    object: Any
    now: str


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return Plan(actions=finalizers.remove_legacy_finalizers(snapshot.kind.resource, snapshot.object))
    return Plan(status=_status(snapshot))


def refused(snapshot: Snapshot, event: Event) -> Plan:
    return Plan(status=_with(snapshot, event.reason, event.message), events=(event,))


def _status(snapshot: Snapshot) -> msgspec.Struct:
    kind = snapshot.kind.resource.kind
    message = f"This {kind} is valid and stored, but this version of Skysail has no controller for kind {kind} yet."
    return _with(snapshot, Reason.NOT_IMPLEMENTED_YET, message)


def _with(snapshot: Snapshot, reason: str, message: str) -> msgspec.Struct:
    object_ = snapshot.object
    new = Condition(
        type=Type.ACCEPTED,
        status="False",
        last_transition_time=snapshot.now,
        reason=reason,
        message=message,
        observed_generation=object_.metadata.generation,
    )
    # Kinds with a phase show it in `kubectl get`, so it is Pending, not empty.
    phase = {"phase": object_.status.phase or "Pending"} if hasattr(object_.status, "phase") else {}
    status: msgspec.Struct = msgspec.structs.replace(
        object_.status,
        conditions=conditions.set_condition(object_.status.conditions, new),
        observed_generation=object_.metadata.generation,
        **phase,
    )
    return status
