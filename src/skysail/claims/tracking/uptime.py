"""Uptime of each launch as seen by this process, by the monotonic clock.

The time before this process started is not counted: the cloud enforces the whole deadline on its own.
"""

from __future__ import annotations

from collections.abc import Callable

from skysail.claims.types import CloudInstance


class Ages:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Deadline and the time when it was first seen, by claim.
        self._since: dict[str, tuple[str, float]] = {}

    def claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Track the deadline of the claim. Listener of the claim cache."""
        claim = new or old
        assert claim is not None, "old or new is set"
        name, deadline = claim.metadata.name, claim.status.deadline_time
        if new is None or deadline is None:
            self._since.pop(name, None)
        elif name not in self._since or self._since[name][0] != deadline:
            self._since[name] = (deadline, self._clock())

    def uptime(self, claim: str) -> float:
        """Return the seconds since the claim's deadline was first seen."""
        known = self._since.get(claim)
        return self._clock() - known[1] if known else 0.0
