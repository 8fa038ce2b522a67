"""Reconciler of kinds without a controller: reads the object from the cache."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from skysail.core.actions import Event, Plan
from skysail.kinds.unimplemented.planner import Snapshot, plan, refused
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Key
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache

OWN_GROUP = "skysail.dev"


class UnimplementedReconciler:
    """Reconciler of one such kind."""

    def __init__(self, kind: CustomKind, cache: Cache[Any], now: Callable[[], datetime]) -> None:
        self._kind = kind
        self._cache = cache
        self._now = now

    @property
    def resource(self) -> Resource:
        return self._kind.resource

    async def observe(self, key: Key) -> Snapshot | None:
        object_ = self._cache.get(key)
        return None if object_ is None else Snapshot(self._kind, object_, self._now())

    def plan(self, snapshot: Snapshot) -> Plan:
        return plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return refused(snapshot, event)


def rights(kind: CustomKind) -> tuple[PolicyRule, ...]:
    """Return the policy rules: read, write the status, and remove finalizers of replaced operators from their kinds."""
    granted = (read_rule(kind.resource), PolicyRule(kind.resource, ("update",), subresource="status"))
    return granted if kind.resource.group == OWN_GROUP else (*granted, PolicyRule(kind.resource, ("patch",)))
