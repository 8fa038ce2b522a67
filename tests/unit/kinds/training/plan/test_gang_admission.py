"""Whether an attempt may begin, what is done at the gang scheduler's, and what a job says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skysail.base.names import Condition, Reason
from skysail.core import conditions
from skysail.core.actions import Apply, Delete, PatchStatus
from skysail.kinds.training.plan.planner import plan
from skysail.kinds.training.scheduling import SCHEDULERS
from skysail.kinds.training.scheduling.gang_scheduler import GangState, PodPlacement, SchedulingFacts, manifest
from skysail.kinds.training.scheduling.kueue import WORKLOAD, Workload
from skysail.kinds.training.scheduling.volcano import POD_GROUP, PodGroup
from skysail.kube.api.resources import JOB, SERVICE
from tests.unit.kinds.training.builders import ago, attempt, child, job, pod, snapshot, status

QUEUED = {"scheduling": {"gang": "kueue"}}
GROUPED = {"scheduling": {"gang": "volcano"}}
TYPES = {WORKLOAD: Workload, POD_GROUP: PodGroup}
RESERVED, ADMITTED, EVICTED = "QuotaReserved", "Admitted", "Evicted"
SPOT = SchedulingFacts(flavors={"spot": PodPlacement(node_selector={"pool": "spot"}, tolerations=({"key": "spot"},))})


def known(*objects: Any, scheduling_facts: SchedulingFacts = SPOT, **more: Any) -> GangState:
    rows = tuple((WORKLOAD if isinstance(each, Workload) else POD_GROUP, each) for each in objects)
    return GangState(**{"is_served": True, "objects": rows, "is_gone": not rows, "facts": scheduling_facts, **more})


def gang(of: Any, *holding: str, going: bool = False) -> Any:
    """The gang of a job, as it was made, with conditions that hold."""
    back_end = SCHEDULERS[of.spec.scheduling.gang]
    made = manifest(back_end, of, SPOT)
    rows = [{"type": type_, "status": "True", "reason": "Preempted", "message": "told"} for type_ in holding]
    assigned = {"podSetAssignments": [{"name": "worker", "flavors": {"cpu": "spot"}}]}
    told = {"conditions": rows, **({"admission": assigned} if ADMITTED in holding else {})}
    metadata = {**made["metadata"], "uid": "g", **({"deletionTimestamp": ago(1)} if going else {})}
    return msgspec.convert({**made, "metadata": metadata, "status": told}, TYPES[back_end.resource])


def told(plan_: Any, type_: Condition = Condition.RUNNING) -> Any:
    return conditions.find_condition(plan_.status.conditions, type_)


def done(plan_: Any) -> list[tuple[type, Any]]:
    """Without the Service, which is always seen to."""
    return [(type(action), action.resource) for action in plan_.actions if action.resource != SERVICE]


def test_nobody_decides_before_it_is_known_whether_the_scheduler_is_there():
    decided = plan(snapshot(job(**QUEUED), gang=known(is_served=None)))
    assert (decided.actions, decided.status, decided.requeue_after) == ((), None, 1.0)


@pytest.mark.parametrize("spec", [QUEUED, GROUPED])
def test_nothing_begins_without_the_scheduler_that_was_asked_for(spec: dict[str, Any]):
    decided = plan(snapshot(job(**spec), gang=known(is_served=False)))
    assert decided.actions == ()
    assert told(decided, Condition.GANG_UNAVAILABLE).status == "True"
    assert told(decided).reason == Reason.GANG_UNAVAILABLE
    assert decided.status.phase == "Pending"
    assert [event.reason for event in decided.events] == ["GangUnavailable"]
    again = plan(snapshot(job(**spec, status=decided.status), gang=known(is_served=False)))
    assert (again.status, again.events) == (decided.status, ())


def test_a_scheduler_that_appears_is_asked_and_the_complaint_is_over():
    missing = plan(snapshot(job(**QUEUED), gang=known(is_served=False))).status
    decided = plan(snapshot(job(**QUEUED, status=missing), gang=known()))
    assert done(decided) == [(Apply, WORKLOAD)]
    assert told(decided, Condition.GANG_UNAVAILABLE).status == "False"


@pytest.mark.parametrize("spec", [QUEUED, GROUPED])
def test_the_gang_is_made_first(spec: dict[str, Any]):
    decided = plan(snapshot(job(**spec), gang=known()))
    assert [kind for kind, _ in done(decided)] == [Apply]
    assert told(decided).reason == Reason.NOT_ADMITTED
    assert decided.status.attempts == ()


def test_an_attempt_begins_with_the_admission_on_the_flavors_of_it():
    of = job(**QUEUED)
    decided = plan(snapshot(of, gang=known(gang(of, RESERVED, ADMITTED))))
    pods = next(action for action in decided.actions if action.resource == JOB).manifest["spec"]["template"]["spec"]
    assert (pods["nodeSelector"], pods["tolerations"]) == ({"pool": "spot"}, [{"key": "spot"}])
    assert decided.status.attempts[-1].number == 0


def test_a_gang_that_goes_is_waited_for():
    of = job(**QUEUED)
    assert plan(snapshot(of, gang=known(gang(of, RESERVED, ADMITTED, going=True)))).actions == ()


def test_a_gang_for_another_size_goes_before_the_attempt_begins():
    before, of = job(**QUEUED), job(**QUEUED, workers=4)
    decided = plan(snapshot(of, gang=known(gang(before, RESERVED, ADMITTED))))
    assert done(decided) == [(Delete, WORKLOAD)]


def test_an_eviction_ends_the_attempt_and_costs_nothing():
    of = job(**QUEUED, status=status(attempt(0), phase="Running", start_time=ago(50)))
    seen = snapshot(of, child(of), pod(0), pod(1), gang=known(gang(of, RESERVED, ADMITTED, EVICTED)))
    decided = plan(seen)
    assert (decided.status.attempts[-1].cause, decided.status.retries) == ("Evicted", 0)
    assert decided.status.start_time is None
    assert [event.reason for event in decided.events] == ["GangEvicted"]


@pytest.mark.parametrize(
    ("more", "cause"),
    [({"is_gone": True}, "Evicted"), ({"is_gone": False}, None), ({"is_served": False}, None)],
)
def test_an_attempt_ends_for_a_missing_workload_only_where_the_server_says_so(more: dict[str, Any], cause: str | None):
    of = job(**QUEUED, status=status(attempt(0), phase="Running"))
    decided = plan(snapshot(of, child(of), pod(0), pod(1), gang=known(**more)))
    assert decided.status.attempts[-1].cause == cause


def test_quota_is_given_back_when_no_pod_is_left_also_while_the_job_pauses():
    evicted = known(gang(job(**QUEUED), RESERVED, ADMITTED, EVICTED))
    over = job(**QUEUED, status=status(attempt(0, "Evicted"), phase="Restarting"))
    assert done(plan(snapshot(over, child(over), pod(0), gang=evicted))) == [(Delete, JOB)]
    decided = plan(snapshot(over, gang=evicted))
    assert (done(decided), decided.status.phase) == ([(PatchStatus, WORKLOAD)], "Pending")
    paused = job(**QUEUED, status=status(attempt(0, "Failed"), phase="Restarting"))
    assert done(plan(snapshot(paused, gang=evicted))) == [(PatchStatus, WORKLOAD)]


def test_a_job_that_is_held_asks_for_nothing():
    of = job(**QUEUED, suspend=True)
    assert done(plan(snapshot(of, gang=known(gang(job(**QUEUED), RESERVED, ADMITTED))))) == [(Delete, WORKLOAD)]


@pytest.mark.parametrize("spec", [{}, GROUPED])
def test_a_gang_of_a_scheduler_that_is_not_asked_for_any_more_goes(spec: dict[str, Any]):
    decided = plan(snapshot(job(**spec), gang=known(gang(job(**QUEUED), RESERVED, ADMITTED))))
    assert done(decided)[0] == (Delete, WORKLOAD)


def test_kueue_is_told_that_all_pods_run():
    of = job(**QUEUED, status=status(attempt(0), phase="Running"))
    here = known(gang(of, RESERVED, ADMITTED))
    assert done(plan(snapshot(of, child(of), pod(0), pod(1), gang=here))) == [(PatchStatus, WORKLOAD)]
    assert done(plan(snapshot(of, child(of), pod(0), pod(1, "Pending"), gang=here))) == []


def test_a_pod_group_that_was_deleted_is_made_again_while_pods_run():
    of = job(**GROUPED, status=status(attempt(0), phase="Running"))
    assert done(plan(snapshot(of, child(of), pod(0), pod(1), gang=known()))) == [(Apply, POD_GROUP)]


def test_the_scheduler_says_why_pods_that_it_holds_back_wait():
    of = job(**GROUPED, status=status(attempt(0), phase="Pending"))
    decided = plan(snapshot(of, child(of), pod(0, "Pending"), pod(1, "Pending"), gang=known(gang(of))))
    assert told(decided).reason == Reason.NOT_ADMITTED
    assert "Volcano's queue default" in told(decided).message


def test_a_pod_that_cannot_start_for_another_reason_says_so_itself():
    of = job(**GROUPED, status=status(attempt(0), phase="Pending"))
    stuck = pod(0, "Pending", waiting="ErrImagePull")
    decided = plan(snapshot(of, child(of), stuck, pod(1), gang=known(gang(of))))
    assert told(decided).reason == Reason.IMAGE_PULL_FAILED


@pytest.mark.parametrize(("phase", "is_told"), [("Succeeded", True), ("Failed", True), ("Running", False)])
def test_the_gang_is_over_when_the_last_pod_of_a_finished_job_has_ended(phase: str, is_told: bool):  # noqa: FBT001
    of = job(**QUEUED, status=status(attempt(0, "Succeeded"), phase="Succeeded"))
    here = known(gang(of, RESERVED, ADMITTED))
    last = pod(1, phase)
    decided = plan(snapshot(of, child(of, end="Complete"), pod(0, "Succeeded"), last, gang=here))
    assert done(decided) == ([(PatchStatus, WORKLOAD)] if is_told else [])


def test_scaling_a_job_that_kueue_admits_is_a_new_attempt():
    elastic = {"elastic": {"min": 1, "max": 4}}
    before, of = job(**QUEUED, **elastic), job(**QUEUED, **elastic, workers=3, status=status(attempt(0)))
    decided = plan(snapshot(of, child(before), pod(0), pod(1), gang=known(gang(before, RESERVED, ADMITTED))))
    assert decided.status.attempts[-1].cause == "WorldSizeChanged"


def test_a_placement_is_laid_over_what_the_job_says():
    laid = PodPlacement(labels={"a": "b"}, node_selector={"pool": "spot"}, tolerations=({"key": "x"}, {"key": "y"}))
    pods = {"nodeSelector": {"zone": "1"}, "tolerations": [{"key": "x"}]}
    template = {"metadata": {"labels": {"c": "d"}}, "spec": pods}
    made = laid.on({"kind": "Job", "spec": {"parallelism": 2, "template": template}})
    assert made == {
        "kind": "Job",
        "spec": {
            "parallelism": 2,
            "template": {
                "metadata": {"labels": {"c": "d", "a": "b"}},
                "spec": {
                    "nodeSelector": {"zone": "1", "pool": "spot"},
                    "tolerations": [{"key": "x"}, {"key": "y"}],
                },
            },
        },
    }
    assert template["metadata"] == {"labels": {"c": "d"}}
