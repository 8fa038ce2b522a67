"""A reply that is read piece by piece, as a log is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.kube.client.transport import Reply


class Pieces:
    """The body of a reply, in pieces of so many bytes."""

    def __init__(self, reply: Reply, size: int = 1000) -> None:
        self._reply = reply
        self._size = size

    @property
    def status(self) -> int:
        return self._reply.status

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = self._reply.body
        for start in range(0, len(body), self._size):
            yield body[start : start + self._size]
