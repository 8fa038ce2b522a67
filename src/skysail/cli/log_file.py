"""A log file on disk, followed across its rotation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class LogFileFollower:
    """Reads the new lines of one log file: from its current end, or `from_start`."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._file = path.open("rb")
        self._partial_line = b""
        if not from_start:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[str]:
        """Yield the lines completed since the last call. An incomplete line or character is kept for the next call."""
        while True:
            *lines, self._partial_line = (self._partial_line + self._file.read()).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if not self._is_rotated():
                return
            self._file.close()
            self._file = self._path.open("rb")

    def close(self) -> None:
        self._file.close()

    def _is_rotated(self) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:  # between the rotation and the first new line
            return False
