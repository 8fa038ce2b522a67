"""Streams by name: the view of exec, attach and port-forward on a client, for any protocol.

SPDY has real streams; in a WebSocket, a stream is a numbered channel. Both implement these two Protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from aiohttp import web

STDIN, STDOUT, STDERR, ERROR, RESIZE = "stdin", "stdout", "stderr", "error", "resize"


class Stream(Protocol):
    async def read(self) -> bytes:
        """Return the next bytes; empty at the end. Raises PeerGone if the peer disconnected before the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write bytes; waits while the peer does not read. Raises PeerGone."""
        ...

    def finish(self) -> None:
        """End the writing side. Idempotent, even after the peer has disconnected."""
        ...

    def discard(self) -> None:
        """Drop unread bytes and ignore further ones."""
        ...


class Connection(Protocol):
    """Connection of one client that runs one command, or is attached to one container."""

    @property
    def streams(self) -> Mapping[str, Stream]: ...

    @property
    def has_plain_status(self) -> bool:
        """Return whether the error stream carries plain text, as in old protocols, instead of a Status object."""
        ...

    async def gone(self) -> None:
        """Wait until the peer has disconnected."""
        ...

    async def hang_up(self) -> web.StreamResponse:
        """End all streams and let the peer close first: to close with unread input would lose our last bytes."""
        ...


def negotiate(request: web.Request, header: str, ours: Iterable[str]) -> str | None:
    """Return the first of the peer's protocols that we support. The peer may send several headers with lists."""
    ours = frozenset(ours)
    offers = (offer.strip() for value in request.headers.getall(header, []) for offer in value.split(","))
    return next((offer for offer in offers if offer in ours), None)


def requested_protocol(request: web.Request) -> str:
    return request.headers.get("Upgrade", "").lower()
