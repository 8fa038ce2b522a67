"""Files of a PVC (`pvc://name/path`) that is mounted in the pod."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument
from skysail.runtimes.fetch.network.uris import redact
from skysail.runtimes.fetch.sources.base import CHUNK, FileStream, SourceContext, SourceFile
from skysail.runtimes.fetch.unpack.paths import files_in


class PvcSource:
    def __init__(self, uri: str, context: SourceContext) -> None:
        if context.claim is None:
            raise InvalidArgument("NotFound", f"{redact(uri)} is on a PVC: name its mount path (--source).")
        self._uri = uri
        self._claim = context.claim.resolve()
        self._there = self._claim / unquote(urlsplit(uri).path).strip("/")

    async def items(self) -> list[SourceFile]:
        if not self._there.exists():
            raise InvalidArgument("NotFound", f"{redact(self._uri)} does not exist on the PVC: check the path.")
        if self._there.is_file():
            return [self._item(self._there, self._there.name)]
        return [self._item(self._there / path, str(path)) for path in files_in(self._there)]

    def _item(self, file: Path, path: str) -> SourceFile:
        if not file.resolve().is_relative_to(self._claim):
            raise AccessDenied(
                "AddressForbidden",
                f"{path} in {redact(self._uri)} is a link out of the PVC: replace it by the file itself.",
            )
        return SourceFile(path=path, key=str(file), size=file.stat().st_size)

    @asynccontextmanager
    async def open(self, source_file: SourceFile, start: int, mark: str) -> AsyncIterator[FileStream]:
        with Path(source_file.key).open("rb") as file:  # noqa: ASYNC230  # no other task needs the loop meanwhile
            stat = os.fstat(file.fileno())
            current = f"{stat.st_mtime_ns}-{stat.st_size}"
            start = start if mark == current else 0
            file.seek(start)
            yield FileStream(chunks=_chunks(file), start=start, total=stat.st_size, mark=current)


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
        await asyncio.sleep(0)
