"""A TrainingJob as one line, or with a progress bar. Pure."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skysail.cli.diagnosis import progress, sentence_of
from skysail.cli.durations import age, since
from skysail.kinds.training.api.training_job import TrainingJob

_COLUMNS = (("NAME", 32), ("FRAMEWORK", 12), ("WORKERS", 9), ("PHASE", 12), ("PROGRESS", 10), ("LEFT", 6), ("AGE", 0))
_BAR_WIDTH = 32
_WHOLE = 100
_COLORS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Restarting": "yellow", "Pending": "yellow"}


def _line(*words: str) -> str:
    padded = (f"{word:<{width - 1}} " if width else word for word, (_, width) in zip(words, _COLUMNS, strict=True))
    return "".join(padded).rstrip()


HEADER = _line(*(name for name, _ in _COLUMNS))


def row(job: TrainingJob, now: datetime) -> str:
    told = job.status.progress
    percent = "" if told is None or told.percent is None else f"{told.percent}%"
    left = None if told is None else told.estimated_remaining_seconds
    return _line(
        job.metadata.name,
        job.spec.framework,
        f"{_running(job)}/{job.spec.workers}",
        job.status.phase or "",
        percent,
        "" if left is None else age(left),
        _age(job, now),
    )


def without_age(line: str) -> str:
    """Remove the age, to see whether anything else changed."""
    return line.rsplit(" ", 1)[0].rstrip()


def drawn(job: TrainingJob, now: datetime) -> RenderableType:
    phase, told = job.status.phase or "not seen yet", job.status.progress
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(
        total=_WHOLE,
        completed=_done(job),
        width=_BAR_WIDTH,
        pulse=phase == "Running" and (told is None or told.percent is None),
        animation_time=now.timestamp(),
    )
    who = f"{_running(job)}/{job.spec.workers} workers, {_age(job, now)}"
    table.add_row(job.metadata.name, Text(phase, style=_COLORS.get(phase, "")), bar, who)
    said = progress(told, now) if told is not None else ""
    why = sentence_of(job)
    lines = [said, "" if why is None or phase == "Running" else why.message]
    return Group(table, *(Text(line) for line in lines if line))


def _done(job: TrainingJob) -> float:
    if job.status.phase == "Succeeded":
        return _WHOLE
    told = job.status.progress
    return 0 if told is None else told.percent or 0


def _running(job: TrainingJob) -> int:
    return sum(1 for worker in job.status.worker_statuses if worker.phase == "Running")


def _age(job: TrainingJob, now: datetime) -> str:
    made = job.metadata.creation_timestamp
    return since(made, now) if made else ""
