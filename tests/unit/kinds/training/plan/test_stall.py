"""When a training that reported is called stalled, and when no longer."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from skysail.core import conditions
from skysail.kinds.training.api.training_job import Progress
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.plan.planner import plan
from tests.unit.kinds.training.builders import NOW, ago, attempt, child, job, pod, snapshot, status

QUARTER = 900


def seen(*, reported: float | None, ran: float = 3600, before=(), **spec):
    progress = None if reported is None else Progress(percent=1, last_updated_time=ago(reported))
    known = status(attempt(0, run_time=ago(ran)), phase="Running", progress=progress, conditions=before)
    of = job(status=known, **spec)
    return snapshot(of, child(of), pod(0), pod(1))


def stalled(planned):
    found = conditions.find_condition(planned.status.conditions, "Stalled")
    return None if found is None else found.status


@pytest.mark.parametrize(
    ("reported", "ran", "value", "again"),
    [
        (None, 36000, None, None),
        (0, 3600, None, QUARTER),
        (899, 3600, None, 1),
        (900, 3600, "True", None),
        (90_000, 899, None, 1),
        (90_000, 901, "True", None),
    ],
)
def test_silence_is_too_long_after_a_quarter_of_an_hour_where_something_was_heard(reported, ran, value, again):
    planned = plan(seen(reported=reported, ran=ran))
    assert (stalled(planned), planned.requeue_after) == (value, again)
    assert planned.status.phase == "Running"


def test_the_sentence_says_since_when_and_what_to_do():
    found = conditions.find_condition(plan(seen(reported=1000)).status.conditions, "Stalled")
    assert found.reason == "Stalled"
    assert ago(1000) in found.message
    assert "Check the logs" in found.message


def test_the_next_report_ends_it():
    before = plan(seen(reported=1000)).status.conditions
    assert stalled(plan(seen(reported=1, before=before))) is None


def test_a_silence_that_goes_on_is_written_once():
    first = seen(reported=1000)
    planned = plan(first)
    later = msgspec.structs.replace(
        first, object=msgspec.structs.replace(first.object, status=planned.status), now=NOW + timedelta(hours=1)
    )
    assert plan(later).status == planned.status


def test_the_end_of_the_attempt_ends_it():
    before = plan(seen(reported=1000)).status.conditions
    assert stalled(plan(seen(reported=1000, before=before, suspend=True))) is None


def test_how_long_is_a_setting():
    shorter = msgspec.structs.replace(seen(reported=61), config=TrainingConfig(stall=timedelta(minutes=1)))
    assert stalled(plan(shorter)) == "True"
