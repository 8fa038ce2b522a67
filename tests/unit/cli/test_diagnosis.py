from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.cli import job_rows
from skysail.cli.diagnosis import _ADVICE, diagnosis
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.plan import planner
from skysail.kube.api.objects import OwnerReference
from tests.unit.kinds.training import builders

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FAILURE = {
    "role": "worker",
    "index": 1,
    "pod": "mnist-worker-0-1-x",
    "node": "gpu-7",
    "exitCode": 137,
    "reason": "OOMKilled",
    "message": "loss 0.3\nTraceback: out [of] memory",
}
ATTEMPTS = [
    {
        "number": 0,
        "startTime": builders.ago(600),
        "runTime": builders.ago(570),
        "endTime": builders.ago(60),
        "cause": "Failed",
        "failure": FAILURE,
    },
    {"number": 1, "startTime": builders.ago(50), "resumedFrom": {"path": "/checkpoints/120", "step": 120}},
]
PROGRESS = {
    "percent": 42,
    "epoch": 3,
    "step": 1200,
    "estimatedRemainingSeconds": 300,
    "metrics": [{"name": "loss", "value": "0.12"}],
    "lastUpdatedTime": builders.ago(3),
}


def condition(reason: str, message: str, type_: str = "Running", value: str = "False") -> dict[str, object]:
    return {"type": type_, "status": value, "lastTransitionTime": builders.ago(9), "reason": reason, "message": message}


def job(*, phase: str = "Running", generation: int = 0, **status: object) -> TrainingJob:
    workers = [
        {"workerId": index, "podName": f"mnist-worker-1-{index}", "phase": "Running", "restartCount": 0}
        for index in range(2)
    ]
    spec = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], "workers": 2}
    metadata = {
        "name": "mnist",
        "namespace": "ml-jobs",
        "uid": "u",
        "creationTimestamp": builders.ago(600),
        "generation": generation,
    }
    shown = {"phase": phase, "workerStatuses": workers, **status}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": shown}, TrainingJob)


def told(of: TrainingJob) -> str:
    console = Console(file=StringIO(), width=200)
    for part in diagnosis(of, NOW):
        console.print(part, soft_wrap=True)
    return console.file.getvalue()


def test_a_rank_that_died_is_told_with_all_that_is_known():
    shown = told(
        job(
            startTime=builders.ago(570),
            conditions=[condition("Running", "All 2 pods run or have succeeded.", value="True")],
            failure=FAILURE,
            attempts=ATTEMPTS,
            progress=PROGRESS,
            checkpoint={"path": "/checkpoints/120", "step": 120, "saveTime": builders.ago(180)},
        )
    )
    lines = shown.splitlines()
    assert lines[0] == "ml-jobs/mnist: Running (pytorch, 2 of 2 workers run, began 9m ago)"
    assert lines[1] == "Why: All 2 pods run or have succeeded."
    assert lines[2] == "Progress: 42%, epoch 3, step 1200, loss 0.12, 5m to go, reported 3s ago"
    assert lines[3] == (
        "Last failure, in attempt 0: Worker 1 (pod mnist-worker-0-1-x on node gpu-7) failed with exit code 137 "
        "(OOMKilled): raise resources.limits.memory."
    )
    assert lines[5:7] == ["  loss 0.3", "  Traceback: out [of] memory"]
    assert "Newest checkpoint: /checkpoints/120 (step 120), saved 3m ago" in lines
    (first,) = [line for line in lines if "Worker 1, exit code 137, OOMKilled" in line]
    assert [cell.strip() for cell in first.strip("│").split("│")] == [
        "0",
        builders.ago(600),
        "30s",
        "9m",
        "Failed",
        "Worker 1, exit code 137, OOMKilled",
        "",
    ]
    (second,) = [line for line in lines if "under way" in line]
    assert "/checkpoints/120 (step 120)" in second
    assert "skysail logs mnist -n ml-jobs -f" in lines[-1]


@pytest.mark.parametrize(
    ("status", "why", "advice"),
    [
        (
            {"phase": "Pending", "conditions": [condition("QuotaExceeded", "The pods exceed the quota.")]},
            "Why: The pods exceed the quota.",
            "kubectl describe quota -n ml-jobs",
        ),
        (
            {"phase": "Suspended", "conditions": [condition("Suspended", "The job is suspended.")]},
            "Why: The job is suspended.",
            """-p '{"spec": {"suspend": false}}'""",
        ),
        (
            {"phase": "Failed", "conditions": [condition("BackoffLimitExceeded", "All retries are used up.")]},
            "Why: All retries are used up.",
            "name their PVC in spec.checkpoint.claimName to resume from them",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [condition("Starting", "Soon."), condition("InvalidSpec", "spec.x is 1.", "Accepted")],
            },
            "Why: spec.x is 1.",
            "kubectl edit trainingjob mnist -n ml-jobs",
        ),
        (
            {"phase": "Suspended", "conditions": [condition("PodsTerminating", "Pod a is still terminating.")]},
            "Why: Pod a is still terminating.",
            """-p '{"spec": {"suspend": false}}'""",
        ),
        ({"phase": "Pending"}, "Why: no status reported yet.", "No operator has reconciled the job yet."),
    ],
)
def test_what_it_waits_for_and_what_to_do_is_told(status, why, advice):
    shown = told(job(**status))
    assert why in shown.splitlines()
    assert advice in shown.splitlines()[-1]


def test_a_silent_training_is_told():
    stalled = condition("Stalled", "No progress was told for 20m.", "Stalled", "True")
    assert "Stalled: No progress was told for 20m." in told(job(conditions=[stalled]))


def test_what_was_said_before_the_newest_change_is_marked():
    assert "older than the newest change" in told(job(generation=3, conditions=[condition("Running", "All run.")]))


def test_what_has_ended_is_not_said_to_be_late():
    over = job(phase="Failed", generation=3, conditions=[condition("BackoffLimitExceeded", "All retries are used up.")])
    assert "older than the newest change" not in told(over)


def test_who_is_done_has_nothing_to_go():
    shown = told(job(progress={**PROGRESS, "percent": 100, "estimatedRemainingSeconds": 900}))
    assert "to go" not in shown
    assert "Progress: 100%" in shown


def test_a_pod_that_failed_alone_made_no_attempt_fail():
    alone = {**FAILURE, "pod": "mnist-worker-1-1-y", "exitCode": 7, "reason": "Error"}
    shown = told(job(failure=alone, attempts=ATTEMPTS)).splitlines()
    assert "Last failure: Worker 1 (pod mnist-worker-1-1-y on node gpu-7) failed with exit code 7." in shown


def test_times_are_whole_on_a_narrow_terminal():
    console = Console(file=StringIO(), width=80)
    for part in diagnosis(job(attempts=ATTEMPTS), NOW):
        console.print(part)
    assert builders.ago(600) in console.file.getvalue()


def test_another_controllers_job_is_not_explained():
    of = job(conditions=[condition("Running", "All run.")])
    managed = msgspec.structs.replace(of.spec, managed_by="kueue.x-k8s.io/multikueue")
    assert "kueue.x-k8s.io/multikueue manages this job" in told(msgspec.structs.replace(of, spec=managed))


def test_each_advice_is_a_sentence_about_this_job():
    for reason, text in _ADVICE.items():
        assert reason in set(Reason)
        shown = text.format(kind="trainingjob", name="mnist", target="mnist", namespace="ml-jobs")
        assert shown.endswith((".", "`"))


@pytest.mark.parametrize("kind", ["ModalJob", "TrainJob"])
@pytest.mark.parametrize("reason", list(_ADVICE))
def test_advice_for_job_of_another_kind_names_that_object_and_its_fields(kind, reason):
    status = {"phase": "Pending", "conditions": [condition(reason, "It waits.")]}
    shown = told(owned(job(**status), kind)).splitlines()[-1]
    unknown = ("trainingjob", "bad3-modaljob", "podTemplate", "gpuPerWorker", "scheduling.gang")
    assert [word for word in unknown if word in shown] == []


def owned(of: TrainingJob, kind: str) -> TrainingJob:
    controller = OwnerReference(api_version="v1", kind=kind, name="bad3", uid="o", controller=True)
    metadata = msgspec.structs.replace(of.metadata, name="bad3-modaljob", owner_references=(controller,))
    return msgspec.structs.replace(of, metadata=metadata)


def test_advice_for_invalid_modal_job_edits_the_modal_job():
    shown = told(owned(job(conditions=[condition("InvalidSpec", "Wrong.", "Accepted")]), "ModalJob"))
    assert "`kubectl edit modaljob bad3 -n ml-jobs`" in shown


def test_failure_of_modal_job_out_of_memory_names_its_memory_field():
    assert "raise spec.memory." in told(owned(job(failure=FAILURE, attempts=ATTEMPTS), "ModalJob"))


def test_what_a_plan_writes_is_what_is_told():
    """From the plan's own hand, so that both speak of the same conditions."""
    of = builders.job()
    planned = planner.plan(builders.snapshot(of)).status
    running = next(row.message for row in planned.conditions if row.type == Type.RUNNING)
    assert f"Why: {running}" in told(msgspec.structs.replace(of, status=planned))


def test_a_job_is_one_line():
    of = job(progress=PROGRESS)
    assert job_rows.HEADER.split() == ["NAME", "FRAMEWORK", "WORKERS", "PHASE", "PROGRESS", "LEFT", "AGE"]
    assert job_rows.format_row(of, NOW).split() == ["mnist", "pytorch", "2/2", "Running", "42%", "5m", "10m"]
    assert job_rows.format_row(of, NOW).index("Running") == job_rows.HEADER.index("PHASE")


def test_growing_older_is_no_change():
    of = job(progress=PROGRESS)
    later = datetime(2026, 3, 1, 13, tzinfo=UTC)
    assert job_rows.format_row(of, NOW) != job_rows.format_row(of, later)
    assert job_rows.strip_age(job_rows.format_row(of, NOW)) == job_rows.strip_age(job_rows.format_row(of, later))


@pytest.mark.parametrize(
    ("status", "full", "want"),
    [
        ({"progress": PROGRESS}, 13, "42%, epoch 3"),
        ({"phase": "Succeeded", "conditions": [condition("Completed", "It is done.")]}, 32, "It is done."),
        ({"phase": "Pending", "conditions": [condition("Starting", "It starts.")]}, 0, "It starts."),
    ],
)
def test_the_bar_is_as_long_as_the_training_is_far(status, full, want):
    console = Console(file=StringIO(), width=120, force_terminal=True, color_system=None)
    console.print(job_rows.render(job(**status), NOW))
    shown = console.file.getvalue()
    assert want in shown
    assert (shown.count("━") if full else 0) == full


def test_progress_names_the_epoch_once():
    metrics = [
        {"name": "epoch", "value": "1.5"},
        {"name": "global_step", "value": "30"},
        {"name": "loss", "value": "2"},
    ]
    shown = told(job(phase="Running", progress={"epoch": 1, "step": 30, "metrics": metrics}))
    assert "Progress: epoch 1, step 30, loss 2" in shown.splitlines()
