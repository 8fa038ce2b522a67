"""Fence: check before every effect that this process still holds its lease.

A process that was paused for a minute resumes in the middle of a reconcile and believes that it leads. The fence checks
the clock right before each write.
"""

from __future__ import annotations

from typing import Protocol

from skysail.kube.client.errors import KubeError
from skysail.kube.client.transport import Reply, Request, Stream, Transport


class Fenced(KubeError):
    """This process may not write: drop the reconcile. Nothing was written, and the next reconcile repeats it."""


class Fence(Protocol):
    def check(self) -> None:
        """Raise `Fenced` unless this process leads. Never blocks."""
        ...


class FencedTransport:
    """Transport that rejects writes unless this process leads."""

    def __init__(self, inner: Transport, fence: Fence) -> None:
        self._inner = inner
        self._fence = fence

    async def send(self, request: Request) -> Reply:
        if request.is_mutating:
            self._fence.check()
        return await self._inner.send(request)

    async def open(self, request: Request) -> Stream:
        return await self._inner.open(request)

    async def close(self) -> None:
        """Do nothing: the inner transport has its own owner."""


class AlwaysLeader:
    """Fence that allows everything, for a process that is the only writer by construction."""

    def check(self) -> None:
        return
