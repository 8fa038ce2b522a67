"""Volcano: what a PodGroup asks for, and what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.core.actions import Delete
from skysail.kinds.training.scheduling import SCHEDULERS
from skysail.kinds.training.scheduling.gang_scheduler import SchedulingFacts
from skysail.kinds.training.scheduling.volcano import POD_GROUP, PodGroup
from tests.unit.kinds.training.builders import CHIEF, NOW, job

VOLCANO = SCHEDULERS["volcano"]
GROUPED = {"scheduling": {"gang": "volcano"}}


def group(**status: Any) -> PodGroup:
    made = {"metadata": {"name": "mnist-gang"}, "spec": {"queue": "team"}, "status": status}
    return msgspec.convert(made, PodGroup)


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        (GROUPED, {"minMember": 2, "queue": "default"}),
        (
            {"scheduling": {"gang": "volcano", "queue": "team", "priorityClass": "high"}},
            {"minMember": 2, "queue": "team", "priorityClassName": "high"},
        ),
        ({**GROUPED, **CHIEF}, {"minMember": 4, "queue": "default"}),
        (
            {**GROUPED, "workers": 3, "gpuPerWorker": 2, "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
            {
                "minMember": 3,
                "queue": "default",
                "minResources": {"cpu": "1500m", "memory": "3221225472", "nvidia.com/gpu": "6"},
            },
        ),
        ({**GROUPED, "workers": 3, "elastic": {"min": 2, "max": 4}}, {"minMember": 2, "queue": "default"}),
    ],
)
def test_a_pod_group_asks_for_the_fewest_pods_to_begin_with(spec: dict[str, Any], asked: dict[str, Any]):
    assert VOLCANO.spec(job(**spec), SchedulingFacts()) == asked


def test_pods_name_their_group_and_leave_their_place_to_volcano():
    pod_placement = VOLCANO.placement(group(), SchedulingFacts(), "worker")
    assert pod_placement.annotations == {"scheduling.k8s.io/group-name": "mnist-gang"}
    assert pod_placement.scheduler == "volcano"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "The pods wait in Volcano's queue team."),
        ({"phase": "Pending"}, "The pods wait in Volcano's queue team."),
        ({"phase": "Inqueue"}, None),
        ({"phase": "Running"}, None),
        (
            {
                "phase": "Inqueue",
                "conditions": [
                    {"type": "Scheduled", "status": "False"},
                    {
                        "type": "Unschedulable",
                        "status": "True",
                        "reason": "NotEnoughResources",
                        "message": "2/2 tasks unschedulable:\n pod group is not ready",
                    },
                ],
            },
            "Volcano has not placed the pods (NotEnoughResources): 2/2 tasks unschedulable: pod group is not ready",
        ),
    ],
)
def test_why_pods_wait_is_said_in_the_words_of_volcano(status: dict[str, Any], said: str | None):
    assert VOLCANO.pods_pending_reason(group(**status)) == said


def test_running_pods_go_on_without_their_group_and_the_group_goes_with_its_job():
    assert VOLCANO.eviction_reason(None) is None
    assert VOLCANO.finish(group(), NOW, "Failed") == Delete(POD_GROUP, group())
