"""Metrics of endpoints and functions, reported by the leader from its caches and their changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from skysail.base.metrics import Metrics
from skysail.base.names import Condition, Metric, Reason
from skysail.core import conditions
from skysail.kinds.modal_endpoints.caches import Caches
from skysail.kinds.modal_endpoints.types import KINDS, MODAL_ENDPOINT
from skysail.kube.api.crd import CustomKind

Figures = Mapping[tuple[str, ...], float]
_IDENTITY = ("kind", "namespace", "name")
_FAILED = "Failed"
_UPDATED = ("False", Reason.UPDATED)
# The condition of an object that was never updated is missing.
_NOT_UPDATING = {("", ""), _UPDATED}


class Counts:
    """State of each object, and counters of status changes. Each change is written once, so it is counted once."""

    def __init__(self, caches: Caches, leads: Callable[[], bool]) -> None:
        self._caches = caches
        self._leads = leads
        self._deployments: Counter[tuple[str, ...]] = Counter()
        for kind in KINDS:
            caches.owners[kind].subscribe(partial(self._changed, kind))

    def register(self, metrics: Metrics) -> None:
        metrics.add_labelled_callback(Metric.ENDPOINT_STATE, (*_IDENTITY, "phase"), self._states)
        metrics.add_labelled_callback(Metric.ENDPOINT_UPDATE_FAILED, _IDENTITY, self._failed_updates)
        metrics.add_labelled_callback(Metric.ENDPOINT_DEPLOYMENTS, ("kind", "outcome"), lambda: self._deployments)

    def _changed(self, kind: CustomKind, old: Any, new: Any) -> None:
        if old is None or new is None or not self._leads():
            return
        main = Condition.READY if kind is MODAL_ENDPOINT else Condition.DEPLOYED
        name, update = kind.resource.kind, Condition.UPDATE_FAILED
        has_failed = _turned(old, new, update, "True") or (new.status.phase == _FAILED != old.status.phase)
        self._deployments[name, "served"] += _was_updated(old, new) or (
            # The revision that serves during an update may come back, too.
            _turned(old, new, main, "True") and conditions.condition_state(new.status, update) in _NOT_UPDATING
        )
        self._deployments[name, "failed"] += has_failed

    def _states(self) -> Figures:
        return {(*identity, obj.status.phase): 1.0 for identity, obj in self._all() if obj.status.phase}

    def _failed_updates(self) -> Figures:
        return {identity: float(_value(obj, Condition.UPDATE_FAILED) == "True") for identity, obj in self._all()}

    def _all(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not self._leads():
            return
        for kind in KINDS:
            for obj in self._caches.owners[kind].all():
                yield (kind.resource.kind, obj.metadata.namespace, obj.metadata.name), obj


def _was_updated(old: Any, new: Any) -> bool:
    """Return whether an update serves now. At its begin, the condition is False, too, with another reason."""
    before, after = (conditions.condition_state(each.status, Condition.UPDATE_FAILED) for each in (old, new))
    return before != _UPDATED == after


def _turned(old: Any, new: Any, type_: Condition, value: str) -> bool:
    return _value(old, type_) != value and _value(new, type_) == value


def _value(obj: Any, type_: Condition) -> str:
    return conditions.condition_state(obj.status, type_)[0]
