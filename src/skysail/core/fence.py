"""The fence: asked before every effect whether this process may still act.

A process that was paused for a minute wakes up in the middle of a pass and believes that it leads. The fence is the
last look at the clock before something is changed.
"""

from __future__ import annotations

from typing import Protocol

from skysail.kube.client.errors import KubeError
from skysail.kube.client.transport import Reply, Request, Stream, Transport


class Fenced(KubeError):
    """This process may not act any more: drop the pass, another process does it. Nothing was written."""


class Fence(Protocol):
    def check(self) -> None:
        """Raise `Fenced` unless this process leads. Never blocks."""
        ...


class FencedTransport:
    """A connection over which only a process writes that leads."""

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
        """The connection is somebody else's."""


class Open:
    """A fence that lets everything pass: for a process that is alone by construction."""

    def check(self) -> None:
        return
