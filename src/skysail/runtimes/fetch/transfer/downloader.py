"""Download of all files of a source: resumed after an interruption or crash, counted, limited and hashed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from skysail.runtimes.fetch.errors import Changed, FetchError, MayPass, WrongContent
from skysail.runtimes.fetch.sources.base import MOST_ITEMS, Item, Source
from skysail.runtimes.fetch.transfer.disk_space import Room
from skysail.runtimes.fetch.transfer.partial_file import Sink
from skysail.runtimes.fetch.transfer.progress import Progress, in_units
from skysail.runtimes.fetch.transfer.retry import Patience
from skysail.runtimes.fetch.unpack.paths import below

_AT_ONCE = 4


class Received(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str
    layer: bool = False


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """Download of a source. `raw` gets the files, `marks` the state for resuming. `patience` creates a retry budget."""

    source: Source
    raw: Path
    marks: Path
    limit: int
    room: Room
    progress: Progress
    patience: Callable[[], Patience]

    async def all(self) -> list[Received]:
        items = await self.patience().insist(self.source.items)
        self._check(items)
        self.progress.begin(_sum_of_sizes(items))
        turns = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._in_turn(item, turns)) for item in items]
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        received = [task.result() for task in tasks]
        if not sum(one.size for one in received):
            raise _empty()
        return received

    def _check(self, items: list[Item]) -> None:
        """Check all that is known before the download, so that users do not wait an hour for an error."""
        if not items:
            raise _empty()
        if len(items) > MOST_ITEMS:
            raise WrongContent(
                "TooLarge", f"The address has more than {MOST_ITEMS} files: name the folder of the model."
            )
        if len({below(self.raw, item.path) for item in items}) < len(items):
            raise WrongContent("UnsupportedFormat", "Two files of the model have the same path: rename one of them.")
        total = _sum_of_sizes(items)
        if total is None:
            return
        if total > self.limit:
            raise too_large(total, self.limit)
        self.raw.mkdir(parents=True, exist_ok=True)
        there = sum(path.stat().st_size for path in self.raw.rglob("*") if path.is_file())
        self.room.check(total, there)

    async def _in_turn(self, item: Item, turns: asyncio.Semaphore) -> Received:
        async with turns, Sink(below(self.raw, item.path), below(self.marks, item.path)) as sink:
            self.progress.found(sink.have)
            arrival = _Arrival(sink.have, self.patience())
            while not await self._is_done(item, sink, arrival):
                pass
            self._verify(item, sink)
            return Received(item.path, sink.have, sink.sha256, item.layer)

    async def _is_done(self, item: Item, sink: Sink, arrival: _Arrival) -> bool:
        """Try once to download the missing part."""
        try:
            await self._bring(item, sink, arrival)
        except MayPass as error:
            if isinstance(error, Changed):
                self._begin(sink, "")
            await arrival.patience.bear(error)
            return False
        return True

    async def _bring(self, item: Item, sink: Sink, arrival: _Arrival) -> None:
        async with self.source.open(item, sink.have, sink.mark) as piece:
            if piece.start != sink.have or piece.mark != sink.mark:
                if piece.start:
                    raise Changed(item.path)
                self._begin(sink, piece.mark)
            async for chunk in piece.chunks:
                sink.write(chunk)
                arrival.reached(sink.have)
                self.progress.came(len(chunk))
                self.room.keep()
                if self.progress.bytes > self.limit:
                    raise too_large(self.progress.bytes, self.limit)
            if piece.total is not None and sink.have < piece.total:
                raise MayPass("Unreachable", f"The download of {item.path} was cut off after {in_units(sink.have)}.")

    def _begin(self, sink: Sink, mark: str) -> None:
        self.progress.found(-sink.have)
        sink.begin(mark)

    def _verify(self, item: Item, sink: Sink) -> None:
        if not item.sha256 or item.sha256 == sink.sha256:
            return
        came = sink.sha256
        self._begin(sink, "")
        raise MayPass(
            "ServerError",
            f"{item.path} was damaged during the download: its sha256 is {came} instead of {item.sha256}.",
        )


class _Arrival:
    """Highest position reached in a file. A server that cuts at the same place again and again makes no progress."""

    def __init__(self, have: int, patience: Patience) -> None:
        self._most = have
        self.patience = patience

    def reached(self, have: int) -> None:
        if have > self._most:
            self._most = have
            self.patience.went_forward()


def digest_of(received: list[Received]) -> str:
    """Return the digest: of one file as `sha256sum` prints it, of several the hash of all names and hashes."""
    if len(received) == 1:
        return f"sha256:{received[0].sha256}"
    lines = "".join(sorted(f"{one.path}\0{one.sha256}\n" for one in received))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _sum_of_sizes(items: list[Item]) -> int | None:
    sizes = [item.size for item in items if item.size is not None]
    return sum(sizes) if len(sizes) == len(items) else None


def too_large(size: int, limit: int) -> WrongContent:
    return WrongContent(
        "TooLarge",
        f"The model has at least {in_units(size)}, above the limit of {in_units(limit)}: use a smaller model, or raise"
        " the setting `model_limit_bytes`.",
    )


def _empty() -> WrongContent:
    return WrongContent("EmptyModel", "The address has no files: check the path, and that the model was uploaded.")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of one file; the other downloads were only cancelled because of it."""
    ours = errors.subgroup(FetchError)
    inner: BaseException = ours or errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
