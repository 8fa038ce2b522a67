"""The life of a TrainingJob: every step by a table, and what must never happen by chance."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.names import Annotation, Condition, EventReason, Reason
from skysail.core import conditions
from skysail.core.actions import Apply, Create, Delete, Event, SetFinalizers
from skysail.kinds.training.api.training_job import TRAINING_JOB, Failure, LatestCheckpoint
from skysail.kinds.training.children import spec_hash
from skysail.kinds.training.plan.planner import can_start_attempt, plan, refused
from skysail.kinds.training.snapshot import NameHolder
from skysail.kube.api.objects import Meta, Object, OwnerReference
from skysail.kube.api.resources import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, SERVICE
from tests.unit.kinds.training.builders import (
    CHIEF,
    NOW,
    ago,
    attempt,
    child,
    deleted,
    disruption,
    job,
    pod,
    snapshot,
    status,
)

ELASTIC = {"elastic": {"min": 1, "max": 4}}
NEVER = {"restartPolicy": "Never"}
GOING = {"deletionTimestamp": ago(1)}
LATE = {"start_time": ago(100)}
SHORT = {"runPolicy": {"activeDeadlineSeconds": 60}}
NO_RETRY = {"runPolicy": {"backoffLimit": 0}}


def open_(**fields):
    return status(attempt(0), phase="Running", **fields)


def closed(cause, **fields):
    return status(attempt(0, cause), phase="Restarting", **fields)


def made(plan_):
    return [(type(action), action.resource) for action in plan_.actions]


def cause(plan_):
    return plan_.status.attempts[-1].cause


def told(plan_, type_=Condition.RUNNING):
    return conditions.find_condition(plan_.status.conditions, type_)


@pytest.mark.parametrize(("seconds", "is_free"), [(1, False), (59, False), (61, True), (10_000, True)])
def test_planner_job_that_another_object_keeps_from_its_deletion_starts_next_attempt(seconds, is_free):
    of = job(status=closed("WorldSizeChanged"))
    kept = child(of, deletionTimestamp=ago(seconds))
    assert can_start_attempt(snapshot(of, kept)) == is_free
    assert not can_start_attempt(snapshot(of, kept, child(of, "evaluator")))
    assert not can_start_attempt(snapshot(of, kept, pod(0)))
    result = plan(snapshot(of, kept))
    assert ((Create, JOB) in made(result)) == is_free
    assert is_free or result.requeue_after == 60


def test_a_new_job_gets_its_children_and_then_its_status():
    result = plan(snapshot(job(checkpointDir="/c", hyperparameters={"lr": 1})))
    assert made(result) == [
        (Create, PERSISTENT_VOLUME_CLAIM),
        (Apply, CONFIG_MAP),
        (Apply, SERVICE),
        (Create, JOB),
    ]
    assert [(each.number, each.start_time, each.end_time) for each in result.status.attempts] == [(0, ago(0), None)]
    assert result.status.phase == "Pending"
    assert [(event.reason, event.message) for event in result.events] == [
        (EventReason.WORKERS_CREATED, "Created 2 worker pods")
    ]


def test_a_job_of_an_attempt_says_what_it_was_made_from():
    of = job()
    manifest = plan(snapshot(of)).actions[-1].manifest
    assert manifest["metadata"]["annotations"] == {Annotation.ATTEMPT_SPEC_HASH: spec_hash.attempt_spec_hash(of.spec)}


def test_one_worker_needs_no_service_and_loses_one_that_it_had():
    service = Object(Meta(name="mnist-workers", namespace="ml-jobs", uid="s"))
    of = job(workers=1)
    assert made(plan(snapshot(of))) == [(Create, JOB)]
    assert made(plan(snapshot(of, services=(service,)))) == [(Delete, SERVICE), (Create, JOB)]


def test_what_a_crash_left_out_is_made():
    of = job(**CHIEF)
    result = plan(snapshot(of, child(of, "chief")))
    names = [action.manifest["metadata"]["name"] for action in result.actions if action.resource == JOB]
    assert names == ["mnist-worker-0", "mnist-ps-0"]


def test_a_job_that_is_there_is_never_applied_again():
    """Another version of Skysail may render it otherwise, and its template cannot be changed."""
    newest = LatestCheckpoint(path="/c/9", step=9)
    of = job(status=open_(checkpoint=newest))
    assert made(plan(snapshot(of, child(of), pod(0), pod(1)))) == [(Apply, SERVICE)]


def test_the_next_attempt_goes_on_from_the_newest_checkpoint():
    newest = LatestCheckpoint(path="/c/9", step=9)
    of = job(status=closed("Suspended", checkpoint=newest), checkpointDir="/c")
    result = plan(snapshot(of))
    assert result.status.attempts[-1].resumed_from == newest
    env = result.actions[-1].manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "RESUME_FROM", "value": "/c/9"} in env


def test_no_attempt_resumes_from_a_checkpoint_that_is_gone_with_its_claim():
    newest = LatestCheckpoint(path="/c/9", step=9)
    of = job(status=closed("Suspended", checkpoint=newest), checkpointDir="/c")
    result = plan(snapshot(of, has_lost_checkpoint=True))
    assert (result.status.attempts[-1].resumed_from, result.status.checkpoint) == (None, None)
    assert [event.reason for event in result.events] == [EventReason.WORKERS_CREATED, EventReason.CHECKPOINT_LOST]
    env = result.actions[-1].manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "RESUME_FROM" not in {variable["name"] for variable in env}


@pytest.mark.parametrize(
    ("pods", "what"),
    [((), "Job mnist-worker-0 of a deleted"), (("a", "b"), "Pod a of a deleted")],
    ids=["no pods", "pods"],
)
def test_one_that_was_deleted_under_the_same_name_is_waited_for_and_told(pods, what):
    result = plan(snapshot(job(), name_held_by=NameHolder("mnist-worker-0", pods)))
    assert (result.actions, result.status.phase, told(result).reason) == ((), "Pending", Reason.PODS_TERMINATING)
    assert told(result).message.startswith(f"{what} TrainingJob of the same name")
    assert result.requeue_after is not None


def test_each_pod_that_fails_and_is_replaced_alone_is_told_once():
    of = job(status=status(attempt(0, run_time=ago(40)), phase="Running"), **CHIEF)
    jobs = [child(of, role) for role in ("chief", "worker", "ps")]
    others = [pod(0, role="chief"), pod(0, role="ps"), pod(0)]
    first = pod(1, "Failed", exit=7, said="ValueError: nan", finished=ago(20))
    result = plan(snapshot(of, *jobs, *others, first, pod(1, life=1)))
    assert (result.status.phase, result.status.failure.exit_code, result.status.failure.message) == (
        "Running",
        7,
        "ValueError: nan",
    )
    message = "Worker 1 (pod mnist-worker-0-1-0 on node node-1) failed with exit code 7."
    assert [(event.reason, event.message) for event in result.events] == [(EventReason.WORKER_FAILED, message)]
    again = msgspec.structs.replace(of, status=result.status)
    assert plan(snapshot(again, *jobs, *others, first, pod(1, life=1))).events == ()
    second = pod(1, "Failed", exit=8, life=1, finished=ago(10))
    third = plan(snapshot(again, *jobs, *others, first, second, pod(1, life=2)))
    assert [event.message for event in third.events] == [
        message.replace("1-0 on", "1-1 on").replace("code 7", "code 8")
    ]


@pytest.mark.parametrize("more", [{"conditions": [disruption()]}, {"metadata": deleted(15)}])
def test_one_that_had_to_go_has_not_failed(more):
    of = job(status=status(attempt(0, run_time=ago(40)), phase="Running"), **CHIEF)
    jobs = [child(of, role) for role in ("chief", "worker", "ps")]
    ranks = [pod(0, role="chief"), pod(0, role="ps"), pod(0), pod(1, "Failed", **more), pod(1, life=1)]
    result = plan(snapshot(of, *jobs, *ranks))
    assert (result.status.failure, result.events) == (None, ())


def test_a_job_runs_when_all_its_pods_do():
    of = job(status=status(attempt(0)))
    part = plan(snapshot(of, child(of), pod(0), pod(1, "Pending")))
    assert (part.status.phase, part.status.start_time) == ("Pending", None)
    assert told(part).message == "1 of 2 pods run; Worker 1 is starting."
    whole = plan(snapshot(of, child(of), pod(0), pod(1)))
    assert (whole.status.phase, whole.status.start_time) == ("Running", ago(40))
    assert (told(whole).status, told(whole).reason) == ("True", Reason.RUNNING)


def test_a_job_that_ran_runs_on_while_one_of_its_pods_comes_back():
    of = job(status=status(attempt(0, run_time=ago(40)), phase="Running"), **CHIEF)
    jobs = [child(of, role) for role in ("chief", "worker", "ps")]
    ranks = [pod(0, role="chief"), pod(0, role="ps"), pod(0), pod(1, "Failed"), pod(1, "Pending", life=1)]
    result = plan(snapshot(of, *jobs, *ranks))
    assert (result.status.phase, told(result).reason) == ("Running", Reason.STARTING)


def test_in_steady_state_nothing_changes():
    of = job(status=status(attempt(0)))
    first = plan(snapshot(of, child(of), pod(0), pod(1))).status
    again = msgspec.structs.replace(of, status=first)
    later = plan(snapshot(again, child(of), pod(0), pod(1), now=NOW + timedelta(hours=1)))
    assert (later.status, later.events, made(later)) == (first, (), [(Apply, SERVICE)])


ENDS = [
    ("all workers done", {}, [(child, {"end": "Complete"})], {}, "Succeeded", "Succeeded"),
    ("soon all done", {}, [(child, {"end": "SuccessCriteriaMet"})], {}, "Succeeded", "Succeeded"),
    ("a worker failed", {}, [(child, {"end": "Failed"}), (pod, {"phase": "Failed"})], {}, "Failed", "Restarting"),
    ("and may not", NEVER, [(child, {"end": "Failed"}), (pod, {"phase": "Failed"})], {}, "Failed", "Failed"),
    ("no retry", NO_RETRY, [(child, {"end": "Failed"}), (pod, {"phase": "Failed"})], {}, "Failed", "Failed"),
    ("preempted", NO_RETRY, [(child, {}), (pod, {"conditions": [disruption()]})], {}, "Preempted", "Restarting"),
    ("preempted, no failure", NEVER, [(child, {}), (pod, {"conditions": [disruption()]})], {}, "Preempted",
     "Restarting"),
    ("node lost", NO_RETRY, [(child, {}), (pod, {"conditions": [disruption("DeletionByTaintManager")]})], {},
     "NodeLost", "Restarting"),
    ("held", {"suspend": True}, [(child, {}), (pod, {})], {}, "Suspended", "Suspended"),
    ("failed, and held", {"suspend": True}, [(child, {"end": "Failed"})], {}, "Failed", "Restarting"),
    ("done, and held", {"suspend": True}, [(child, {"end": "Complete"})], {}, "Succeeded", "Succeeded"),
    ("too long", SHORT, [(child, {}), (pod, {})], LATE, "DeadlineExceeded", "Failed"),
    ("done in time", SHORT, [(child, {"end": "Complete"})], LATE, "Succeeded", "Succeeded"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "parts", "fields", "ended", "phase"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS]
)
def test_an_attempt_ends(spec, parts, fields, ended, phase):
    """And the pass that finds it writes it down before anything is deleted."""
    of = job(status=open_(**fields), **spec)
    children = [make(of, **known) if make is child else make(**known) for make, known in parts]
    result = plan(snapshot(of, *children))
    assert (cause(result), result.status.phase) == (ended, phase)
    assert result.actions == ()
    assert result.requeue_after == 0.0
    assert (result.status.completion_time is not None) is (phase in {"Succeeded", "Failed"})


def test_a_chief_decides_alone():
    of = job(status=open_(), **CHIEF)
    others = [child(of, "worker"), child(of, "ps")]
    assert cause(plan(snapshot(of, child(of, "chief", end="Complete"), *others))) == "Succeeded"
    workers = [child(of, "chief"), child(of, "worker", end="Complete"), child(of, "ps")]
    assert cause(plan(snapshot(of, *workers))) is None


@pytest.mark.parametrize(
    ("change", "ended", "event"),
    [
        ({"workers": 4}, "WorldSizeChanged", EventReason.WORLD_SIZE_CHANGED),
        ({"workers": 1}, "WorldSizeChanged", EventReason.WORLD_SIZE_CHANGED),
        ({"image": "other"}, "SpecChanged", EventReason.SPEC_CHANGED),
        ({"image": "other", "workers": 4}, "SpecChanged", EventReason.SPEC_CHANGED),
    ],
)
def test_a_change_of_the_spec_ends_the_attempt(change, ended, event):
    of = job(status=open_())
    other = msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, **change))
    result = plan(snapshot(other, child(of), pod(0), pod(1)))
    assert (cause(result), result.status.phase, result.status.retries) == (ended, "Restarting", 0)
    assert [note.reason for note in result.events] == [event]


def test_a_change_of_policies_ends_nothing():
    of = job(status=open_())
    other = job(status=open_(), runPolicy={"backoffLimit": 9}, restartPolicy="Never")
    assert cause(plan(snapshot(other, child(of), pod(0), pod(1)))) is None


def test_a_job_that_somebody_deleted_ends_the_attempt_once_the_server_says_so():
    of = job(status=open_())
    assert cause(plan(snapshot(of, missing_jobs=frozenset({"mnist-worker-0"})))) == "Deleted"
    assert cause(plan(snapshot(job(), missing_jobs=frozenset({"mnist-worker-0"})))) is None


def test_a_failure_is_told_with_the_end_of_the_log_and_the_events_of_the_seed():
    of = job(status=open_())
    dead = pod(1, "Failed", exit=37)
    result = plan(snapshot(of, child(of, end="Failed"), pod(0), dead, log="Epoch 3\nValueError: nan"))
    failure = result.status.failure
    assert (failure.role, failure.index, failure.exit_code, failure.node) == ("worker", 1, 37, "node-1")
    assert failure.message == "Epoch 3\nValueError: nan"
    assert [(event.reason, event.message, event.warning) for event in result.events] == [
        (EventReason.WORKER_FAILED, "Worker 1 failed", True)
    ]
    assert told(result).message == "Worker 1 (pod mnist-worker-0-1-0 on node node-1) failed with exit code 37."


def test_success_is_told_with_the_event_of_the_seed():
    of = job(status=open_())
    result = plan(snapshot(of, child(of, end="Complete")))
    assert [(event.reason, event.message) for event in result.events] == [
        (EventReason.TRAINING_COMPLETED, "Training job completed successfully")
    ]
    assert told(result, Condition.SUCCEEDED).status == "True"


@pytest.mark.parametrize(("limit", "retries", "phase"), [(3, 2, "Restarting"), (3, 3, "Failed"), (0, 0, "Failed")])
def test_as_many_failed_attempts_are_started_anew_as_the_limit_says(limit, retries, phase):
    of = job(status=open_(retries=retries), runPolicy={"backoffLimit": limit})
    result = plan(snapshot(of, child(of, end="Failed"), pod(0, "Failed")))
    assert (result.status.phase, result.status.retries) == (phase, retries + 1)
    if phase == "Failed":
        assert told(result, Condition.SUCCEEDED).reason == Reason.BACKOFF_LIMIT_EXCEEDED
        assert f"runPolicy.backoffLimit: {limit}" in told(result).message


@pytest.mark.parametrize(
    ("kind", "policy", "limit", "words"),
    [
        ("ModalJob", "Never", 0, "spec.retries is 0; raise spec.retries"),
        ("ModalJob", "OnFailure", 1, "(spec.retries: 1)"),
        ("TrainJob", "Never", 0, "a TrainJob has no retries"),
        ("", "Never", 0, "set OnFailure to retry"),
    ],
)
def test_failed_job_of_another_kind_names_its_fields(kind, policy, limit, words):
    owners = (OwnerReference(api_version="v1", kind=kind, name="bad", uid="o", controller=True),) if kind else ()
    spec = {"restartPolicy": policy, "runPolicy": {"backoffLimit": limit}}
    of = job(metadata={"owner_references": owners}, status=open_(retries=limit), **spec)
    result = plan(snapshot(of, child(of, end="Failed"), pod(0, "Failed")))
    assert result.status.phase == "Failed"
    assert words in told(result).message


def test_a_crash_loop_is_named():
    crash = Failure(role="worker", index=0, exit_code=1)
    ledger = [attempt(number, "Failed", failure=crash) for number in range(2)]
    of = job(status=status(*ledger, attempt(2), retries=2))
    result = plan(snapshot(of, child(of, number=2, end="Failed"), pod(0, "Failed", number=2)))
    assert told(result).reason == Reason.CRASH_LOOP
    waits = plan(snapshot(msgspec.structs.replace(of, status=result.status)))
    assert told(waits).reason == Reason.CRASH_LOOP
    assert "read the log in status.failure" in told(waits).message


def test_the_jobs_of_an_attempt_that_is_over_go_with_their_pods():
    of = job(status=closed("Failed"))
    result = plan(snapshot(of, child(of, end="Failed"), pod(0, "Failed")))
    assert result.actions == (Delete(JOB, child(of, end="Failed"), foreground=True),)
    assert (result.status.phase, told(result).reason) == ("Restarting", Reason.PODS_TERMINATING)


@pytest.mark.parametrize(
    "left",
    [
        [(child, {"deletionTimestamp": ago(1)})],
        [(pod, {"phase": "Failed"})],
        [(pod, {"metadata": GOING})],
    ],
)
def test_no_attempt_begins_while_anything_of_the_last_is_left(left):
    of = job(status=closed("Suspended"))
    result = plan(snapshot(of, *(make(of, **known) if make is child else make(**known) for make, known in left)))
    assert (result.actions, result.status.attempts) == ((), of.status.attempts)
    assert told(result).reason == Reason.PODS_TERMINATING


def test_a_node_that_does_not_confirm_an_end_is_named_with_what_to_do():
    of = job(status=closed("NodeLost"))
    result = plan(snapshot(of, pod(1, metadata={"deletionTimestamp": ago(120)})))
    assert "`kubectl delete node node-1`" in told(result).message


def test_the_next_attempt_waits_for_its_time_and_then_begins():
    of = job(status=closed("Failed", failure=Failure(role="worker", index=1)))
    waits = plan(snapshot(of))
    assert (waits.actions, waits.requeue_after, waits.status.phase) == ((), 5.0, "Restarting")
    assert "The next attempt starts at 2026-03-01T12:00:05Z." in told(waits).message
    assert not can_start_attempt(snapshot(of))
    later = snapshot(of, now=NOW + timedelta(seconds=5))
    assert can_start_attempt(later)
    assert [each.number for each in plan(later).status.attempts] == [0, 1]


def test_a_change_of_mind_is_not_made_to_wait():
    assert can_start_attempt(snapshot(job(status=closed("WorldSizeChanged"))))


def test_a_held_job_has_nothing_and_its_deadline_begins_anew():
    of = job(status=closed("Suspended", start_time=ago(500)), suspend=True, **SHORT)
    result = plan(snapshot(of))
    assert (result.actions, result.status.phase, result.status.start_time) == ((), "Suspended", None)
    assert told(result).reason == Reason.SUSPENDED
    fresh = plan(snapshot(job(suspend=True)))
    assert (fresh.actions, fresh.status.phase) == ((), "Suspended")


def test_the_deadline_counts_between_attempts_too():
    of = job(status=closed("Failed", **LATE), **SHORT)
    result = plan(snapshot(of))
    assert (result.status.phase, told(result, Condition.SUCCEEDED).reason) == ("Failed", Reason.DEADLINE_EXCEEDED)


def test_the_deadline_is_looked_for_when_it_comes():
    of = job(status=open_(start_time=ago(10)), **SHORT)
    assert plan(snapshot(of, child(of), pod(0), pod(1))).requeue_after == 50.0


def test_a_job_of_an_older_attempt_goes():
    of = job(status=status(attempt(0, "Failed"), attempt(1)))
    stray = child(of, number=0)
    assert Delete(JOB, stray, foreground=True) in plan(snapshot(of, stray, child(of, number=1))).actions


def test_what_another_controller_manages_is_not_touched():
    of = job(managedBy="kueue.x-k8s.io/multikueue")
    result = plan(snapshot(of))
    assert (result.actions, result.status, result.events) == ((), None, ())


def test_what_is_deleted_is_let_go():
    theirs = "trainingjob.ml.example.com/finalizer"
    of = job(metadata={"deletion_timestamp": ago(1), "finalizers": (theirs, "mine")})
    assert plan(snapshot(of, child(of))).actions == (SetFinalizers(TRAINING_JOB.resource, of, ("mine",)),)
    assert plan(snapshot(job(metadata={"deletion_timestamp": ago(1)}))).actions == ()


def test_a_refusal_is_told():
    assert refused(snapshot(job()), Event(Reason.RECONCILE_FAILED, "No.")).status.phase == "Pending"


def test_a_job_that_the_api_server_does_not_take_speaks_against_the_spec():
    said = 'Job.batch "mnist-worker-0" is invalid: spec.template.spec.x: Invalid value: "-1" (HTTP 422 Invalid)'
    result = refused(snapshot(job()), Event(Reason.RECONCILE_FAILED, said))
    shown = result.status
    accepted = conditions.find_condition(shown.conditions, Condition.ACCEPTED)
    assert (shown.phase, accepted.reason) == ("Pending", Reason.INVALID_SPEC)
    assert accepted.message.endswith(': spec.template.spec.x: Invalid value: "-1". Correct or remove that field.')
    assert [(event.reason, event.message) for event in result.events] == [(Reason.INVALID_SPEC, accepted.message)]
    denied = 'jobs.batch "mnist-worker-0" is forbidden: exceeded quota (HTTP 403 Forbidden)'
    other = refused(snapshot(job()), Event(Reason.RECONCILE_FAILED, denied)).status
    assert conditions.find_condition(other.conditions, Condition.ACCEPTED).reason == Reason.RECONCILE_FAILED


_ENDS = st.sampled_from(["", "Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"])
_PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
_CAUSES = st.sampled_from([None, "Failed", "Preempted", "Suspended", "SpecChanged"])


@given(
    ledger=st.lists(_CAUSES, max_size=4),
    made_of=st.lists(st.tuples(st.integers(0, 4), _ENDS, st.booleans()), max_size=3),
    ranks=st.lists(st.tuples(st.integers(0, 4), _PHASES, st.booleans()), max_size=4),
    phase=st.sampled_from(["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]),
    spec=st.sampled_from([{}, NEVER, NO_RETRY, SHORT, ELASTIC, {"suspend": True}]),
)
def test_never_two_attempts_at_once_whatever_is_seen(ledger, made_of, ranks, phase, spec):
    of = job(status=status(*(attempt(n, cause) for n, cause in enumerate(ledger)), phase=phase), **spec)
    jobs = [child(of, number=n, end=end, **(GOING if going else {})) for n, end, going in made_of]
    pods = [pod(i, p, number=n, metadata=GOING if going else {}) for i, (n, p, going) in enumerate(ranks)]
    result = plan(snapshot(of, *jobs, *pods))
    if any(isinstance(action, Create) and action.resource == JOB for action in result.actions):
        assert (jobs, pods) == ([], [])
    if of.status.phase in {"Succeeded", "Failed"}:
        assert result.status.phase == of.status.phase
    assert result == plan(snapshot(of, *jobs, *pods))
