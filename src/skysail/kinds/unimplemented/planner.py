"""Plan for an object of a kind without a controller: a condition that says so. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions, finalizers
from skysail.core.actions import Event, Plan
from skysail.kube.api.crd import CustomKind


class Snapshot(msgspec.Struct, frozen=True):
    """Object and current time."""

    kind: CustomKind
    object: Any
    now: datetime


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return Plan(actions=finalizers.remove_legacy_finalizers(snapshot.kind.resource, snapshot.object))
    return Plan(status=_status(snapshot))


def refused(snapshot: Snapshot, event: Event) -> Plan:
    return Plan(status=_with(snapshot, event.reason, event.message), events=(event,))


def _status(snapshot: Snapshot) -> Any:
    kind = snapshot.kind.resource.kind
    message = f"This {kind} is valid and stored, but this version of Skysail has no controller for kind {kind} yet."
    return _with(snapshot, Reason.NOT_IMPLEMENTED_YET, message)


def _with(snapshot: Snapshot, reason: str, message: str) -> Any:
    status: Any = conditions.set_condition(snapshot, snapshot.object.status, Type.ACCEPTED, "False", reason, message)
    # Kinds with a phase show it in `kubectl get`, so it is Pending, not empty.
    return msgspec.structs.replace(status, phase=status.phase or "Pending") if hasattr(status, "phase") else status
