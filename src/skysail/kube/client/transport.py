"""Transport interface of the client: one request in, one reply or one stream out.

`http_transport.py` is the real transport; the API model of the simulation implements the same methods. A transport
raises only `Unreachable` or `ReplyLost`: an HTTP error is an ordinary reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import msgspec

JSON = "application/json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

NO_MAPPING: Mapping[str, str] = {}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP request. `path` starts with a slash and is already percent-encoded."""

    method: str
    path: str
    query: Mapping[str, str] = NO_MAPPING
    headers: Mapping[str, str] = NO_MAPPING
    body: bytes | None = None

    @property
    def is_mutating(self) -> bool:
        return self.method not in {"GET", "HEAD", "OPTIONS"} and "dryRun" not in self.query


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """HTTP reply. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = NO_MAPPING


class Stream(Protocol):
    """Open stream: used with `async with`, yields chunks of any size.

    The iteration ends when the server closes the stream. A broken connection raises `ReplyLost`.
    """

    @property
    def status(self) -> int: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Transport(Protocol):
    """Transport that many tasks can use at once. Callers see no state."""

    async def send(self, request: Request) -> Reply:
        """Send one request and read its whole reply."""
        ...

    async def open(self, request: Request) -> Stream:
        """Start a request with a streaming reply. Its status is known; iterate to read the body."""
        ...

    async def close(self) -> None:
        """Close all connections. May be called twice."""
        ...
