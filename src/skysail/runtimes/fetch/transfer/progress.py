"""Progress lines for users: one line of JSON per step, and one every five seconds during a download."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

_EVERY = 5.0
_UNITS = ("B", "kB", "MB", "GB", "TB")
_STEP = 1000


class Progress:
    """Byte count of a whole download, including bytes from earlier attempts (`found`)."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self.total: int | None = None
        self.bytes = 0
        self._found = 0
        self._began = self._reported = clock()

    def begin(self, total: int | None) -> None:
        self.total = total
        self._began = self._reported = self._clock()
        self.report(f"Downloading {in_units(total)}." if total else "Downloading.")

    def found(self, count: int) -> None:
        """Count bytes that need no download; negative if they turn out to be useless."""
        self.bytes += count
        self._found += count

    def came(self, count: int) -> None:
        self.bytes += count
        if self._clock() - self._reported >= _EVERY:
            self._reported = self._clock()
            self.report(in_units(self.bytes) + (f" of {in_units(self.total)}" if self.total else ""))

    def report(self, message: str) -> None:
        line = {"bytes": self.bytes, "total": self.total, "seconds_left": self._seconds_left(), "message": message}
        self._write(msgspec.json.encode(line).decode())

    def _seconds_left(self) -> int | None:
        came, seconds = self.bytes - self._found, self._clock() - self._began
        if self.total is None or came <= 0 or seconds <= 0:
            return None
        return round(max(0, self.total - self.bytes) * seconds / came)


def in_units(count: int | None) -> str:
    """Format a size, such as 12.3 MB."""
    value, units = float(count or 0), list(_UNITS)
    while value >= _STEP and len(units) > 1:
        value /= _STEP
        units.pop(0)
    return f"{value:.1f} {units[0]}" if units[0] != "B" else f"{count} B"
