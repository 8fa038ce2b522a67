"""What every source can do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from ssl import SSLContext
from typing import Protocol

import msgspec

from skysail.runtimes.fetch.network.egress_proxy import Gate
from skysail.runtimes.fetch.network.http_client import Web

CHUNK = 2**20
# More files than this are no model, but a bucket that was named without its folder.
MOST_ITEMS = 100_000


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A file at the source. `key` is what the source knows it by; a `layer` is unpacked over those before it."""

    path: str
    key: str = ""
    size: int | None = None
    sha256: str = ""
    layer: bool = False


class Piece(msgspec.Struct, kw_only=True):
    """A file from `start` on. `mark` changes with its content; without one it cannot be resumed."""

    chunks: AsyncIterator[bytes]
    start: int
    total: int | None
    mark: str
    name: str = ""


class Source(Protocol):
    async def items(self) -> list[Item]:
        """All files, or as many as can be told before one is opened. Raises FetchError."""
        ...

    def open(self, item: Item, start: int, mark: str) -> AbstractAsyncContextManager[Piece]:
        """From `start` on if the mark is still that one, else from the beginning. Raises FetchError."""
        ...


async def nothing() -> AsyncIterator[bytes]:
    """The chunks of a file of which all has come."""
    chunks: tuple[bytes, ...] = ()
    for chunk in chunks:
        yield chunk


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What sources work with. `secrets` are the keys of the Secret; `claim` is where a volume is mounted."""

    web: Web
    gate: Gate
    trust: SSLContext
    secrets: Mapping[str, str]
    claim: Path | None = None
