"""Ranges of host ids for pods: 65,536 ids each, from the span that systemd's table of ids leaves unused.

See https://systemd.io/UIDS-GIDS: 1879048192 to 2147352575 belongs to no user, container manager or service.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from skysail.cloud.errors import NoCapacity
from skysail.local.bubblewrap.user_namespace import SIZE

FIRST = 0x70000000
_END = 0x7FFE0000
_OWN_MAPS = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))
_SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))

Span = tuple[int, int]  # first id, number of ids


class IdRanges:
    """Allocates ranges in turn, so that a new pod does not get the ids of one that was just deleted.

    `seed` is where to begin: clusters on one machine with different seeds rarely use the same ids.
    """

    def __init__(self, taken: Iterable[Span] = (), seed: int = 0) -> None:
        every = range(FIRST, _END, SIZE)
        self._free = [first for first in every if not any(_overlap(first, span) for span in taken)]
        self._used: set[int] = set()
        self._next = seed

    def allocate(self) -> int:
        """Return the first id of a range. Raises NoCapacity if none is free."""
        for _ in self._free:
            first = self._free[self._next % len(self._free)]
            self._next += 1
            if first not in self._used:
                self._used.add(first)
                return first
        raise NoCapacity(f"All {len(self._free)} ranges of user ids are in use: delete some pods.")

    def release(self, first: int) -> None:
        self._used.discard(first)


def are_mapped(maps: Iterable[Path] = _OWN_MAPS) -> bool:
    """Return whether this process can assign the ids: root of a container often has only some of them."""
    return all(any(_covers(span) for span in _own_spans(path)) for path in maps)


def subordinate(files: Iterable[Path] = _SUBORDINATE) -> list[Span]:
    """Return the spans that an administrator gave to users, for example for rootless containers."""
    lines = [line.split(":") for path in files if path.exists() for line in path.read_text().splitlines()]
    return [(int(line[1]), int(line[2])) for line in lines if len(line) == 3 and "".join(line[1:]).isdigit()]  # noqa: PLR2004 (name, first, number)


def _own_spans(path: Path) -> list[Span]:
    rows = (line.split() for line in path.read_text().splitlines())
    return [(int(inside), int(number)) for inside, _, number in rows]


def _covers(span: Span) -> bool:
    return span[0] <= FIRST and span[0] + span[1] >= _END


def _overlap(first: int, span: Span) -> bool:
    return span[0] < first + SIZE and first < span[0] + span[1]
