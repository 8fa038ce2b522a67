"""The fence: asked before every effect whether this process may still act.

A process that was paused for a minute wakes up in the middle of a pass and believes that it leads. The fence is the
last look at the clock before something is changed.
"""

from __future__ import annotations

from typing import Protocol


class Fenced(Exception):
    """This process may not act any more: drop the pass, another process does it."""


class Fence(Protocol):
    def check(self) -> None:
        """Raise `Fenced` unless this process leads. Never blocks."""
        ...


class Open:
    """A fence that lets everything pass: for a process that is alone by construction."""

    def check(self) -> None:
        return
