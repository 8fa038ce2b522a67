"""Metrics of models, reported by the leader from its caches and their changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from skysail.base.metrics import Metrics
from skysail.base.names import Condition, Metric, Reason
from skysail.core import conditions
from skysail.kinds.serving.api.types import KINDS, MODEL_DEPLOYMENT, Model
from skysail.kinds.serving.caches import Caches
from skysail.kube.api.crd import CustomKind

Figures = Mapping[tuple[str, ...], float]
_VALIDATIONS = {"True": "success", "False": "failure"}


class Counts:
    """Counters of status changes. Each change is written once, so all replicas together count it once."""

    def __init__(self, caches: Caches, leads: Callable[[], bool]) -> None:
        self._caches = caches
        self._leads = leads
        self._created: Counter[tuple[str, ...]] = Counter()
        self._validations: Counter[tuple[str, ...]] = Counter()
        self._rollouts: Counter[tuple[str, ...]] = Counter()
        self._rollbacks: Counter[tuple[str, ...]] = Counter()
        for kind in KINDS:
            caches.models[kind].subscribe(partial(self._changed, kind))

    def register(self, metrics: Metrics) -> None:
        metrics.add_labelled_callback(Metric.MODEL_DEPLOYMENTS, (), lambda: self._created)
        metrics.add_labelled_callback(Metric.MODEL_VALIDATIONS, ("status",), lambda: self._validations)
        metrics.add_labelled_callback(Metric.MODEL_ROLLOUTS, ("kind", "outcome"), lambda: self._rollouts)
        metrics.add_labelled_callback(Metric.MODEL_ROLLBACKS, ("kind",), lambda: self._rollbacks)
        metrics.add_labelled_callback(Metric.MODELS_READY, ("kind", "namespace", "name"), self._ready)

    def _changed(self, kind: CustomKind, old: Model | None, new: Model | None) -> None:
        if old is None or new is None or not self._leads():
            return
        name = kind.resource.kind
        self._created[()] += kind is MODEL_DEPLOYMENT and old.status.phase is None and new.status.phase is not None
        if kind is MODEL_DEPLOYMENT:
            self._validated(old, new)
        self._rollouts[name, "served"] += new.status.revision not in {0, old.status.revision}
        self._rollouts[name, "failed"] += _turned(old, new, Condition.UPDATE_FAILED)
        self._rollbacks[name,] += _turned(old, new, Condition.ROLLED_BACK) and not _is_pinned(new)

    def _validated(self, old: Model, new: Model) -> None:
        """Count validations. A validation starts with the download of the revision."""
        previous, now = (
            conditions.condition_state(old.status, Condition.MODEL_VALIDATED),
            conditions.condition_state(new.status, Condition.MODEL_VALIDATED),
        )
        is_on = now == ("Unknown", Reason.VALIDATING)
        is_next = new.status.candidate != old.status.candidate
        self._validations["started",] += is_on and (previous != now or is_next)
        result = _VALIDATIONS.get(now[0])
        if result is not None and previous[0] != now[0]:
            self._validations[result,] += 1

    def _ready(self) -> Figures:
        if not self._leads():
            return {}
        return {
            (kind.resource.kind, model.metadata.namespace, model.metadata.name): float(
                conditions.condition_state(model.status, Condition.READY)[0] == "True"
            )
            for kind in KINDS
            for model in self._caches.models[kind].all()
        }


def _turned(old: Model, new: Model, type_: Condition) -> bool:
    return (
        conditions.condition_state(old.status, type_)[0] != "True"
        and conditions.condition_state(new.status, type_)[0] == "True"
    )


def _is_pinned(model: Model) -> bool:
    return conditions.condition_state(model.status, Condition.ROLLED_BACK)[1] == Reason.PINNED
