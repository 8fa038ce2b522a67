"""The first part: what the client costs. Each contestant runs the same course against a replay server of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from bench.clients.__main__ import CONTESTANTS
from bench.clients.measure import Answers, Figures
from bench.size import Size
from bench.table import Row

_TIMEOUT_SECONDS = 240


def run(size: Size, say: Callable[[str], None]) -> dict[str, Figures]:
    found = {}
    for contestant in CONTESTANTS:
        say(f"{contestant}: {size.jobs:,} TrainingJobs, {size.pods:,} pods, {size.events:,} events")
        with _server(size) as url:
            found[contestant] = _figures(contestant, url, size)
    return found


def rows(size: Size, found: dict[str, Figures]) -> list[Row]:
    """Each row is one question; less is better in all of them."""
    figures = list(found.values())
    return [
        Row(f"list and cache {size.jobs + size.pods:,} objects, s", [each.sync.seconds for each in figures]),
        Row("  processor time, s", [each.sync.cpu for each in figures]),
        Row(f"write {size.jobs:,} statuses, s", [each.write.seconds for each in figures]),
        Row("  processor time, s", [each.write.cpu for each in figures]),
        Row(f"event to decision at {size.rate:,}/s, p50, ms", [each.steady.p50 * 1000 for each in figures]),
        Row("  p99, ms", [each.steady.p99 * 1000 for each in figures]),
        Row("  processor time for 1,000 events, s", [_per_thousand(each.steady) for each in figures]),
        Row(f"answer {size.burst:,} events at once, s", [each.burst.cost.seconds for each in figures]),
        Row("  processor time for 1,000 events, s", [_per_thousand(each.burst) for each in figures]),
        Row("memory at the end, MB", [each.memory for each in figures]),
        Row("  at its highest, MB", [each.highest_memory for each in figures]),
    ]


def remarks(found: dict[str, Figures]) -> Iterator[str]:
    """What a reader has to know before he believes the table."""
    late = max(figures.steady.late for figures in found.values())
    yield f"At the steady rate the replay server itself was at most {late * 1000:.0f} ms behind its timetable."
    for contestant, figures in found.items():
        if figures.steady.answered < figures.steady.events:
            yield f"{contestant} had answered {figures.steady.answered:,} of the steady events when time was up."
        if figures.steady.is_saturated:
            yield f"{contestant} was saturated at the steady rate: its latencies grow with the length of the run."


def _per_thousand(answers: Answers) -> float:
    return answers.cost.cpu / answers.events * 1000


@contextmanager
def _server(size: Size) -> Iterator[str]:
    argv = [sys.executable, "-m", "bench.replay.server", msgspec.json.encode(size).decode()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None, "it is a pipe"
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _figures(contestant: str, url: str, size: Size) -> Figures:
    argv = [sys.executable, "-m", "bench.clients", contestant, url, msgspec.json.encode(size).decode()]
    done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=_TIMEOUT_SECONDS, check=True)
    return msgspec.json.decode(done.stdout, type=Figures)
