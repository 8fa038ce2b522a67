"""Figures of models on the page of metrics."""

from __future__ import annotations

from typing import Any

from skysail.base.metrics import Metrics
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.kinds.serving.api.types import ML_MODEL, MODEL_DEPLOYMENT
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.metrics import Counts
from skysail.kube.api.fields import Condition
from tests.unit.kinds.serving.builders import ago, model, shown


class Page:
    def __init__(self, *, leads: bool = True) -> None:
        self.caches = Caches.create()
        self.metrics = Metrics()
        self._version = 0
        Counts(self.caches, lambda: leads).register(self.metrics)

    def see(self, *, ml: bool = False, said: dict[str, tuple[str, str]] | None = None, **status: Any) -> None:
        self._version += 1
        of = model(ml=ml, metadata={"resource_version": str(self._version)})
        rows: tuple[Condition, ...] = ()
        for type_, (value, reason) in (said or {}).items():
            row = Condition(type=type_, status=value, last_transition_time=ago(0), reason=reason, message="")
            rows = conditions.replace_condition(rows, row)
        self.caches.models[ML_MODEL if ml else MODEL_DEPLOYMENT].put(shown(of, conditions=rows, **status))

    def figures(self, name: str) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith((name + "{", name + " "))]
        return {labels.removeprefix(name): float(value) for labels, value in rows}


VALIDATING = {"ModelValidated": ("Unknown", Reason.VALIDATING)}
VALIDATED = {"ModelValidated": ("True", Reason.VALIDATED), "Ready": ("True", Reason.SERVED)}
INVALID = {"ModelValidated": ("False", Reason.VALIDATION_FAILED), "UpdateFailed": ("True", "ValidationFailed")}


def test_a_life_is_counted_once():
    page = Page()
    page.see()
    for _ in range(2):
        page.see(phase="Validating", candidate="a", said=VALIDATING)
    for _ in range(2):
        page.see(phase="Ready", revision=1, said=VALIDATED)
    page.see(phase="Ready", revision=1, candidate="b", said=VALIDATING)
    for _ in range(2):
        page.see(phase="Ready", revision=1, said=INVALID)
    assert page.figures("model_deployments_created_total") == {"": 1}
    assert page.figures("model_validations_total") == {
        '{status="started"}': 2,
        '{status="success"}': 1,
        '{status="failure"}': 1,
    }
    rollouts = page.figures("model_rollouts_total")
    assert rollouts == {
        '{kind="ModelDeployment",outcome="served"}': 1,
        '{kind="ModelDeployment",outcome="failed"}': 1,
    }


def test_what_was_there_before_a_restart_is_not_counted_again():
    page = Page()
    page.see(phase="Ready", revision=3, said=VALIDATED)
    assert page.figures("model_deployments_created_total") == {}
    assert page.figures("model_validations_total") == {}


def test_going_back_is_counted_where_nobody_asked_for_it():
    page = Page()
    page.see(ml=True, revision=1)
    page.see(ml=True, revision=1, said={"RolledBack": ("True", Reason.UPDATE_FAILED)})
    page.see(ml=True, revision=1)
    page.see(ml=True, revision=2, said={"RolledBack": ("True", Reason.PINNED)})
    assert page.figures("model_rollbacks_total") == {'{kind="MLModel"}': 1}


def test_who_answers_is_shown():
    page = Page()
    page.see(said=VALIDATED)
    page.see(ml=True)
    assert page.figures("model_ready") == {
        '{kind="ModelDeployment",name="iris",namespace="shop"}': 1,
        '{kind="MLModel",name="flowers",namespace="shop"}': 0,
    }


def test_only_the_leader_counts():
    page = Page(leads=False)
    page.see()
    page.see(phase="Validating", said=VALIDATING)
    assert page.figures("model_deployments_created_total") == {}
    assert page.figures("model_ready") == {}
