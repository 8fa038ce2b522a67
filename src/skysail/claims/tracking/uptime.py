"""How long each launch has lived before the eyes of this process, by a clock that nobody can set.

What it lived before that is not known here. The cloud keeps the deadline too, and does know.
"""

from __future__ import annotations

from collections.abc import Callable

from skysail.claims.types import CloudInstance


class Ages:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By claim: its deadline, and when that was first seen.
        self._since: dict[str, tuple[str, float]] = {}

    def claim_changed(self, old: CloudInstance | None, new: CloudInstance | None) -> None:
        """Given to the cache of claims as a listener."""
        claim = new or old
        assert claim is not None, "a change has a before or an after"
        name, deadline = claim.metadata.name, claim.status.deadline_time
        if new is None or deadline is None:
            self._since.pop(name, None)
        elif name not in self._since or self._since[name][0] != deadline:
            self._since[name] = (deadline, self._clock())

    def lived(self, claim: str) -> float:
        """Seconds since its deadline was first seen."""
        known = self._since.get(claim)
        return self._clock() - known[1] if known else 0.0
