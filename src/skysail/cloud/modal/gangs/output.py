"""Output of the ranks of a gang, from the log of its call.

Modal has one log for all containers of a call, and no position from which to read on. After a broken connection the
log is read again from its beginning, and what was delivered before is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

import modal
import msgspec
from modal.types import LogEntry

from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors, lifetime
from skysail.cloud.modal.gangs import markers
from skysail.cloud.modal.gangs.inventory import Gang, GangInventory
from skysail.cloud.provider import Output

_RETRY_SECONDS = 1.0
# How often the stored log is read for lines that arrive after the end of the call.
_LAST_READS = 3
# A line that is longer is delivered in parts, so that one without an end costs no memory.
_MAX_LINE = 64 * 1024
# Output of containers whose rank is not known yet, in characters.
_MAX_UNASSIGNED = 1024 * 1024

Stream = Literal["stdout", "stderr"]
_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")

log = logging.getLogger(__name__)


class _Source(msgspec.Struct):
    """One stream of one container. `delivered` is how much of it was read; `read` how much of the current reading.

    `rest` is a line that has not ended. `is_over`: its end was marked, and what follows is the SDK's own.
    """

    stream: Stream
    delivered: int = 0
    read: int = 0
    rest: str = ""
    is_over: bool = False


class RankLines:
    """Cuts the log of a call into the lines of one rank, or of all ranks with their number in front."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._sources: dict[tuple[str, Stream], _Source] = {}
        self._ranks: dict[str, int] = {}
        self._unassigned: dict[str, list[Output]] = defaultdict(list)
        self._unassigned_size = 0
        self._offsets: dict[Stream, int] = dict.fromkeys(_STREAMS, 0)

    def is_complete(self) -> bool:
        """Return whether the wanted ranks have marked the end of both streams."""
        mine = [source for (task, _), source in self._sources.items() if self._is_wanted(self._ranks.get(task))]
        return len(mine) > 1 and all(source.is_over for source in mine)

    def restart(self) -> None:
        """Prepare for a reading from the beginning."""
        for source in self._sources.values():
            source.read = 0

    def add(self, entry: LogEntry) -> Iterator[Output]:
        """Yield new lines of the wanted ranks."""
        if entry.source not in _STREAMS:
            return
        task, at = entry.context_ids[-1] if entry.context_ids else "", entry.timestamp.timestamp()
        source = self._sources.setdefault((task, entry.source), _Source(entry.source))
        skipped = max(0, min(len(entry.message), source.delivered - source.read))
        source.read += len(entry.message)
        source.delivered = max(source.delivered, source.read)
        *lines, source.rest = (source.rest + entry.message[skipped:]).split("\n")
        for line in lines:
            yield from self._line(task, source, f"{line}\n", at)
        if len(source.rest) > _MAX_LINE:
            # Keep the end: it may be the begin of a marker.
            part, source.rest = source.rest[: -2 * markers.MAX_LENGTH], source.rest[-2 * markers.MAX_LENGTH :]
            yield from self._part(task, source, part, at)

    def end(self) -> Iterator[Output]:
        """Yield lines that have no end, and the output of containers that never became a rank."""
        for (task, _), source in self._sources.items():
            if source.rest:
                yield from self._line(task, source, source.rest, datetime.now(UTC).timestamp())
                source.rest = ""
        if self._is_wanted(0):
            for waiting in self._unassigned.values():
                yield from waiting
        self._unassigned.clear()

    def _line(self, task: str, source: _Source, line: str, at: float) -> Iterator[Output]:
        if source.is_over:
            return
        text, mark = markers.split(line)
        marker = markers.parse(mark, task, at)
        if marker is None:
            text = line
        elif marker.kind == "start":
            self._ranks.setdefault(task, marker.rank)
            yield from self._assigned(task)
        else:
            source.is_over = True
        if text:
            yield from self._output(task, Output(source.stream, at, text.encode()))

    def _part(self, task: str, source: _Source, text: str, at: float) -> Iterator[Output]:
        """Yield a part of a line, which is no marker because a marker is short."""
        if not source.is_over:
            yield from self._output(task, Output(source.stream, at, text.encode()))

    def _assigned(self, task: str) -> Iterator[Output]:
        for waiting in self._unassigned.pop(task, ()):
            self._unassigned_size -= len(waiting.data)
            yield from self._output(task, waiting)

    def _output(self, task: str, piece: Output) -> Iterator[Output]:
        rank = self._ranks.get(task)
        if rank is None:
            if self._unassigned_size < _MAX_UNASSIGNED:
                self._unassigned[task].append(piece)
                self._unassigned_size += len(piece.data)
        elif self._rank is None:
            yield Output(piece.stream, piece.at, f"[{rank}] ".encode() + piece.data)
        elif self._rank == rank:
            offset = self._offsets[piece.stream]
            self._offsets[piece.stream] += len(piece.data)
            yield Output(piece.stream, piece.at, piece.data, offset)

    def _is_wanted(self, rank: int | None) -> bool:
        return rank is not None and self._rank in {None, rank}


class GangOutput:
    """Reads the output of gangs."""

    def __init__(self, inventory: GangInventory) -> None:
        self._inventory = inventory

    async def replay(self, gang_id: str, rank: int) -> AsyncIterator[Output]:
        """Yield all output of a rank until the gang ends. The ranks of one pod are read together.

        Raises Gone if Modal does not have the gang.
        """
        gang, call = await self._open(gang_id)
        if call is None:
            return
        lines = RankLines(None if gang.tags.is_one_pod else rank)
        async for entry in self._entries(call, gang, lines):
            for piece in lines.add(entry):
                yield piece
        for piece in lines.end():
            yield piece

    async def _entries(self, call: modal.FunctionCall[None], gang: Gang, lines: RankLines) -> AsyncIterator[LogEntry]:
        """Yield the log as often as needed: live until the gang ends, then as it is stored."""
        while not lines.is_complete() and not await self._has_ended(gang):
            lines.restart()
            async for entry in self._follow(call, gang):
                yield entry
        for _ in range(_LAST_READS):
            if lines.is_complete():
                return
            lines.restart()
            async for entry in self._stored(call, gang):
                yield entry
            await asyncio.sleep(0.0 if lines.is_complete() else _RETRY_SECONDS)

    async def _open(self, gang_id: str) -> tuple[Gang, modal.FunctionCall[None] | None]:
        """Find the call of a gang, for ever if Modal does not answer."""
        while True:
            try:
                gang = await self._inventory.require(gang_id)
                if gang.tags.call or gang.state.exit or gang.ended:
                    return gang, await self._inventory.call(gang)
                await self._inventory.get(gang_id)
            except Gone:
                raise
            except ProviderError as error:
                log.debug("gang not opened for its output, retried", extra={"instance": gang_id, "why": str(error)})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, call: modal.FunctionCall[None], gang: Gang) -> AsyncIterator[LogEntry]:
        """Yield the entries of the log from its beginning, until it ends or breaks."""
        entries = call.logs.stream.aio()
        try:
            while (entry := await self._next(entries, gang)) is not None:
                yield entry
        except errors.SDK_ERRORS as error:
            log.debug("log of a gang interrupted, reopened", extra={"instance": gang.id, "why": errors.text(error)})
            await asyncio.sleep(_RETRY_SECONDS)
        finally:
            with contextlib.suppress(*errors.SDK_ERRORS):
                await entries.aclose()

    async def _next(self, entries: AsyncGenerator[LogEntry, None], gang: Gang) -> LogEntry | None:
        """Return the next entry, or None if the log has ended or has to be reopened."""
        with contextlib.suppress(Gone):
            return await lifetime.while_running(anext(entries, None), partial(self._has_ended, gang))
        return None

    async def _stored(self, call: modal.FunctionCall[None], gang: Gang) -> AsyncIterator[LogEntry]:
        """Yield the stored entries of the log."""
        since = datetime.fromtimestamp(gang.tags.created, UTC) - timedelta(minutes=2)
        try:
            async for entry in call.logs.fetch.aio(since=since, until=datetime.now(UTC) + timedelta(minutes=2)):
                yield entry
        except errors.SDK_ERRORS as error:
            log.debug("stored log of a gang not read", extra={"instance": gang.id, "why": errors.text(error)})

    async def _has_ended(self, gang: Gang) -> bool:
        """Return whether the gang has ended. An unknown state does not end its output."""
        try:
            await self._inventory.refresh(gang)
        except ProviderError:
            return False
        return gang.state.exit is not None or gang.ended_seen is not None or gang.ended is not None
