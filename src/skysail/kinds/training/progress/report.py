"""What a pod tells about its training: how far it is, and which checkpoint is complete. Pure.

The body is that of Kubeflow Trainer's progress protocol, so that what speaks it works unchanged; `checkpoint` beside it
is ours. Who cannot send anything prints one line instead: `skysail-checkpoint step=120 path=/checkpoints/120`.
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
# As the schema of the status has it.
_LONGEST_PATH = 4096
_SHOWN_OF_PATH = 100


class Unusable(Exception):
    """A report that cannot be taken. The message is a sentence for who wrote the training program."""


class TrainerStatus(fields.Part, frozen=True, kw_only=True):
    """As Trainer has it. Its time is the sender's, and read by nobody: clocks of pods are not ours."""

    progress_percentage: Annotated[int, Meta(ge=0, le=100)] | None = None
    estimated_remaining_seconds: fields.Seconds | None = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=_MOST_METRICS)] = ()
    last_updated_time: fields.ShortText | None = None


class Complete(fields.Part, frozen=True, kw_only=True):
    """A checkpoint that can be resumed from."""

    path: Annotated[fields.Path, Meta(min_length=1)]
    step: fields.Generation | None = None


class Body(fields.Part, frozen=True, kw_only=True):
    """What is sent."""

    trainer_status: TrainerStatus | None = None
    checkpoint: Complete | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to write down. A report that came later is laid over the one before."""

    progress: Progress | None = None
    checkpoint: NewestCheckpoint | None = None

    def followed_by(self, later: Report) -> Report:
        return Report(progress=merged(self.progress, later.progress), checkpoint=later.checkpoint or self.checkpoint)


def parse(body: bytes) -> Body:
    """Raises Unusable with what is wrong and where."""
    try:
        parsed = msgspec.json.decode(body, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unusable(
            f"The report cannot be read: {error}. It is JSON such as "
            '{"trainerStatus": {"progressPercentage": 42}} or {"checkpoint": {"path": "/checkpoints/120"}}.'
        ) from error
    if parsed.trainer_status is None and parsed.checkpoint is None:
        raise Unusable("The report says nothing: it needs `trainerStatus`, `checkpoint` or both.")
    return parsed


def report(job: TrainingJob, body: Body, at: str) -> Report:
    """Raises Unusable for a checkpoint that a later attempt could not find."""
    told = body.trainer_status
    checkpoint = body.checkpoint
    return Report(
        progress=None if told is None else _progress(told),
        checkpoint=None if checkpoint is None else kept(job, checkpoint, at),
    )


def line(text: str) -> Complete | None:
    """The checkpoint that a printed line tells of; None for any other line. A logger may write before the mark."""
    before, mark, words = text.rpartition(MARK)
    if not mark or (before and before[-1].isalnum()):
        return None
    values = dict(word.split("=", 1) for word in words.split() if "=" in word)
    step, path = values.get("step"), values.get("path", "")
    if not path:
        raise Unusable(f"A printed line names no path: write `{MARK}step=120 path=/checkpoints/120`.")
    return Complete(path=path, step=None if step is None else _step(step))


def kept(job: TrainingJob, checkpoint: Complete, at: str) -> NewestCheckpoint:
    """The checkpoint, for the status. Outside the checkpoints' volume nothing outlives the pod."""
    directory = checkpoint_directory(job.spec)
    if len(checkpoint.path) > _LONGEST_PATH:
        raise Unusable(
            f"The path of the checkpoint, {checkpoint.path[:_SHOWN_OF_PATH]}…, has {len(checkpoint.path)} characters: "
            f"at most {_LONGEST_PATH} are kept. Save it under a shorter name."
        )
    if not directory:
        raise Unusable(
            f"The checkpoint {checkpoint.path} would be lost with its pod: this TrainingJob has no volume for "
            "checkpoints. Set spec.checkpointDir."
        )
    if not is_within(checkpoint.path, directory):
        raise Unusable(
            f"The checkpoint {checkpoint.path} is outside spec.checkpointDir, which is {directory}: save it below "
            "that folder, where the next attempt finds it."
        )
    claim = checkpoint_claim_name(job)
    return NewestCheckpoint(path=checkpoint.path, step=checkpoint.step, save_time=at, claim_name=claim)


def merged(before: Progress | None, after: Progress | None) -> Progress | None:
    """What is not told again stays as it was: the last report of a training often names only its end."""
    if before is None or after is None:
        return after or before
    told = {field: value for field in after.__struct_fields__ if (value := getattr(after, field)) not in (None, ())}
    metrics = {metric.name: metric for metric in (*before.metrics, *after.metrics)}
    # The newest are the last ones, and a program that makes up names does not grow the status.
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
    """The first of these metrics that is a number, without its fraction: in epoch 1.5 the second one is under way."""
    values = {metric.name: number(metric.value) for metric in metrics}
    found = next((value for name in names if (value := values.get(name)) is not None), None)
    return int(found) if found is not None and 0 <= found <= largest else None


def number(text: str) -> float | None:
    """None for what is no number, or none that one could compare."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _step(text: str) -> int:
    if not (
        text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_STEP)) and int(text) <= _LARGEST_STEP
    ):
        raise Unusable(f"A printed line names step={text[:32]}, which is no step: write a whole number.")
    return int(text)
