"""An attempt under way: what is made again, what is scaled, who is ended, and since when it trains."""

from __future__ import annotations

import msgspec
import pytest

from skysail.base.names import Condition, EventReason, Reason
from skysail.core import conditions
from skysail.core.actions import Apply, Delete, PatchSpec
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint, TrainingConfig
from skysail.kinds.training.plan.planner import plan
from skysail.kinds.training.snapshot import PodEvent
from skysail.kube.api.resources import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, POD, SERVICE
from tests.unit.kinds.training.builders import CHIEF, ago, attempt, changed, child, deleted, job, pod, snapshot, status

ELASTIC = {"elastic": {"min": 1, "max": 4}}
RUNS = status(attempt(0, run_time=ago(40)), phase="Running")
NO_ROOM = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "No room."}]


def told(planned):
    return conditions.find_condition(planned.status.conditions, Condition.RUNNING)


@pytest.mark.parametrize(("workers", "policy"), [(4, {}), (1, {}), (3, {"runPolicy": {"backoffLimit": 9}})])
def test_elastic_workers_come_and_go_without_the_job_being_rendered_anew(workers, policy):
    """Its template cannot be changed, and would be rendered otherwise by now."""
    of = job(status=RUNS, **ELASTIC)
    there = child(of)
    wider = changed(job(status=RUNS, **ELASTIC, **policy), workers=workers)
    renewed = TrainingConfig(ProgressEndpoint("https://skysail-progress", "another authority"))
    planned = plan(snapshot(wider, there, pod(0), pod(1), config=renewed))
    assert PatchSpec(JOB, there, {"parallelism": workers, "completions": workers}) in planned.actions
    assert [action.resource for action in planned.actions if isinstance(action, Apply)] == [SERVICE]
    assert (planned.status.attempts[-1].cause, planned.status.phase) == (None, "Running")


def test_a_pod_that_somebody_deleted_begins_a_new_attempt_at_no_cost():
    of = job(status=RUNS, runPolicy={"backoffLimit": 0})
    planned = plan(snapshot(of, child(of), pod(0), pod(1, metadata=deleted(5))))
    last = planned.status.attempts[-1]
    assert (last.cause, last.failure.pod, planned.status.retries) == ("Deleted", "mnist-worker-0-1-0", 0)
    assert planned.status.phase == "Restarting"
    assert [event.reason for event in planned.events] == [EventReason.POD_DELETED]
    who = "Worker 1 (pod mnist-worker-0-1-0 on node node-1) was deleted."
    assert told(planned).message == f"{who} A new attempt starts and costs no retry."


def test_half_a_training_is_no_success_because_its_pod_was_deleted_and_exits_with_0():
    of = job(workers=1, status=RUNS)
    saved = pod(0, "Succeeded", finished=ago(10), metadata=deleted(15))
    planned = plan(snapshot(of, child(of, end="Complete"), saved))
    assert (planned.status.phase, planned.status.attempts[-1].cause) == ("Restarting", "Deleted")


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_pods_whose_job_was_deleted_without_them_are_ended(phase):
    of = job(status=status(attempt(0, "Deleted"), phase="Restarting"))
    orphan, going = (
        pod(0, phase, metadata={"ownerReferences": []}),
        pod(1, metadata={"ownerReferences": [], **deleted()}),
    )
    planned = plan(snapshot(of, orphan, going))
    assert planned.actions == (Delete(POD, orphan),)
    assert told(planned).reason == Reason.PODS_TERMINATING


def test_a_pod_that_only_looks_like_one_of_ours_is_left_alone():
    of = job(status=status(attempt(0, "Deleted"), phase="Restarting"))
    strange = pod(0, metadata={"ownerReferences": [], "labels": {"trainingjob.ml.example.com/uid": "x"}})
    assert plan(snapshot(of, strange)).actions == ()


def test_an_elastic_job_runs_with_the_fewest_workers_that_it_may_have():
    of = job(workers=4, elastic={"min": 2, "max": 4}, status=status(attempt(0)))
    late = [pod(index, "Pending", conditions=NO_ROOM) for index in (2, 3)]
    planned = plan(snapshot(of, child(of), pod(0), pod(1), *late))
    assert (planned.status.phase, planned.status.start_time) == ("Running", ago(40))
    assert told(planned).reason == Reason.INSUFFICIENT_RESOURCES
    too_few = plan(snapshot(of, child(of), pod(0), pod(1, "Pending", conditions=NO_ROOM), *late))
    assert (too_few.status.phase, too_few.status.start_time) == ("Pending", None)


def test_nobody_waits_for_an_evaluator_without_a_place():
    of = job(roles={"evaluator": {}}, status=status(attempt(0)))
    late = pod(0, "Pending", role="evaluator", conditions=NO_ROOM)
    planned = plan(snapshot(of, child(of), child(of, "evaluator"), pod(0), pod(1), late))
    assert (planned.status.phase, planned.status.start_time) == ("Running", ago(40))


def test_a_worker_that_is_done_and_gone_is_not_waited_for():
    of = job(status=status(attempt(0)))
    first = plan(snapshot(of, child(of), pod(0), pod(1, "Succeeded"))).status
    again = msgspec.structs.replace(of, status=first)
    planned = plan(snapshot(again, child(of, shows={"completedIndexes": "1"}), pod(0)))
    assert (told(planned).reason, planned.requeue_after) == (Reason.RUNNING, None)
    assert [(worker.worker_id, worker.phase) for worker in planned.status.worker_statuses] == [
        (0, "Running"),
        (1, "Succeeded"),
    ]


def test_plan_worker_finished_and_deleted_unseen_still_counts_the_job_as_started():
    of = job(status=status(attempt(0)))
    planned = plan(snapshot(of, child(of, shows={"completedIndexes": "1"}), pod(0)))
    assert (planned.status.phase, planned.status.start_time) == ("Running", ago(40))


UNBOUND = [{"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "x" not found'}]
STUCK = {"phase": "Pending", "waiting": "ContainerCreating"}


@pytest.mark.parametrize(
    ("late", "known", "made"),
    [
        (pod(1, "Pending"), {}, [SERVICE]),
        (pod(1, "Pending", conditions=UNBOUND), {}, [PERSISTENT_VOLUME_CLAIM, CONFIG_MAP, SERVICE]),
        (
            pod(1, **STUCK),
            {"pod_event": PodEvent("mnist-worker-0-1-0", "FailedMount", 'configmap "mnist-hyper" not found')},
            [PERSISTENT_VOLUME_CLAIM, CONFIG_MAP, SERVICE],
        ),
    ],
)
def test_what_somebody_deleted_is_made_again_when_a_pod_waits_for_it(late, known, made):
    of = job(status=status(attempt(0)), checkpointDir="/c", hyperparameters={"lr": 1})
    planned = plan(snapshot(of, child(of), pod(0), late, **known))
    assert [action.resource for action in planned.actions] == made


def test_a_pod_that_does_not_start_on_its_node_is_asked_about_again():
    of = job(status=status(attempt(0)))
    stuck = msgspec.structs.replace(pod(1, **STUCK), spec=type(pod(1).spec)("node-1"))
    assert plan(snapshot(of, child(of), pod(0), stuck)).requeue_after == 30.0


def test_nothing_is_decided_before_all_is_written_that_ended_pods_have_told():
    of = job(status=RUNS)
    planned = plan(snapshot(of, child(of, end="Failed"), pod(0, "Failed"), progress_flushed=False))
    assert (planned.actions, planned.status, planned.requeue_after) == ((), None, 1.0)


def test_a_corrected_spec_begins_to_count_anew():
    worn = status(attempt(0, "Failed", spec_hash="another"), phase="Restarting", retries=3)
    planned = plan(snapshot(job(status=worn, image="corrected")))
    assert (planned.status.retries, [each.number for each in planned.status.attempts]) == (0, [0, 1])


def test_what_happened_before_the_first_word_is_told_with_it():
    """That word may wait while many jobs begin; what is wrong does not wait."""
    of = job(**CHIEF)
    there = [child(of, role) for role in ("chief", "worker", "ps")]
    pods = [pod(0, "Pending", role="chief"), pod(0, role="ps"), pod(0), pod(1, life=1)]
    fell = pod(1, "Failed", exit=7, said="nan", finished=ago(20))
    told = plan(snapshot(of, *there, *pods, fell))
    assert ([event.reason for event in told.events], told.is_deferrable) == (
        [EventReason.WORKERS_CREATED, EventReason.WORKER_FAILED],
        False,
    )
    assert plan(snapshot(of, *there, *pods)).is_deferrable


def test_a_bad_edit_before_the_first_word_is_told_with_it():
    of = job()
    metadata = msgspec.structs.replace(of.metadata, generation=2)
    bad = msgspec.structs.replace(changed(of, hyperparameters={"layers": None}), metadata=metadata)
    told = plan(snapshot(bad, child(of), pod(0, "Pending"), pod(1, "Pending")))
    assert ([event.reason for event in told.events], told.is_deferrable) == (
        [EventReason.WORKERS_CREATED, Reason.INVALID_SPEC],
        False,
    )
    assert told.status.attempts[-1].spec_hash == "", "its Jobs are of another spec"
