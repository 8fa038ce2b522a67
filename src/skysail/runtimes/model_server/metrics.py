"""Prometheus metrics, and request counts of the last ten minutes for the CLI."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

import msgspec

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_SLOT_SECONDS = 10
_SLOTS = 60
_FAILED = 400


class Stats(msgspec.Struct, frozen=True):
    """Requests in each interval, oldest first; the last interval is still running."""

    interval_seconds: int
    requests: list[int]
    failed: list[int]


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        names = [f"{bound:g}" for bound in self._bounds] + ["+Inf"]
        for bound, count in zip(names, accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{le="{bound}"}} {count}'
        yield f"{name}_sum {self._sum!r}"
        yield f"{name}_count {sum(self._counts)}"


class Metrics:
    """Metrics of the server. They belong to one event loop."""

    def __init__(self, clock: Callable[[], float], about: Mapping[str, str]) -> None:
        self._clock = clock
        self._about = about
        self._requests = 0
        self._left = 0
        self._errors: dict[int, int] = {}
        self._seconds = Histogram(_SECONDS)
        self._rows = Histogram(_ROWS)
        self._slot = self._now()
        self._recent = [0] * _SLOTS
        self._recent_failed = [0] * _SLOTS

    def answered(self, status: int, seconds: float) -> None:
        self._requests += 1
        self._seconds.add(seconds)
        self._turn()
        self._recent[self._slot % _SLOTS] += 1
        if status >= _FAILED:
            self._errors[status] = self._errors.get(status, 0) + 1
            self._recent_failed[self._slot % _SLOTS] += 1

    def ran(self, rows: int) -> None:
        self._rows.add(rows)

    def left(self) -> None:
        self._left += 1

    def stats(self) -> Stats:
        self._turn()
        order = [(self._slot + 1 + place) % _SLOTS for place in range(_SLOTS)]
        return Stats(
            _SLOT_SECONDS,
            [self._recent[place] for place in order],
            [self._recent_failed[place] for place in order],
        )

    def page(self, *, waiting: int, ready: bool) -> bytes:
        """Return the metrics in Prometheus' text format."""
        about = ",".join(f'{key}="{_escaped(value)}"' for key, value in self._about.items())
        errors = [f'{{status="{status}"}} {count}' for status, count in sorted(self._errors.items())]
        lines = [
            *_metric_lines("inference_requests_total", "counter", "Prediction requests.", [f" {self._requests}"]),
            *_metric_lines("inference_errors_total", "counter", "Failed requests, by status.", errors),
            *_metric_lines(
                "inference_left_total",
                "counter",
                "Requests dropped because the client disconnected.",
                [f" {self._left}"],
            ),
            *_metric_lines("inference_queue_requests", "gauge", "Requests in the queue.", [f" {waiting}"]),
            *_metric_lines("inference_ready", "gauge", "Whether the model is ready.", [f" {int(ready)}"]),
            *_metric_lines("inference_model_info", "gauge", "The model.", [f"{{{about}}} 1"]),
            *_metric_lines("inference_request_seconds", "histogram", "Time from a request to its answer.", []),
            *self._seconds.lines("inference_request_seconds"),
            *_metric_lines("inference_batch_rows", "histogram", "Rows of one batch.", []),
            *self._rows.lines("inference_batch_rows"),
        ]
        return ("\n".join(lines) + "\n").encode()

    def _now(self) -> int:
        return int(self._clock() // _SLOT_SECONDS)

    def _turn(self) -> None:
        """Clear the slots of the time that has passed."""
        now = self._now()
        if now == self._slot:
            return
        for slot in range(max(self._slot + 1, now - _SLOTS + 1), now + 1):
            self._recent[slot % _SLOTS] = self._recent_failed[slot % _SLOTS] = 0
        self._slot = now


def _metric_lines(name: str, kind: str, meaning: str, values: list[str]) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *(f"{name}{value}" for value in values)]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
