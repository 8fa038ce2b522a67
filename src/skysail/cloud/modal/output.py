"""Output of a sandbox: both streams from their start to their end, over any number of broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import modal
import msgspec

from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors, internals, lifetime
from skysail.cloud.modal.internals import LogChunk, Stream
from skysail.cloud.modal.inventory import SandboxInventory
from skysail.cloud.provider import Output

_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
_RETRY_SECONDS = 1.0
_MAX_PENDING = 256
_STORED_ENTRIES = 20_000
_STORED_SECONDS = 60.0
# Number of bytes by which the place of a reader is found in the stored end of an output.
_MAX_END = 4096
# Entries of this time before the last reading may be unread: clocks differ, and a reader may be behind.
_UNREAD_SECONDS = 60.0

# How a reading of a stream ended: it has to be reopened, its sandbox is gone, or it was read to its end.
_ReadEnd = Literal["broken", "gone", "complete"]

log = logging.getLogger(__name__)


class _Place(msgspec.Struct, frozen=True):
    """A place in a stream: where Modal resumes, and the bytes before it. They are unknown in the middle of a stream.

    `at` is when the output before it was read, in seconds since 1970; 0 if none was. `end` are its last bytes.
    """

    position: str = ""
    offset: int | None = 0
    at: float = 0.0
    end: bytes = b""


class SandboxOutput:
    """Reads output. Keeps how far each stream was read, so that an attached user starts there."""

    def __init__(self, inventory: SandboxInventory, now: Callable[[], float] = time.time) -> None:
        self._inventory = inventory
        self._now = now
        self._positions: dict[tuple[str, Stream], str] = {}

    async def replay(self, sandbox_id: str) -> AsyncIterator[Output]:
        """Yield all output that Modal keeps, until both streams end."""
        async for piece in self._read(sandbox_id, dict.fromkeys(_STREAMS, _Place())):
            yield piece

    async def tail(self, sandbox_id: str) -> AsyncIterator[Output]:
        """Yield output from now on, as far as this process has read the streams."""
        start = {stream: _Place(self._positions.get((sandbox_id, stream), ""), None) for stream in _STREAMS}
        async for piece in self._read(sandbox_id, start):
            yield piece

    def keep(self, running: Collection[str]) -> None:
        """Forget the positions of all other sandboxes."""
        self._positions = {key: position for key, position in self._positions.items() if key[0] in running}

    async def _read(self, sandbox_id: str, start: dict[Stream, _Place]) -> AsyncIterator[Output]:
        queue: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_PENDING)
        async with contextlib.AsyncExitStack() as stack:
            sandbox = await self._open(sandbox_id, stack)
            tasks = [asyncio.ensure_future(self._copy(sandbox, stream, start[stream], queue)) for stream in _STREAMS]
            try:
                ended = 0
                while ended < len(tasks):
                    piece = await queue.get()
                    if piece is None:
                        ended += 1
                    else:
                        yield piece
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, sandbox_id: str, stack: contextlib.AsyncExitStack) -> modal.Sandbox:
        """Open the sandbox, for ever if Modal does not answer. Raises Gone if Modal does not have it."""
        while True:
            try:
                return await stack.enter_async_context(self._inventory.open(sandbox_id))
            except Gone:
                raise
            except ProviderError as error:
                log.debug("sandbox not opened for its output, retried", extra={"why": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _copy(
        self, sandbox: modal.Sandbox, stream: Stream, place: _Place, queue: asyncio.Queue[Output | None]
    ) -> None:
        try:
            end: _ReadEnd = "broken"
            while end == "broken":
                place, end = await self._copy_once(sandbox, stream, place, queue)
            if end == "gone" or not place.position:
                await self._copy_stored(sandbox, stream, place, queue)
        except Exception:
            await queue.put(None)
            raise
        await queue.put(None)

    async def _copy_stored(
        self, sandbox: modal.Sandbox, stream: Stream, place: _Place, queue: asyncio.Queue[Output | None]
    ) -> None:
        """Copy the stored output of a sandbox whose worker is gone, after the bytes that were read from the stream.

        If Modal returns only the end of a long output, the number of bytes before it is unknown.
        """
        try:
            async with asyncio.timeout(_STORED_SECONDS):
                entries = [entry async for entry in sandbox.logs.tail.aio(_STORED_ENTRIES, source=stream)]
        except (TimeoutError, *errors.SDK_ERRORS) as error:
            extra = {"instance": sandbox.object_id, "stream": stream, "why": errors.text(error)}
            log.warning("stored output of sandbox not read", extra=extra)
            return
        is_whole = len(entries) < _STORED_ENTRIES
        read, offset = (place.offset or 0) if is_whole else _bytes_read(entries, place), 0
        for entry in entries:
            data = entry.message.encode()
            unread, offset = data[max(0, read - offset) :], offset + len(data)
            if unread:
                before = offset - len(unread) if is_whole else None
                await queue.put(Output(stream, entry.timestamp.timestamp(), unread, before))

    async def _copy_once(
        self, sandbox: modal.Sandbox, stream: Stream, place: _Place, queue: asyncio.Queue[Output | None]
    ) -> tuple[_Place, _ReadEnd]:
        """Read until the stream ends or breaks. Returns where to resume, and how the reading ended."""
        chunks = internals.read_output(sandbox, stream, place.position)
        try:
            while True:
                chunk = await self._next(chunks, sandbox.object_id)
                if chunk is None:
                    return place, "gone" if await self._inventory.has_ended(sandbox.object_id) else "broken"
                offset = place.offset if chunk.start is None else chunk.start
                at = place.at
                if chunk.data:
                    at = self._now()
                    await queue.put(Output(stream, at, chunk.data, offset))
                read = None if offset is None else offset + len(chunk.data)
                end = (place.end + chunk.data)[-_MAX_END:]
                place = _Place(chunk.position or place.position, read, at, end)
                self._positions[sandbox.object_id, stream] = place.position
                if chunk.is_end:
                    return place, "complete"
        except errors.SDK_ERRORS as error:
            has_ended = await self._after_failure(sandbox.object_id, stream, error)
            return place, "gone" if has_ended else "broken"
        finally:
            with contextlib.suppress(*errors.SDK_ERRORS):
                await chunks.aclose()

    async def _next(self, chunks: AsyncGenerator[LogChunk, None], sandbox_id: str) -> LogChunk | None:
        """Return the next chunk, or None if the stream has to be reopened."""
        with contextlib.suppress(Gone):
            has_ended = partial(self._inventory.has_ended, sandbox_id, lifetime.LISTING_SECONDS)
            return await lifetime.while_running(anext(chunks, None), has_ended)
        return None

    async def _after_failure(self, sandbox_id: str, stream: Stream, error: BaseException) -> bool:
        """Wait before the stream is reopened. Returns whether it has ended with its sandbox."""
        extra = {"instance": sandbox_id, "stream": stream, "why": errors.text(error)}
        log.debug("output of sandbox interrupted, reopened", extra=extra)
        await asyncio.sleep(_RETRY_SECONDS)
        return isinstance(errors.of_read(error), Gone) and await self._inventory.has_ended(sandbox_id)


def _bytes_read(entries: list[Any], place: _Place) -> int:
    """Return how many bytes of the stored end of an output were read before.

    The first match of the last bytes that were read decides, without a match the time: a repeated line is better than
    a lost one.
    """
    messages = [(entry.timestamp.timestamp(), entry.message.encode()) for entry in entries]
    begin = b"".join(data for _, data in messages).find(place.end) if place.end else -1
    if begin >= 0:
        return begin + len(place.end)
    return sum(len(data) for _, data in takewhile(lambda message: message[0] <= place.at - _UNREAD_SECONDS, messages))
