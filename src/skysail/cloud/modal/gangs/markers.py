"""Marker lines of the shim, by which a gang reports. Pure.

A program can forge them. That changes what is reported about its own gang, and nothing else: their length and their
number are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from skysail.runtimes.modal_gang.skysail_gang import MARK

# Raised in the shim when Modal takes a container away. A cancelled call raises another exception.
_INTERRUPTED = "KeyboardInterrupt"
_MAX_CODE = 255
# A longer line is output of the program. The shim writes fewer than 200 characters.
MAX_LENGTH = 1024
# Lines of one log entry that are read, and containers of one rank whose markers are kept.
_MAX_LINES = 1000
_MAX_CONTAINERS = 4


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


class MarkerSet:
    """Markers of one gang: of each container, rank and kind one, however often a program repeats it."""

    def __init__(self) -> None:
        self._markers: dict[tuple[str, int, str, bool], Marker] = {}

    def add(self, found: Iterable[Marker], *, size: int) -> None:
        """Add markers of a gang with `size` ranks: the first start and the last exit of each rank and container.

        Markers of other ranks are dropped, and so are those of more containers than a few per rank.
        """
        most = 3 * _MAX_CONTAINERS * max(1, size)
        for marker in found:
            key = (marker.kind, marker.rank, marker.task, marker.is_interrupted)
            known = self._markers.get(key)
            if known is None:
                is_kept = marker.rank < max(1, size) and len(self._markers) < most
            else:
                is_kept = (marker.at < known.at) == (marker.kind == "start")
            if is_kept:
                self._markers[key] = marker

    def sorted(self) -> tuple[Marker, ...]:
        return tuple(sorted(self._markers.values(), key=lambda mark: (mark.at, mark.rank)))


def split(line: str) -> tuple[str, str]:
    """Return the program's own part of a line, and the marker after it. A program may leave its last line open."""
    output, mark, rest = line.partition(MARK)
    return output, mark + rest


def parse(line: str, task: str, at: float) -> Marker | None:
    """Return the marker in a line, or None."""
    _, mark, text = line.partition(MARK)
    if not mark or len(text) > MAX_LENGTH:
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
    """Yield the markers of one log entry, which may have several lines. Those behind the first lines are not read."""
    for line in message.split("\n", _MAX_LINES)[:_MAX_LINES]:
        if (marker := parse(line, task, at)) is not None:
            yield marker
