"""A TrainingJob as one line, or with a progress bar. Pure."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skysail.cli.diagnosis import main_condition, progress
from skysail.cli.durations import age, since
from skysail.kinds.training.api.training_job import TrainingJob

_COLUMNS = (("NAME", 32), ("FRAMEWORK", 12), ("WORKERS", 9), ("PHASE", 12), ("PROGRESS", 10), ("LEFT", 6), ("AGE", 0))
_BAR_WIDTH = 32
_FULL_PERCENT = 100
_COLORS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Restarting": "yellow", "Pending": "yellow"}


def _line(*words: str) -> str:
    padded = (f"{word:<{width - 1}} " if width else word for word, (_, width) in zip(words, _COLUMNS, strict=True))
    return "".join(padded).rstrip()


HEADER = _line(*(name for name, _ in _COLUMNS))


def format_row(job: TrainingJob, now: datetime) -> str:
    reported = job.status.progress
    percent = "" if reported is None or reported.percent is None else f"{reported.percent}%"
    left = None if reported is None else reported.estimated_remaining_seconds
    return _line(
        job.metadata.name,
        job.spec.framework,
        f"{_running(job)}/{job.spec.workers}",
        job.status.phase or "",
        percent,
        "" if left is None else age(left),
        _age(job, now),
    )


def strip_age(line: str) -> str:
    """Remove the age, to see whether anything else changed."""
    return line.rsplit(" ", 1)[0].rstrip()


def render(job: TrainingJob, now: datetime) -> RenderableType:
    phase, reported = job.status.phase or "not seen yet", job.status.progress
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(
        total=_FULL_PERCENT,
        completed=_done(job),
        width=_BAR_WIDTH,
        pulse=phase == "Running" and (reported is None or reported.percent is None),
        animation_time=now.timestamp(),
    )
    who = f"{_running(job)}/{job.spec.workers} workers, {_age(job, now)}"
    table.add_row(job.metadata.name, Text(phase, style=_COLORS.get(phase, "")), bar, who)
    message = progress(reported, now) if reported is not None else ""
    lines = [message, explanation(job)]
    return Group(table, *(Text(line) for line in lines if line))


def explanation(job: TrainingJob) -> str:
    """Return the message that explains the state of the job. Empty for a job that runs or has no status yet."""
    condition = main_condition(job)
    return "" if condition is None or job.status.phase == "Running" else condition.message


def _done(job: TrainingJob) -> float:
    if job.status.phase == "Succeeded":
        return _FULL_PERCENT
    reported = job.status.progress
    return 0 if reported is None else reported.percent or 0


def _running(job: TrainingJob) -> int:
    return sum(1 for worker in job.status.worker_statuses if worker.phase == "Running")


def _age(job: TrainingJob, now: datetime) -> str:
    made = job.metadata.creation_timestamp
    return since(made, now) if made else ""
