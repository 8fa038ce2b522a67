"""Partial file: its content, mark and hash. All but the hash survives a crash."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = 2**20


class PartialFile:
    """Partial file, open inside `async with`. The mark is written before the first byte of its content."""

    def __init__(self, file: Path, mark: Path) -> None:
        self._path = file
        self._mark = mark
        self._hash = hashlib.sha256()
        self.have = 0

    async def __aenter__(self) -> Self:
        for path in (self._path, self._mark):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a+b")
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._hash.update(chunk)
            self.have += len(chunk)
            await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def mark(self) -> str:
        return self._mark.read_text("utf-8") if self._mark.exists() else ""

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def begin(self, mark: str) -> None:
        """Start again, with content of this mark."""
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.have = 0
        self._mark.write_text(mark, "utf-8")

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._hash.update(chunk)
        self.have += len(chunk)
