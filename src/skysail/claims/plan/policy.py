"""Plan of an OffloadPolicy: a condition that names what no cloud of this cluster and no label can have. Pure.

A policy takes effect as soon as it is stored, whatever its condition says.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.claims.limits.offload_policy import OffloadPolicy, OffloadPolicyStatus
from skysail.cloud.offers import OfferList
from skysail.core import conditions
from skysail.core.actions import Event, Plan
from skysail.kube.api import label_selectors

_MAX_NAMES = 8


class PolicySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Policy, the providers that this cluster has nodes for, and the offers of the clouds that have listed them."""

    object: OffloadPolicy
    now: datetime
    providers: tuple[str, ...]
    offers: Mapping[str, OfferList]


def plan(snapshot: PolicySnapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return Plan()
    status = _status(snapshot)
    return Plan(status=status, events=_events(snapshot.object.status, status))


def rejected(snapshot: PolicySnapshot, event: Event) -> Plan:
    return Plan(status=_with(snapshot, "Unknown", event.reason, event.message), events=(event,))


def _status(snapshot: PolicySnapshot) -> OffloadPolicyStatus:
    providers, gpu_types = _unknown_providers(snapshot), _unknown_gpu_types(snapshot)
    spec = snapshot.object.spec
    if selector := next(label_selectors.errors("spec.namespaceSelector", spec.namespace_selector), ""):
        return _with(snapshot, "False", Reason.INVALID_SPEC, f"{selector} Correct the selector.")
    problems = [
        f"No node of this cluster has provider {_listed(providers)}: use {_listed(snapshot.providers) or 'none'}."
        if providers
        else "",
        f"No allowed cloud offers GPU type {_listed(gpu_types)}: check spec.gpuTypes." if gpu_types else "",
    ]
    message = " ".join(filter(None, problems))
    if len(providers) == len(spec.providers) or (gpu_types and len(gpu_types) == len(spec.gpu_types)):
        return _with(snapshot, "False", Reason.INVALID_SPEC, message)
    if message:
        return _with(snapshot, "True", Reason.UNKNOWN_NAMES, message)
    return _with(snapshot, "True", Reason.ACCEPTED, "The policy is in effect.")


def _unknown_providers(snapshot: PolicySnapshot) -> tuple[str, ...]:
    return tuple(name for name in snapshot.object.spec.providers if name not in snapshot.providers)


def _unknown_gpu_types(snapshot: PolicySnapshot) -> tuple[str, ...]:
    """Return GPU types that no allowed cloud offers. Returns nothing while the offers of one of them are unknown."""
    spec = snapshot.object.spec
    allowed = [name for name in spec.providers if name in snapshot.providers]
    if not all(name in snapshot.offers for name in allowed):
        return ()
    offers = [offer for name in allowed for offer in snapshot.offers[name].offers if offer.gpu_type]
    return tuple(name for name in spec.gpu_types if not any(offer.is_called(name) for offer in offers))


def _events(old: OffloadPolicyStatus, new: OffloadPolicyStatus) -> tuple[Event, ...]:
    previous = conditions.find_condition(old.conditions, Conditions.ACCEPTED)
    current = conditions.find_condition(new.conditions, Conditions.ACCEPTED)
    if current is None or current.reason == Reason.ACCEPTED:
        return ()
    if previous is not None and (previous.reason, previous.message) == (current.reason, current.message):
        return ()
    return (Event(current.reason, current.message, warning=True),)


def _with(
    snapshot: PolicySnapshot, value: Literal["True", "False", "Unknown"], reason: str, message: str
) -> OffloadPolicyStatus:
    return conditions.set_condition(snapshot, snapshot.object.status, Conditions.ACCEPTED, value, reason, message)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
