"""The ledger of attempts: which one is under way, what is remembered, when the next may begin."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.api.training_job import Failure
from skysail.kinds.training.children import spec_hash
from skysail.kinds.training.plan import attempts
from tests.unit.kinds.training import samples
from tests.unit.kinds.training.builders import NOW, ago, attempt, child, job, snapshot, status

CRASH = Failure(role="worker", index=1, exit_code=3)
HEALTHY = {"run_time": ago(3600), "end_time": ago(5)}


@pytest.mark.parametrize(
    ("ledger", "made", "number"),
    [
        ((), (), None),
        ((), (0,), 0),
        ((attempt(0),), (0,), 0),
        ((attempt(0),), (), 0),
        ((attempt(0, "Failed"),), (0,), None),
        ((attempt(0, "Failed"),), (), None),
        ((attempt(0, "Failed"),), (1,), 1),
        ((attempt(0, "Failed"), attempt(1)), (0, 1), 1),
    ],
)
def test_which_attempt_is_under_way(ledger, made, number):
    of = job(status=status(*ledger))
    assert attempts.active_number(snapshot(of, *(child(of, number=each) for each in made))) == number


def test_a_job_that_is_being_deleted_is_no_new_attempt():
    of = job(status=status(attempt(0, "Failed")))
    assert attempts.active_number(snapshot(of, child(of, number=1, deletionTimestamp=ago(1)))) is None


def test_an_attempt_is_opened_once_and_ten_are_remembered():
    known = status()
    for number in range(12):
        known = attempts.open_attempt(known, attempt(number))
        assert attempts.open_attempt(known, attempt(number, start_time=ago(0))) == known
    assert [each.number for each in known.attempts] == list(range(2, 12))
    assert attempts.next_number(known) == 12


def test_what_failed_before_the_spec_was_corrected_costs_nothing_afterwards():
    known = status(attempt(0, "Failed", spec_hash="old"), retries=3)
    assert attempts.open_attempt(known, attempt(1, spec_hash="old")).retries == 3
    assert attempts.open_attempt(known, attempt(1, spec_hash="new")).retries == 0
    unknown = status(attempt(0, "Failed"), retries=3)
    assert attempts.open_attempt(unknown, attempt(1, spec_hash="new")).retries == 3


def test_the_first_moment_in_which_all_pods_ran_is_told_once():
    first = attempts.mark_running(status(attempt(0)), ago(30))
    assert (first.start_time, first.attempts[0].run_time) == (ago(30), ago(30))
    assert attempts.mark_running(first, ago(20)) == first
    later = attempts.mark_running(status(attempt(0, "Failed"), attempt(1), start_time=ago(500)), ago(10))
    assert (later.start_time, later.attempts[1].run_time) == (ago(500), ago(10))


@pytest.mark.parametrize(("cause", "retries"), [("Failed", 1), ("Preempted", 0), ("NodeLost", 0), ("Suspended", 0)])
def test_only_a_failure_costs_a_retry(cause, retries):
    assert attempts.close_attempt(status(attempt(0)), cause, CRASH, now=NOW).retries == retries


def test_the_log_is_kept_once_and_the_ledger_has_its_last_line():
    failure = msgspec.structs.replace(CRASH, message="Traceback\n  ...\nValueError: nan\n\n")
    known = attempts.close_attempt(status(attempt(0), replicas=2), "Failed", failure, now=NOW)
    assert known.failure == failure
    assert known.attempts[0].failure.message == "ValueError: nan"
    assert (known.attempts[0].end_time, known.replicas) == (ago(0), 0)


def test_a_later_end_without_a_failure_does_not_forget_the_last_one():
    known = status(attempt(0, "Failed"), attempt(1), failure=CRASH)
    assert attempts.close_attempt(known, "Suspended", None, now=NOW).failure == CRASH


@pytest.mark.parametrize(
    ("ledger", "seconds"),
    [
        ([], 0),
        ([attempt(0, "Suspended")], 0),
        ([attempt(0, "SpecChanged")], 0),
        ([attempt(0, "Failed")], 5),
        ([attempt(0, "Preempted")], 5),
        ([attempt(0, "Failed"), attempt(1, "Failed")], 15),
        ([attempt(n, "Failed") for n in range(5)], 155),
        ([attempt(n, "Failed") for n in range(10)], 295),
        ([attempt(0, "Failed"), attempt(1, "Suspended"), attempt(2, "Failed")], 5),
        ([attempt(0, "Failed"), attempt(1, "Failed", **HEALTHY)], 5),
        ([attempt(0, "Failed", **HEALTHY), attempt(1, "Failed")], 5),
    ],
)
def test_the_next_attempt_waits_longer_after_each_that_ended_badly_soon(ledger, seconds):
    assert attempts.restart_delay(job(status=status(*ledger)), NOW) == timedelta(seconds=seconds)


def test_a_corrected_job_is_not_made_to_wait_and_begins_to_count_anew():
    of = job()
    failed = [attempt(number, "Failed", spec_hash=spec_hash.job_spec_hash(of.spec)) for number in range(5)]
    known = status(*failed)
    assert attempts.restart_delay(job(status=known), NOW) == timedelta(seconds=155)
    assert attempts.restart_delay(job(status=known, workers=7), NOW) == timedelta(seconds=155)
    assert attempts.restart_delay(job(status=known, image="corrected"), NOW) == timedelta()


def test_a_pause_ends_and_does_not_grow_when_the_clock_is_set_back():
    known = job(status=status(attempt(0, "Failed")))
    assert attempts.restart_delay(known, NOW + timedelta(seconds=5)) == timedelta()
    assert attempts.restart_delay(known, NOW - timedelta(hours=1)) == timedelta()


@pytest.mark.parametrize(
    ("ledger", "is_loop"),
    [
        ([attempt(n, "Failed", failure=CRASH) for n in range(3)], True),
        ([attempt(n, "Failed", failure=CRASH) for n in range(2)], False),
        ([*(attempt(n, "Failed", failure=CRASH) for n in range(2)), attempt(2, "Preempted", failure=CRASH)], False),
        ([attempt(n, "Failed", failure=Failure(role="worker", index=n, exit_code=3)) for n in range(3)], False),
        ([attempt(n, "Failed", failure=Failure(role="worker", index=1, exit_code=n)) for n in range(3)], False),
        ([attempt(n, "Failed", failure=CRASH, **HEALTHY) for n in range(3)], False),
        ([attempt(n, "Failed") for n in range(3)], False),
    ],
)
def test_a_crash_loop_is_the_same_failure_three_times_before_it_was_healthy(ledger, is_loop):
    assert attempts.is_crash_loop(status(*ledger)) is is_loop


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"runPolicy": {"backoffLimit": 9}},
        {"restartPolicy": "Never"},
    ],
)
def test_what_only_the_operator_reads_makes_no_other_attempt(change):
    assert spec_hash.attempt_spec_hash(job().spec) == spec_hash.attempt_spec_hash(job(**change).spec)


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 3},
        {"image": "other:2"},
        {"command": ["other"]},
        {"args": ["--epochs=3"]},
        {"hyperparameters": {"learningRate": 0.1}},
        {"resources": {"limits": {"cpu": "1"}}},
        {"gpuPerWorker": 1},
        {"checkpointDir": "/c"},
        {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
        {"roles": {"evaluator": {}}},
    ],
)
def test_what_pods_are_made_from_makes_another_attempt(change):
    assert spec_hash.attempt_spec_hash(job().spec) != spec_hash.attempt_spec_hash(job(**change).spec)


def test_the_number_of_elastic_workers_makes_no_other_attempt():
    elastic = {"min": 1, "max": 8}
    assert spec_hash.attempt_spec_hash(job(elastic=elastic).spec) == spec_hash.attempt_spec_hash(
        job(elastic=elastic, workers=5).spec
    )
    others = {
        spec_hash.attempt_spec_hash(job(framework="jax", elastic=elastic, workers=workers).spec) for workers in (2, 5)
    }
    assert len(others) == 2


@given(samples.jobs())
def test_the_hash_is_the_same_after_a_journey_through_the_api(of):
    again = msgspec.json.decode(msgspec.json.encode(of), type=type(of))
    assert spec_hash.attempt_spec_hash(of.spec) == spec_hash.attempt_spec_hash(again.spec)


@given(st.lists(st.sampled_from(["Failed", "Preempted", "NodeLost", "Suspended", "SpecChanged"]), max_size=10))
def test_no_pause_is_longer_than_five_minutes(causes):
    known = job(status=status(*(attempt(number, cause) for number, cause in enumerate(causes))))
    assert timedelta() <= attempts.restart_delay(known, NOW) <= timedelta(minutes=5)
