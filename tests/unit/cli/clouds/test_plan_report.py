"""Names of planned workloads."""

import pytest

from skysail.cli.clouds import plan_report
from skysail.cli.clouds.workload_kinds import MODELS, WORKLOADS


@pytest.mark.parametrize("kind", [*WORKLOADS, *MODELS])
def test_every_planned_kind_has_the_name_that_kubectl_takes(kind):
    name, dot, group = plan_report._kind(kind).partition(".")
    assert name == kind.lower()
    assert bool(dot and group) is (kind != "Pod")
