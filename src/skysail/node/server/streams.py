"""Streams by name: how exec, attach and port-forward see a user, whichever protocol carries them.

SPDY has real streams; over WebSockets a stream is a numbered channel. Both are these two Protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from aiohttp import web

STDIN, STDOUT, STDERR, ERROR, RESIZE = "stdin", "stdout", "stderr", "error", "resize"


class Stream(Protocol):
    async def read(self) -> bytes:
        """The next bytes; none when the peer has said all. Raises PeerGone where it left before that."""
        ...

    async def write(self, data: bytes) -> None:
        """Waits while the peer does not read. Raises PeerGone."""
        ...

    def finish(self) -> None:
        """Nothing more will be written. May be called twice, and after the peer has gone."""
        ...

    def discard(self) -> None:
        """Nothing more will be read: what waits is thrown away."""
        ...


class Connection(Protocol):
    """One user who runs one command, or is attached to one container."""

    @property
    def streams(self) -> Mapping[str, Stream]: ...

    @property
    def has_plain_status(self) -> bool:
        """Whether the error stream carries text, as in old protocols, and not a Status object."""
        ...

    async def gone(self) -> None:
        """Returns when the peer has left."""
        ...

    async def hang_up(self) -> web.StreamResponse:
        """Finish every stream and let the peer close first: closing on unread input would cut off our last bytes."""
        ...


def negotiate(request: web.Request, header: str, ours: Iterable[str]) -> str | None:
    """The first of the peer's protocols that is ours. It may send several headers, and lists in each."""
    ours = frozenset(ours)
    offers = (offer.strip() for value in request.headers.getall(header, []) for offer in value.split(","))
    return next((offer for offer in offers if offer in ours), None)


def requested_protocol(request: web.Request) -> str:
    return request.headers.get("Upgrade", "").lower()
