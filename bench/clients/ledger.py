"""What a contestant did and when. Every contestant writes it at the same two points, so that figures compare."""

from __future__ import annotations

import asyncio
import time


class Ledger:
    """Used from one event loop."""

    def __init__(self, jobs: int) -> None:
        self.latencies: list[float] = []
        self.looks = 0
        self.all_content = asyncio.Event()
        self.all_answered = asyncio.Event()
        self._jobs = jobs
        self._expected = 0
        self._content: set[str] = set()
        self._unanswered: dict[str, list[float]] = {}

    def expect(self, events: int) -> None:
        """From now on, count: so many events are about to come."""
        self._expected = events
        self.latencies.clear()
        self.looks = 0
        self.all_answered.clear()

    def saw(self, job: str, sent: str | None) -> None:
        """An event reached the program. One without a time was not sent for being measured."""
        if sent is not None and self._expected:
            self._unanswered.setdefault(job, []).append(float(sent))

    def looked(self, job: str, *, is_content: bool) -> None:
        """A pass decided what this job needs. `is_content`: nothing."""
        self.looks += 1
        now = time.monotonic()
        self.latencies += [now - sent for sent in self._unanswered.pop(job, ())]
        if self._expected and len(self.latencies) >= self._expected:
            self.all_answered.set()
        if is_content:
            self._content.add(job)
            if len(self._content) == self._jobs:
                self.all_content.set()
