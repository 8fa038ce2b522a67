"""Marker lines of the shim, by which a gang reports. Pure.

A program can forge them. That changes what is reported about its own gang, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from skysail.runtimes.modal_gang.skysail_gang import MARK

# Raised in the shim when Modal takes a container away. A cancelled call raises another exception.
_INTERRUPTED = "KeyboardInterrupt"
_MAX_CODE = 255


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """One marker. `task` is the container that printed it. `aborted`: the rank was stopped by the shim."""

    kind: Literal["start", "exit"]
    rank: int
    task: str
    at: float
    code: int = 0
    is_aborted: bool = False
    is_interrupted: bool = False


class _Line(msgspec.Struct, frozen=True):
    kind: str
    rank: int = -1
    code: int = 0
    aborted: bool = False
    cause: str = ""


def split(line: str) -> tuple[str, str]:
    """Return the program's own part of a line, and the marker after it. A program may leave its last line open."""
    output, mark, rest = line.partition(MARK)
    return output, mark + rest


def parse(line: str, task: str, at: float) -> Marker | None:
    """Return the marker in a line, or None."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        found = msgspec.json.decode(text.encode(), type=_Line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    if found.kind not in {"start", "exit"} or found.rank < 0:
        return None
    return Marker(
        kind="start" if found.kind == "start" else "exit",
        rank=found.rank,
        task=task,
        at=at,
        code=min(max(found.code, 0), _MAX_CODE),
        is_aborted=found.aborted,
        is_interrupted=found.cause == _INTERRUPTED,
    )


def of_entry(message: str, task: str, at: float) -> Iterator[Marker]:
    """Yield the markers of one log entry, which may have several lines."""
    for line in message.splitlines():
        if (marker := parse(line, task, at)) is not None:
            yield marker
