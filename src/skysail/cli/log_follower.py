"""Follower of one log file, across its rotation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class Follower:
    """Starts at the end of the file, or at its start if the file does not exist yet."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._file = path.open("rb")
        self._begun = b""
        if not from_start:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[str]:
        """Return the lines completed since the last call. An incomplete line or character is kept for the next call."""
        while True:
            *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
            for line in whole:
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
        except FileNotFoundError:  # between its rotation and the first new line
            return False
