"""Interface of sources."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from ssl import SSLContext
from typing import Protocol

import msgspec

from skysail.runtimes.fetch.network.egress_proxy import EgressProxy
from skysail.runtimes.fetch.network.http_client import HttpClient

CHUNK = 2**20
# A source with more files is probably a bucket whose URI lacks the folder of the model.
MAX_FILES = 100_000


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """File at a source. `key` identifies it there; a `layer` is unpacked over the previous ones."""

    path: str
    key: str = ""
    size: int | None = None
    sha256: str = ""
    layer: bool = False


class FileStream(msgspec.Struct, kw_only=True):
    """Content of a file from `start` on. `mark` changes with the content; without a mark it cannot be resumed."""

    chunks: AsyncIterator[bytes]
    start: int
    total: int | None
    mark: str
    name: str = ""


class Source(Protocol):
    async def items(self) -> list[SourceFile]:
        """List all files, as far as they are known before one is opened. Raises FetchError."""
        ...

    def open(self, source_file: SourceFile, start: int, mark: str) -> AbstractAsyncContextManager[FileStream]:
        """Open the file at `start` if the mark is unchanged, else at the beginning. Raises FetchError."""
        ...


async def nothing() -> AsyncIterator[bytes]:
    """Yield the chunks of a file that is already complete: none."""
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


class SourceContext(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of sources. `secrets` are the keys of the Secret; `claim` is the mount path of the PVC."""

    web: HttpClient
    gate: EgressProxy
    trust: SSLContext
    secrets: Mapping[str, str]
    claim: Path | None = None
