"""Report of a pod: progress and complete checkpoints. Pure.

The body follows the progress protocol of Kubeflow Trainer, so that its clients work unchanged; `checkpoint` is an
extension. A program that sends no requests, such as one at a cloud, prints lines instead: `skysail-checkpoint step=120
path=/checkpoints/120` and `skysail-progress {"trainerStatus": {"progressPercentage": 42}}`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from skysail.kinds.training.api.training_job import (
    EPOCH_METRICS,
    STEP_METRICS,
    LatestCheckpoint,
    Metric,
    Progress,
    TrainingJob,
    first_number,
)
from skysail.kinds.training.children.volumes import checkpoint_claim_name, checkpoint_directory, is_within
from skysail.kube.api import fields

MARK = "skysail-checkpoint "
PROGRESS_MARK = "skysail-progress "
_MAX_EPOCH = 2**31 - 1
_MAX_STEP = 2**53 - 1
_MAX_METRICS = 64
# Limit of the status schema.
_MAX_PATH_LENGTH = 4096
_PATH_EXCERPT_LENGTH = 100


class InvalidReport(Exception):
    """Invalid report. The message is for the author of the training program."""


class TrainerStatus(fields.ApiStruct, frozen=True, kw_only=True):
    """Part of Trainer's protocol. Its time is ignored, because clocks of pods may be wrong."""

    progress_percentage: Annotated[int, Meta(ge=0, le=100)] | None = None
    estimated_remaining_seconds: fields.Seconds | None = None
    metrics: Annotated[tuple[Metric, ...], Meta(max_length=_MAX_METRICS)] = ()
    last_updated_time: fields.ShortText | None = None


class _BareStatus(TrainerStatus, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trainer's status without the field around it."""


class SavedCheckpoint(fields.ApiStruct, frozen=True, kw_only=True):
    """Checkpoint to resume from."""

    path: Annotated[fields.Path, Meta(min_length=1)]
    step: fields.Generation | None = None


class RequestBody(fields.ApiStruct, frozen=True, kw_only=True):
    """Body of a request."""

    trainer_status: TrainerStatus | None = None
    checkpoint: SavedCheckpoint | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Values to write into the status. A later report is merged over an earlier one."""

    progress: Progress | None = None
    checkpoint: LatestCheckpoint | None = None

    def followed_by(self, later: Report) -> Report:
        return Report(progress=merge(self.progress, later.progress), checkpoint=later.checkpoint or self.checkpoint)


def parse(body: bytes) -> RequestBody:
    """Decode the body. Raises InvalidReport with the error and its field."""
    try:
        parsed = msgspec.json.decode(body, type=RequestBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidReport(
            f"The report is invalid: {error}. Send JSON such as "
            '{"trainerStatus": {"progressPercentage": 42}} or {"checkpoint": {"path": "/checkpoints/120"}}.'
        ) from error
    if parsed.trainer_status is None and parsed.checkpoint is None:
        raise InvalidReport("The report is empty: set `trainerStatus`, `checkpoint` or both.")
    return parsed


def parse_progress_line(text: str) -> RequestBody | None:
    """Return the body of a printed line, or None for any other line. Raises InvalidReport.

    Text such as a logger prefix may come first. Trainer's status may be the whole body.
    """
    previous, mark, body = text.partition(PROGRESS_MARK)
    if not mark or (previous and previous[-1].isalnum()):
        return None
    try:
        return parse(body.encode())
    except InvalidReport:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            return RequestBody(trainer_status=msgspec.json.decode(body, type=_BareStatus))
        raise


def report(job: TrainingJob, request_body: RequestBody, at: str, provider: str = "") -> Report:
    """Return the report of a pod at `provider`, or in the cluster.

    Raises InvalidReport for a checkpoint that a later attempt could not find.
    """
    trainer = request_body.trainer_status
    checkpoint = request_body.checkpoint
    return Report(
        progress=None if trainer is None else _progress(trainer),
        checkpoint=None if checkpoint is None else to_status(job, checkpoint, at, provider),
    )


def parse_log_line(text: str) -> SavedCheckpoint | None:
    """Return the checkpoint of a printed line, or None for any other line.

    Text such as a logger prefix may come first.
    """
    previous, mark, words = text.rpartition(MARK)
    if not mark or (previous and previous[-1].isalnum()):
        return None
    values = dict(word.split("=", 1) for word in words.split() if "=" in word)
    step, path = values.get("step"), values.get("path", "")
    if not path:
        raise InvalidReport(f"The line has no path: write `{MARK}step=120 path=/checkpoints/120`.")
    return SavedCheckpoint(path=path, step=None if step is None else _step(step))


def to_status(job: TrainingJob, checkpoint: SavedCheckpoint, at: str, provider: str = "") -> LatestCheckpoint:
    """Return the checkpoint for the status. `provider` is the cloud whose volume contains it.

    Raises InvalidReport for a path outside the volume, which is lost with the pod.
    """
    directory = checkpoint_directory(job.spec)
    if len(checkpoint.path) > _MAX_PATH_LENGTH:
        raise InvalidReport(
            f"The checkpoint path {checkpoint.path[:_PATH_EXCERPT_LENGTH]}… has {len(checkpoint.path)} characters, "
            "more than "
            f"{_MAX_PATH_LENGTH}: save the checkpoint under a shorter path."
        )
    if not directory:
        raise InvalidReport(
            f"The checkpoint {checkpoint.path} would be lost with its pod, because this TrainingJob has no volume for "
            "checkpoints: set spec.checkpointDir."
        )
    if not is_within(checkpoint.path, directory):
        raise InvalidReport(
            f"The checkpoint {checkpoint.path} is outside spec.checkpointDir ({directory}): save it below that "
            "directory, where the next attempt finds it."
        )
    claim = None if provider else checkpoint_claim_name(job)
    return LatestCheckpoint(
        path=checkpoint.path, step=checkpoint.step, save_time=at, claim_name=claim, provider=provider
    )


def merge(previous: Progress | None, after: Progress | None) -> Progress | None:
    """Return `after` merged over `previous`: the last report of a training often contains only part of the values."""
    if previous is None or after is None:
        return after or previous
    changes = {field: value for field in after.__struct_fields__ if (value := getattr(after, field)) not in (None, ())}
    metrics = {metric.name: metric for metric in (*previous.metrics, *after.metrics)}
    # Keeps the newest metrics, so that generated names do not grow the status.
    newest = sorted(metrics.values(), key=lambda metric: metric in after.metrics)[-_MAX_METRICS:]
    return msgspec.structs.replace(previous, **{**changes, "metrics": tuple(newest)})


def _progress(trainer: TrainerStatus) -> Progress:
    return Progress(
        percent=trainer.progress_percentage,
        epoch=_whole(trainer.metrics, EPOCH_METRICS, _MAX_EPOCH),
        step=_whole(trainer.metrics, STEP_METRICS, _MAX_STEP),
        estimated_remaining_seconds=trainer.estimated_remaining_seconds,
        metrics=trainer.metrics,
    )


def _whole(metrics: Iterable[Metric], names: tuple[str, ...], largest: int) -> int | None:
    """Return the first of these metrics that is a number, rounded down: after 1.5 epochs the epoch is 1."""
    found = first_number(metrics, names)
    return int(found) if found is not None and 0 <= found <= largest else None


def _step(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_STEP)) and int(text) <= _MAX_STEP):
        raise InvalidReport(
            f"The line has step={text[:32]}, which is not a whole number: write one, or remove the step."
        )
    return int(text)
