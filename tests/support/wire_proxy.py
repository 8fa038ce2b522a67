"""A recording proxy between an operator and the stand-in for Modal: it reads HTTP/2 frames, and names each RPC.

It lives in the test's process, in a thread with its own event loop. The operator needs no test hooks: its SDK gets
another address of the service. Frames are passed on unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from hpack import Decoder

from skysail.app import stand_ins
from skysail.base import unix_sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from types import TracebackType

    from tests.support.cluster import Cluster

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEAD = 9
_DATA, _HEADERS = 0, 1
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_TIMEOUT_SECONDS = 600.0
# RPCs that change nothing at the service.
_READS = (
    "List",
    "Wait",
    "Poll",
    "TagsGet",
    "GetLogs",
    "GetTaskId",
    "FromName",
    "Lookup",
    "Hello",
    "Access",
    "Heartbeat",
)
_READ_NAMES = frozenset(
    {
        *("AuthTokenGet", "EnvironmentGetOrCreate", "BlobGet", "ImageJoinStreaming", "SandboxGetTunnels"),
        *("AppGetByDeploymentName", "AppGetTags", "MountBatchedCheckExistence"),
        *("FunctionGet", "FunctionGetCallGraph", "FunctionCallFromId", "FunctionCallGetInfo", "ClusterGet"),
        *("AppFetchLogs", "AppCountLogs", "AppGetInfo", "AppGetLayout", "TaskGetInfo"),
    }
)

Moment = Literal["before", "done"]


def is_effect(rpc: str) -> bool:
    return rpc not in _READ_NAMES and not any(word in rpc for word in _READS)


class _Rule(msgspec.Struct):
    nth: int
    moment: Moment
    kill: Any


class Frame(msgspec.Struct, frozen=True):
    """One frame of HTTP/2 as it came, with the fields of its head."""

    type: int
    flags: int
    stream: int
    payload: bytes
    raw: bytes


class WireProxy:
    """`with WireProxy(cluster) as proxy:`, then start an operator with `proxy.env`.

    A killed operator hears nothing more, and nothing more of it is passed on.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._target = stand_ins.socket_file(cluster.home, "modal")
        self._path: Path = cluster.home.root / "wire.sock"
        self.env = {
            **stand_ins.environment(cluster.home, "modal"),
            "MODAL_SERVER_URL": f"unix://localhost{self._path}",
        }
        self.effects: list[str] = []
        self._rule: _Rule | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._serve())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill_at(self, nth: int, moment: Moment, kill: Callable[[], None]) -> None:
        """Kill the operator at the nth effect from now on: before the service gets it, or before the reply."""
        self._rule = _Rule(nth, moment, kill)

    def forget(self) -> None:
        self._rule = None

    def _run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_TIMEOUT_SECONDS)

    async def _serve(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, sock=unix_sockets.listen(self._path))

    async def _close(self) -> None:
        assert self._server is not None, "entered"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_Connection(self).carry(reader, writer, self._target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def due(self, rpc: str) -> _Rule | None:
        """Count an effect. Returns the rule if this is the effect at which the operator dies."""
        if not is_effect(rpc):
            return None
        self.effects.append(rpc)
        rule = self._rule
        if rule is None:
            return None
        rule.nth -= 1
        if rule.nth:
            return None
        self._rule = None
        return rule


class _Connection:
    """One connection of the SDK. `_dying` is the stream at whose reply the operator dies."""

    def __init__(self, proxy: WireProxy) -> None:
        self._proxy = proxy
        self._decoder = Decoder()
        self._dying: dict[int, _Rule] = {}

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError, _Killed):
            with unix_sockets.reachable(target) as name:
                upstream, downstream = await asyncio.open_unix_connection(name)
            with contextlib.closing(downstream):
                downstream.write(await reader.readexactly(len(_PREFACE)))
                ways = (self._requests(reader, downstream), self._replies(upstream, writer))
                tasks = [asyncio.ensure_future(way) for way in ways]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read(reader)
            if frame.type == _HEADERS:
                await self._begin(frame)
            writer.write(frame.raw)
            await writer.drain()

    async def _begin(self, frame: Frame) -> None:
        headers = dict(self._decoder.decode(_block(frame)))
        rpc = str(headers.get(":path", "")).rpartition("/")[2]
        rule = self._proxy.due(rpc) if rpc else None
        if rule is not None and rule.moment == "before":
            await _kill(rule)
        elif rule is not None:
            self._dying[frame.stream] = rule

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read(reader)
            is_reply = frame.type in {_DATA, _HEADERS}
            if is_reply and (rule := self._dying.pop(frame.stream, None)):
                await _kill(rule)
            writer.write(frame.raw)
            await writer.drain()


class _Killed(Exception):
    """The operator is dead; its connection ends here."""


async def _kill(rule: _Rule) -> None:
    await asyncio.to_thread(rule.kill)
    raise _Killed


async def _read(reader: asyncio.StreamReader) -> Frame:
    head = await reader.readexactly(_FRAME_HEAD)
    payload = await reader.readexactly(int.from_bytes(head[:3]))
    return Frame(head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF, payload, head + payload)


def _block(frame: Frame) -> bytes:
    """Return the encoded headers of a frame without padding and priority."""
    assert frame.flags & _END_HEADERS, "gRPC clients send headers in one frame"
    start = (1 if frame.flags & _PADDED else 0) + (5 if frame.flags & _PRIORITY else 0)
    end = len(frame.payload) - (frame.payload[0] if frame.flags & _PADDED else 0)
    return frame.payload[start:end]
