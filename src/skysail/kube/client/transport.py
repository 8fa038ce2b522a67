"""The seam below every client: one request in, one reply or one stream out.

The real one is `kube/http.py`; the simulation's API model implements the same two methods. A transport raises
`Unreachable` or `ReplyLost` and nothing else; an HTTP error is a reply like any other.
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
    """What goes to the server. `path` starts with a slash and is already percent-encoded."""

    method: str
    path: str
    query: Mapping[str, str] = NO_MAPPING
    headers: Mapping[str, str] = NO_MAPPING
    body: bytes | None = None

    @property
    def is_mutating(self) -> bool:
        return self.method not in {"GET", "HEAD", "OPTIONS"} and "dryRun" not in self.query


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = NO_MAPPING


class Stream(Protocol):
    """An open watch: used with `async with`, iterated by chunks of any size.

    The end of the iteration is a normal end by the server; a broken connection raises `ReplyLost`.
    """

    @property
    def status(self) -> int: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class Transport(Protocol):
    """May be used by many tasks at once; holds no state that a caller could see."""

    async def send(self, request: Request) -> Reply:
        """Perform one request and read its whole reply."""
        ...

    async def open(self, request: Request) -> Stream:
        """Start a request whose reply has no end. The status is known, the body is read by iterating."""
        ...

    async def close(self) -> None:
        """Let go of every connection. May be called twice."""
        ...
