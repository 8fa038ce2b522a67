"""What the status says of workers and of where the job stands."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from skysail.base.names import Condition, Reason
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.kinds.training.api.training_job import TrainingJobStatus, WorkerStatus
from skysail.kinds.training.plan import status
from tests.unit.kinds.training import builders
from tests.unit.kinds.training.builders import NOW, ago, attempt, job, pod, snapshot
from tests.unit.kinds.training.samples import UID


def worker(id_, name, phase, restarts=0):
    return WorkerStatus(worker_id=id_, pod_name=name, phase=phase, restart_count=restarts)


def told(shown, type_):
    found = conditions.find_condition(shown.conditions, type_)
    return found.status, found.reason


def test_each_worker_is_told_in_order_and_other_roles_are_not():
    given = snapshot(job(), pod(1), pod(0, "Pending"), pod(0, role="ps"), pod(0, number=1))
    shown = status.with_workers(given, builders.status(), 0)
    assert shown.worker_statuses == (
        worker(0, "mnist-worker-0-0-0", "Pending"),
        worker(1, "mnist-worker-0-1-0", "Running"),
    )
    assert shown.replicas == 2


def test_restarts_count_those_of_the_container_of_the_index_and_of_earlier_attempts():
    given = snapshot(job(), pod(0, "Failed", number=2), pod(0, number=2, life=1, restarts=3))
    assert status.with_workers(given, builders.status(), 2).worker_statuses == (
        worker(0, "mnist-worker-2-0-1", "Running", 6),
    )


def test_a_phase_that_nobody_knows_is_told_as_unknown():
    given = snapshot(job(), pod(0, "Strange"))
    assert status.with_workers(given, builders.status(), 0).worker_statuses[0].phase == "Unknown"


def test_workers_that_have_ended_or_go_are_not_counted_as_there():
    going = pod(1, metadata={"deletionTimestamp": ago(0)})
    assert (
        status.with_workers(snapshot(job(workers=3), pod(0, "Succeeded"), going, pod(2)), builders.status(), 0).replicas
        == 1
    )


def test_the_selector_chooses_the_workers_of_this_job():
    shown = status.with_workers(snapshot(job()), builders.status(), 0)
    assert shown.selector == f"trainingjob.ml.example.com/uid={UID},trainingjob.ml.example.com/worker=worker"


def test_status_after_end_keeps_finished_workers_and_drops_terminated_ones():
    known = builders.status(
        attempt(0, "Succeeded"),
        worker_statuses=(worker(0, "a", "Succeeded"), worker(1, "b", "Running"), worker(2, "c", "Running")),
    )
    going = pod(2, "Failed", metadata={"deletionTimestamp": ago(0)})
    shown = status.with_final_workers(snapshot(job(workers=4), going, pod(3, "Succeeded")), known)
    assert shown.worker_statuses == (worker(0, "a", "Succeeded"), worker(3, "mnist-worker-0-3-0", "Succeeded"))


@pytest.mark.parametrize(("phase", "left"), [("Succeeded", ()), ("Failed", (worker(1, "b", "Failed"),))])
def test_a_job_that_succeeded_has_no_worker_that_failed_and_is_gone(phase, left):
    known = builders.status(attempt(0, phase), phase=phase, worker_statuses=(worker(1, "b", "Failed"),))
    assert status.with_final_workers(snapshot(job()), known).worker_statuses == left


def test_the_conditions_say_where_it_stands():
    shown = status.in_progress(snapshot(job()), builders.status(), "Pending", Reason.STARTING, "Soon.")
    assert told(shown, Condition.ACCEPTED) == ("True", "Accepted")
    assert told(shown, Condition.RUNNING) == ("False", "Starting")
    assert told(shown, Condition.SUCCEEDED) == ("Unknown", "InProgress")
    assert (shown.phase, shown.observed_generation) == ("Pending", 1)


def test_the_end_is_told_with_its_time():
    shown = status.finished(
        snapshot(job()), builders.status(replicas=2), "Failed", Reason.DEADLINE_EXCEEDED, "Too long."
    )
    assert told(shown, Condition.SUCCEEDED) == ("False", "DeadlineExceeded")
    assert told(shown, Condition.RUNNING) == ("False", "DeadlineExceeded")
    assert (shown.phase, shown.completion_time, shown.replicas) == ("Failed", ago(0), 0)


def test_the_same_told_later_is_the_same_status():
    """Or every pass would write."""
    first = status.in_progress(snapshot(job()), builders.status(), "Running", Reason.RUNNING, "All run.")
    later = snapshot(job(), now=NOW + timedelta(hours=1))
    assert status.in_progress(later, first, "Running", Reason.RUNNING, "All run.") == first


def test_a_refusal_is_told_and_what_stands_stands():
    of = job(status=builders.status(attempt(0), phase="Running"))
    shown = status.write_rejected(snapshot(of), Event(Reason.RECONCILE_FAILED, "No right to make Jobs."))
    assert told(shown, Condition.ACCEPTED) == ("False", "ReconcileFailed")
    assert (shown.phase, shown.attempts) == ("Running", of.status.attempts)
    assert status.write_rejected(snapshot(job()), Event(Reason.RECONCILE_FAILED, "No.")).phase == "Pending"


def test_what_the_server_says_may_be_long():
    shown = status.write_rejected(snapshot(job()), Event(Reason.RECONCILE_FAILED, "x" * 100_000))
    assert msgspec.convert(msgspec.to_builtins(shown), type(shown)) == shown


def test_how_far_pods_have_come_is_a_detail_until_the_training_runs():
    given = snapshot(job(), pod(0, "Pending"), pod(1, "Pending"))
    begun = status.in_progress(
        given, status.with_workers(given, builders.status(attempt(0)), 0), "Pending", "Scheduling", "Wait."
    )
    given = snapshot(job(), pod(0), pod(1, "Pending"))
    seen = status.with_workers(given, begun, 0)
    further = status.in_progress(given, seen, "Pending", "Starting", "1 of 2 pods runs.")
    assert further != begun
    assert status.is_deferrable(begun, further)
    assert not status.is_deferrable(begun, status.in_progress(given, seen, "Running", "Running", "All run."))
    assert not status.is_deferrable(begun, msgspec.structs.replace(further, retries=1))
    assert not status.is_deferrable(builders.status(), further), "that an attempt began"
    assert status.is_deferrable(TrainingJobStatus(), further), "but not the first word of all"
    unheeded = status.in_progress(given, seen, "Pending", "x", "x", ignored_error="That is wrong.")
    assert not status.is_deferrable(TrainingJobStatus(), unheeded), "where something is wrong"
    assert not status.is_deferrable(
        begun, status.in_progress(given, seen, "Pending", "x", "x", ignored_error="That is wrong.")
    )
