"""Metrics of endpoints and functions."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.metrics import Metrics
from skysail.kinds.modal_endpoints.caches import Caches
from skysail.kinds.modal_endpoints.metrics import Counts
from skysail.kinds.modal_endpoints.types import MODAL_FUNCTION, ModalFunction


class Page:
    def __init__(self, *, leads: bool = True) -> None:
        self.caches = Caches.create()
        self.metrics = Metrics()
        self._version = 0
        Counts(self.caches, lambda: leads).register(self.metrics)

    def see(self, phase: str = "", reason: str = "R", **conditions: str) -> None:
        self._version += 1
        metadata = {"name": "fn", "namespace": "team", "uid": "u", "resourceVersion": str(self._version)}
        rows = [
            {
                "type": type_,
                "status": value,
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for type_, value in conditions.items()
        ]
        status: dict[str, Any] = {"conditions": rows, **({"phase": phase} if phase else {})}
        found = {"metadata": metadata, "spec": {"image": "python:3", "handler": "a.b"}, "status": status}
        self.caches.owners[MODAL_FUNCTION].put(msgspec.convert(found, ModalFunction))

    def figures(self, name: str) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith(name + "{")]
        return {labels.removeprefix(name): float(value) for labels, value in rows}


def test_metrics_deployments_are_counted_by_outcome_and_states_shown():
    page = Page()
    page.see()
    page.see("Failed", Deployed="False")
    for _ in range(2):
        page.see("Deployed", Deployed="True")
    page.see("Deployed", Deployed="True", UpdateFailed="True")
    assert page.figures("skysail_endpoint_update_failed") == {'{kind="ModalFunction",name="fn",namespace="team"}': 1}
    page.see("Deployed", Deployed="True", UpdateFailed="False", reason="RollingOut")
    page.see("Pending", Deployed="False", UpdateFailed="False", reason="RollingOut")
    page.see("Deployed", Deployed="True", UpdateFailed="False", reason="RollingOut")
    assert page.figures("skysail_endpoint_deployments_total")['{kind="ModalFunction",outcome="served"}'] == 1
    page.see("Deployed", Deployed="True", UpdateFailed="False", reason="Updated")
    outcomes = page.figures("skysail_endpoint_deployments_total")
    assert outcomes['{kind="ModalFunction",outcome="served"}'] == 2
    assert outcomes['{kind="ModalFunction",outcome="failed"}'] == 2
    state = '{kind="ModalFunction",name="fn",namespace="team",phase="Deployed"}'
    assert page.figures("skysail_endpoint_state") == {state: 1}
    assert page.figures("skysail_endpoint_update_failed") == {'{kind="ModalFunction",name="fn",namespace="team"}': 0}


def test_metrics_update_without_a_failure_is_counted():
    page = Page()
    page.see()
    page.see("Deployed", Deployed="True")
    for number in (2, 3):
        page.see("Deployed", Deployed="True", UpdateFailed="False", reason="RollingOut")
        for _ in range(2):
            page.see("Deployed", Deployed="True", UpdateFailed="False", reason="Updated")
        outcomes = page.figures("skysail_endpoint_deployments_total")
        assert outcomes['{kind="ModalFunction",outcome="served"}'] == number


def test_metrics_of_a_replica_that_does_not_lead_are_empty():
    page = Page(leads=False)
    page.see("Deployed", Deployed="True")
    assert page.figures("skysail_endpoint_state") == {}
    assert page.figures("skysail_endpoint_deployments_total") == {}
