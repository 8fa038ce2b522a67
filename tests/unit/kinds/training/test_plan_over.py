"""A TrainingJob after its end: what is cleaned up, when it is forgotten, and that nothing begins any more."""

from __future__ import annotations

import pytest

from skysail.core.actions import Delete
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.plan.planner import plan
from skysail.kube.api.resources import JOB
from tests.unit.kinds.training.builders import CHIEF, ago, attempt, child, job, pod, snapshot, status

CLEANING = [
    ("All", "Succeeded", {"end": "Complete"}, [{"phase": "Succeeded"}], True),
    ("All", "Succeeded", {"end": "Complete"}, [{"phase": "Running"}], False),
    ("All", "Succeeded", {"end": "SuccessCriteriaMet"}, [{"phase": "Succeeded"}], False),
    ("All", "Failed", {"end": "Failed"}, [{"phase": "Failed"}], True),
    ("All", "Failed", {}, [{"phase": "Running"}], True),
    ("Running", "Succeeded", {"end": "Complete"}, [{"phase": "Succeeded"}], False),
    ("Running", "Failed", {"end": "FailureTarget"}, [{"phase": "Running"}], False),
    ("Running", "Failed", {}, [{"phase": "Running"}], True),
    ("None", "Failed", {}, [{"phase": "Running"}], False),
    ("None", "Succeeded", {"end": "Complete"}, [{"phase": "Succeeded"}], False),
]


@pytest.mark.parametrize(("policy", "phase", "known", "ranks", "goes"), CLEANING)
def test_what_is_left_after_the_end(policy, phase, known, ranks, goes):
    of = job(status=status(attempt(0, phase), phase=phase), runPolicy={"cleanPodPolicy": policy})
    there = child(of, **known)
    result = plan(snapshot(of, there, *(pod(**rank) for rank in ranks)))
    assert result.actions == ((Delete(JOB, there, foreground=True),) if goes else ())


@pytest.mark.parametrize(("known", "goes"), [({}, True), ({"end": "Complete"}, False)])
def test_a_job_that_ran_too_long_is_stopped_under_every_policy(known, goes):
    of = job(
        status=status(attempt(0, "DeadlineExceeded"), phase="Failed"),
        runPolicy={"cleanPodPolicy": "None", "activeDeadlineSeconds": 60},
    )
    there = child(of, **known)
    assert plan(snapshot(of, there, pod(0))).actions == ((Delete(JOB, there, foreground=True),) if goes else ())


@pytest.mark.parametrize("policy", ["All", "Running", "None"])
def test_parameter_servers_end_when_the_chief_is_done(policy):
    of = job(status=status(attempt(0, "Succeeded"), phase="Succeeded"), runPolicy={"cleanPodPolicy": policy}, **CHIEF)
    servers = child(of, "ps")
    assert Delete(JOB, servers, foreground=True) in plan(snapshot(of, servers, pod(0, role="ps"))).actions


@pytest.mark.parametrize(
    ("ended", "deleted", "look_again"), [(100, False, 200.0), (300, True, None), (400, True, None)]
)
def test_a_finished_job_is_forgotten_when_its_time_is_over(ended, deleted, look_again):
    of = job(
        status=status(attempt(0, "Succeeded"), phase="Succeeded", completion_time=ago(ended)),
        runPolicy={"ttlSecondsAfterFinished": 300},
    )
    result = plan(snapshot(of))
    assert (result.actions, result.requeue_after) == (
        (Delete(TRAINING_JOB.resource, of),) if deleted else (),
        look_again,
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("change", [{"workers": 4}, {"image": "x"}, {"suspend": True}, {}])
def test_nothing_begins_after_the_end(phase, change):
    of = job(status=status(attempt(0, phase), phase=phase), metadata={"generation": 7}, **change)
    result = plan(snapshot(of))
    assert (result.actions, result.status.phase, result.status.observed_generation) == ((), phase, 7)
    assert result.status.attempts == of.status.attempts
