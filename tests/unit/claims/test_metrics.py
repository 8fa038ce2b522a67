"""Figures of claims and orphans on the page of metrics."""

from __future__ import annotations

import pytest

from skysail.base.metrics import Metrics
from skysail.claims.metrics import ClaimMetrics
from tests.support import virtual_time
from tests.unit.claims.samples import TERMS, claim, instance
from tests.unit.claims.test_orphan_collector import Harness


def page(harness: Harness, *, leads: bool) -> list[str]:
    metrics = Metrics()
    ClaimMetrics(harness.claims, {"cloud": harness.sweeper}, lambda: leads).register(metrics)
    lines = metrics.render().decode().splitlines()
    return [line for line in lines if line.startswith(("skysail_claims", "skysail_orphaned"))]


@pytest.mark.parametrize(
    ("leads", "lines"),
    [
        (True, ['skysail_claims{cloud="cloud",state="Unknown"} 1.0', 'skysail_orphaned_instances{cloud="cloud"} 1.0']),
        (False, []),
    ],
)
def test_metrics_leader_counts_claims_and_orphans(leads, lines):
    async def test() -> None:
        harness = Harness(instance("i-9", claim="gone"))
        harness.claims.put(claim("Unknown"))
        await harness.sweep()
        await harness.sweep(after=TERMS.visibility_delay + 1)
        assert page(harness, leads=leads) == lines

    virtual_time.run(test())
