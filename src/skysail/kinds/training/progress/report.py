"""Report of a pod: progress and complete checkpoints. Pure.

The body follows the progress protocol of Kubeflow Trainer, so that its clients work unchanged; `checkpoint` is an
extension. A program that sends no requests prints one line instead: `skysail-checkpoint step=120
path=/checkpoints/120`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from skysail.kinds.training.api.training_job import Metric, NewestCheckpoint, Progress, TrainingJob
from skysail.kinds.training.children.volumes import checkpoint_claim_name, checkpoint_directory, is_within
from skysail.kube.api import fields

MARK = "skysail-checkpoint "
_EPOCH = ("current_epoch", "epoch")
_STEP = ("current_step", "global_step", "step")
_LARGEST_EPOCH = 2**31 - 1
_LARGEST_STEP = 2**53 - 1
_MOST_METRICS = 64
# Limit of the status schema.
_LONGEST_PATH = 4096
_SHOWN_OF_PATH = 100


class Unusable(Exception):
    """Invalid report. The message is for the author of the training program."""


class TrainerStatus(fields.Part, frozen=True, kw_only=True):
    """Part of Trainer's protocol. Its time is ignored, because clocks of pods may be wrong."""

    progress_percentage: Annotated[int, Meta(ge=0, le=100)] | None = None
    estimated_remaining_seconds: fields.Seconds | None = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=_MOST_METRICS)] = ()
    last_updated_time: fields.ShortText | None = None


class Complete(fields.Part, frozen=True, kw_only=True):
    """Checkpoint to resume from."""

    path: Annotated[fields.Path, Meta(min_length=1)]
    step: fields.Generation | None = None


class Body(fields.Part, frozen=True, kw_only=True):
    """Body of a request."""

    trainer_status: TrainerStatus | None = None
    checkpoint: Complete | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Values to write into the status. A later report is merged over an earlier one."""

    progress: Progress | None = None
    checkpoint: NewestCheckpoint | None = None

    def followed_by(self, later: Report) -> Report:
        return Report(progress=merged(self.progress, later.progress), checkpoint=later.checkpoint or self.checkpoint)


def parse(body: bytes) -> Body:
    """Decode the body. Raises Unusable with the error and its field."""
    try:
        parsed = msgspec.json.decode(body, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unusable(
            f"The report is invalid: {error}. Send JSON such as "
            '{"trainerStatus": {"progressPercentage": 42}} or {"checkpoint": {"path": "/checkpoints/120"}}.'
        ) from error
    if parsed.trainer_status is None and parsed.checkpoint is None:
        raise Unusable("The report is empty: set `trainerStatus`, `checkpoint` or both.")
    return parsed


def report(job: TrainingJob, body: Body, at: str) -> Report:
    """Return the report. Raises Unusable for a checkpoint that a later attempt could not find."""
    told = body.trainer_status
    checkpoint = body.checkpoint
    return Report(
        progress=None if told is None else _progress(told),
        checkpoint=None if checkpoint is None else kept(job, checkpoint, at),
    )


def line(text: str) -> Complete | None:
    """Return the checkpoint of a printed line, or None for any other line.

    Text such as a logger prefix may come first.
    """
    before, mark, words = text.rpartition(MARK)
    if not mark or (before and before[-1].isalnum()):
        return None
    values = dict(word.split("=", 1) for word in words.split() if "=" in word)
    step, path = values.get("step"), values.get("path", "")
    if not path:
        raise Unusable(f"The line has no path: write `{MARK}step=120 path=/checkpoints/120`.")
    return Complete(path=path, step=None if step is None else _step(step))


def kept(job: TrainingJob, checkpoint: Complete, at: str) -> NewestCheckpoint:
    """Return the checkpoint for the status.

    Raises Unusable for a path outside the volume, which is lost with the pod.
    """
    directory = checkpoint_directory(job.spec)
    if len(checkpoint.path) > _LONGEST_PATH:
        raise Unusable(
            f"The checkpoint path {checkpoint.path[:_SHOWN_OF_PATH]}… has {len(checkpoint.path)} characters, more than "
            f"{_LONGEST_PATH}: save the checkpoint under a shorter path."
        )
    if not directory:
        raise Unusable(
            f"The checkpoint {checkpoint.path} would be lost with its pod, because this TrainingJob has no volume for "
            "checkpoints: set spec.checkpointDir."
        )
    if not is_within(checkpoint.path, directory):
        raise Unusable(
            f"The checkpoint {checkpoint.path} is outside spec.checkpointDir ({directory}): save it below that "
            "directory, where the next attempt finds it."
        )
    claim = checkpoint_claim_name(job)
    return NewestCheckpoint(path=checkpoint.path, step=checkpoint.step, save_time=at, claim_name=claim)


def merged(before: Progress | None, after: Progress | None) -> Progress | None:
    """Return `after` merged over `before`: the last report of a training often contains only part of the values."""
    if before is None or after is None:
        return after or before
    told = {field: value for field in after.__struct_fields__ if (value := getattr(after, field)) not in (None, ())}
    metrics = {metric.name: metric for metric in (*before.metrics, *after.metrics)}
    # Keeps the newest metrics, so that generated names do not grow the status.
    newest = sorted(metrics.values(), key=lambda metric: metric in after.metrics)[-_MOST_METRICS:]
    return msgspec.structs.replace(before, **{**told, "metrics": tuple(newest)})


def _progress(told: TrainerStatus) -> Progress:
    return Progress(
        percent=told.progress_percentage,
        epoch=_whole(told.metrics, _EPOCH, _LARGEST_EPOCH),
        step=_whole(told.metrics, _STEP, _LARGEST_STEP),
        estimated_remaining_seconds=told.estimated_remaining_seconds,
        metrics=told.metrics,
    )


def _whole(metrics: Iterable[Metric], names: tuple[str, ...], largest: int) -> int | None:
    """Return the first of these metrics that is a number, rounded down: after 1.5 epochs the epoch is 1."""
    values = {metric.name: number(metric.value) for metric in metrics}
    found = next((value for name in names if (value := values.get(name)) is not None), None)
    return int(found) if found is not None and 0 <= found <= largest else None


def number(text: str) -> float | None:
    """Return the number, or None if the text is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _step(text: str) -> int:
    if not (
        text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_STEP)) and int(text) <= _LARGEST_STEP
    ):
        raise Unusable(f"The line has step={text[:32]}, which is not a whole number: write one, or remove the step.")
    return int(text)
