"""Explanation of a TrainingJob's state, from its status, in the order in which users ask. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.cli.durations import age, since
from skysail.core import conditions
from skysail.kinds.training.api.training_job import (
    EPOCH_METRICS,
    STEP_METRICS,
    TRAINING_JOB,
    Attempt,
    Failure,
    LatestCheckpoint,
    Progress,
    TrainingJob,
)
from skysail.kinds.training.objects import display_name
from skysail.kinds.training.plan import failure as failures
from skysail.kinds.training.plan.field_names import FieldNames, field_names
from skysail.kinds.training.plan.planner import FINISHED_PHASES
from skysail.kube.api.fields import Condition

_ADVICE: dict[str, str] = {
    Reason.INVALID_SPEC: "Correct the fields that the message names: "
    "`kubectl edit {kind} {name} -n {namespace}`. The job then starts.",
    Reason.RECONCILE_FAILED: "Skysail retries. If the message stays, correct what it names.",
    Reason.NAME_CONFLICT: "Delete or rename one of the two objects that the message names. The job then continues.",
    Reason.INSUFFICIENT_RESOURCES: "Request less (resources, gpuPerWorker, workers), or add capacity: "
    "`kubectl describe nodes` shows the free resources.",
    Reason.NO_MATCHING_NODE: "Correct nodeSelector, affinity or tolerations in spec.podTemplate, or label a node: "
    "`kubectl get nodes --show-labels` shows the labels.",
    Reason.UNSUPPORTED: "Remove the fields that the message names from spec.podTemplate, or use another node.",
    Reason.VOLUME_UNAVAILABLE: "`kubectl describe pvc -n {namespace}` shows which PVC is not bound, and why.",
    Reason.IMAGE_PULL_FAILED: "Correct spec.image, or give the node access to it. On a local cluster: "
    "`skysail image add`.",
    Reason.CONFIG_MISSING: "Create the missing object; the pod then starts.",
    Reason.QUOTA_EXCEEDED: "`kubectl describe quota -n {namespace}` shows its use. The job starts when quota is free.",
    Reason.PODS_REJECTED: "Correct what the message names.",
    Reason.SCHEDULING_GATED: "Wait until the gate is removed: a queue removes it when it is the job's turn.",
    Reason.STARTING: "Wait. If the message names a reason and stays, correct that.",
    Reason.RUNNING: "Nothing. `skysail logs {target} -n {namespace} -f` shows its output.",
    Reason.RESTARTING: "Nothing: the next attempt starts by itself.",
    Reason.PODS_TERMINATING: "Nothing: the next attempt starts when these pods are deleted.",
    Reason.SUSPENDED: "`kubectl patch {kind} {name} -n {namespace} --type merge -p "
    '\'{{"spec": {{"suspend": false}}}}\'` resumes the job.',
    Reason.COMPLETED: "Nothing: the job has finished.",
    Reason.NOT_ADMITTED: "Request less (resources, gpuPerWorker, workers), or wait until the queue admits the job.",
    Reason.GANG_UNAVAILABLE: "Install the gang scheduler, or set spec.scheduling.gang to none.",
    Reason.CRASH_LOOP: "Correct the program or the spec; a change of the spec starts a new attempt.",
}
_DESCRIBE = "See `kubectl describe {kind} {name} -n {namespace}`."
# Advice in place of _ADVICE for a TrainingJob of another kind, whose fields differ.
_ADVICE_OF_CONTROLLERS: dict[str, dict[str, str]] = {
    "ModalJob": {
        Reason.INSUFFICIENT_RESOURCES: "Request less (spec.cpu, spec.memory, spec.gpu, spec.replicas).",
        Reason.NOT_ADMITTED: "Request less (spec.cpu, spec.memory, spec.gpu, spec.replicas), or wait until the queue "
        "admits the job.",
        Reason.NO_MATCHING_NODE: "`kubectl get nodes` shows whether a node of Modal exists and is ready.",
        Reason.UNSUPPORTED: _DESCRIBE,
        Reason.SUSPENDED: _DESCRIBE,
        Reason.GANG_UNAVAILABLE: _DESCRIBE,
    },
    "TrainJob": {
        Reason.INSUFFICIENT_RESOURCES: "Request less (spec.trainer.resourcesPerNode, spec.trainer.numNodes), or add "
        "capacity: `kubectl describe nodes` shows the free resources.",
        Reason.NOT_ADMITTED: "Request less (spec.trainer.resourcesPerNode, spec.trainer.numNodes), or wait until the "
        "queue admits the job.",
        Reason.NO_MATCHING_NODE: "Correct nodeSelector, affinity or tolerations in the overrides of the TrainJob, or "
        "label a node: `kubectl get nodes --show-labels` shows the labels.",
        Reason.UNSUPPORTED: "Remove the fields that the message names from the overrides of the TrainJob, or use "
        "another node.",
        Reason.IMAGE_PULL_FAILED: "Correct spec.trainer.image, or give the node access to it. On a local cluster: "
        "`skysail image add`.",
        Reason.GANG_UNAVAILABLE: "Install the gang scheduler.",
    },
}
_FULL_PERCENT = 100
_RECREATE_HINT = "Correct it, then delete the {kind} and create it again."
_CHECKPOINT_HINT = (
    " Reported checkpoints stay, unless "
    "spec.checkpoint.retain says otherwise: name their PVC in spec.checkpoint.claimName to resume from them."
)
_UNSEEN = (
    "No operator has reconciled the job yet. Check that one runs: `skysail status` on a local cluster, else "
    "`kubectl get pods -n skysail-system`."
)


def diagnosis(job: TrainingJob, now: datetime) -> Iterator[RenderableType]:
    """Yield the parts of the explanation, each on lines of its own."""
    status = job.status
    yield Text(_headline(job, now))
    if job.spec.managed_by is not None:
        yield Text(f"Why: {job.spec.managed_by} manages this job, and Skysail ignores it.")
        return
    yield Text(f"Why: {_reason(job)}")
    stalled = conditions.find_condition(status.conditions, Type.STALLED)
    if stalled is not None and stalled.status == "True":
        yield Text(f"Stalled: {stalled.message}")
    if status.progress is not None:
        yield Text(f"Progress: {progress(status.progress, now)}")
    if status.failure is not None:
        yield from _failure(status.failure, status.attempts, field_names(job))
    if status.attempts:
        yield attempts_table(status.attempts)
    if status.checkpoint is not None:
        yield Text(f"Newest checkpoint: {_checkpoint(status.checkpoint, now)}")
    yield Text(f"What to do: {_advice(job)}")


def progress(reported: Progress, now: datetime) -> str:
    parts = [
        "" if reported.percent is None else f"{reported.percent}%",
        "" if reported.epoch is None else f"epoch {reported.epoch}",
        "" if reported.step is None else f"step {reported.step}",
        *(
            f"{metric.name} {metric.value}"
            for metric in reported.metrics
            if metric.name not in _named_metrics(reported)
        ),
        _to_go(reported),
        "" if reported.last_updated_time is None else f"reported {since(reported.last_updated_time, now)} ago",
    ]
    return ", ".join(part for part in parts if part)


def _named_metrics(reported: Progress) -> frozenset[str]:
    """Return the metrics that repeat the epoch or the step of the same line."""
    names = (() if reported.epoch is None else EPOCH_METRICS, () if reported.step is None else STEP_METRICS)
    return frozenset(name for group in names for name in group)


def _to_go(progress: Progress) -> str:
    """Return the remaining time, but not at 100 %: many programs leave an old estimate there."""
    is_known = progress.estimated_remaining_seconds is not None and progress.percent != _FULL_PERCENT
    return f"{age(progress.estimated_remaining_seconds or 0)} to go" if is_known else ""


def attempts_table(attempts: tuple[Attempt, ...]) -> Table:
    table = Table("#", title_justify="left")
    for short in ("began", "all ran after", "lasted", "end"):
        table.add_column(short, no_wrap=short == "began")
    table.add_column("by", overflow="fold")
    table.add_column("resumed from", overflow="fold")
    for attempt in attempts:
        table.add_row(
            str(attempt.number),
            attempt.start_time or "",
            _between(attempt.start_time, attempt.run_time),
            _between(attempt.start_time, attempt.end_time),
            attempt.cause or "under way",
            "" if attempt.failure is None else _culprit(attempt.failure),
            "" if attempt.resumed_from is None else _place(attempt.resumed_from),
        )
    return table


def main_condition(job: TrainingJob) -> Condition | None:
    """Return the condition that explains the state of the job. A rejection comes first."""
    accepted = conditions.find_condition(job.status.conditions, Type.ACCEPTED)
    if accepted is not None and accepted.status == "False":
        return accepted
    return conditions.find_condition(job.status.conditions, Type.RUNNING) or accepted


def _headline(job: TrainingJob, now: datetime) -> str:
    spec, status = job.spec, job.status
    began = "" if status.start_time is None else f", began {since(status.start_time, now)} ago"
    ended = "" if status.completion_time is None else f", ended {since(status.completion_time, now)} ago"
    run = sum(1 for worker in status.worker_statuses if worker.phase == "Running")
    who = f"{spec.framework}, {run} of {spec.workers} workers run"
    return f"{job.metadata.namespace}/{job.metadata.name}: {status.phase or 'not seen yet'} ({who}{began}{ended})"


def _reason(job: TrainingJob) -> str:
    condition = main_condition(job)
    if condition is None:
        return "no status reported yet."
    late = condition.observed_generation < job.metadata.generation and job.status.phase not in FINISHED_PHASES
    return condition.message + (" (This is older than the newest change of the spec.)" if late else "")


def _failure(failure: Failure, attempts: tuple[Attempt, ...], fields: FieldNames) -> Iterator[Text]:
    ended = next(
        (attempt for attempt in reversed(attempts) if attempt.failure and attempt.failure.pod == failure.pod), None
    )
    which = "Last failure" if ended is None else f"Last failure, in attempt {ended.number}"
    yield Text(f"{which}: {failures.message(failure, ended.cause if ended else 'Failed', fields)}")
    if failure.message:
        yield Text("Its last words:")
        yield Text("\n".join(f"  {line}" for line in failure.message.splitlines()))


def _advice(job: TrainingJob) -> str:
    condition = main_condition(job)
    if condition is None:
        return _UNSEEN
    owner = job.metadata.controller
    if job.status.phase == "Failed":
        kind = TRAINING_JOB.resource.kind if owner is None else owner.kind
        return _RECREATE_HINT.format(kind=kind) + (_CHECKPOINT_HINT if owner is None else "")
    is_held = job.status.phase == "Suspended" and condition.reason == Reason.PODS_TERMINATING
    advice, kind, name = _ADVICE, TRAINING_JOB.resource.kind.lower(), job.metadata.name
    target = name
    if owner is not None and owner.kind in _ADVICE_OF_CONTROLLERS:
        advice, kind, name = _ADVICE | _ADVICE_OF_CONTROLLERS[owner.kind], owner.kind.lower(), owner.name
        target = f"{kind}/{name}"
    text = advice.get(Reason.SUSPENDED if is_held else condition.reason, _DESCRIBE)
    return text.format(kind=kind, name=name, target=target, namespace=job.metadata.namespace)


def _culprit(failure: Failure) -> str:
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    reason = f", {failure.reason}" if failure.reason not in {"", "Error"} else ""
    return f"{display_name(failure.role, failure.index)}{code}{reason}"


def _checkpoint(checkpoint: LatestCheckpoint, now: datetime) -> str:
    saved = "" if checkpoint.save_time is None else f", saved {since(checkpoint.save_time, now)} ago"
    return f"{_place(checkpoint)}{saved}"


def _place(checkpoint: LatestCheckpoint) -> str:
    return checkpoint.path if checkpoint.step is None else f"{checkpoint.path} (step {checkpoint.step})"


def _between(start: str | None, end: str | None) -> str:
    return "" if start is None or end is None else since(start, datetime.fromisoformat(end))
