"""Download of all files of a source: resumed after an interruption or crash, counted, limited and hashed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from skysail.runtimes.fetch.errors import ContentChanged, FetchError, InvalidContent, TransientError
from skysail.runtimes.fetch.sources.base import MAX_FILES, Source, SourceFile
from skysail.runtimes.fetch.transfer.disk_space import DiskSpace
from skysail.runtimes.fetch.transfer.partial_file import PartialFile
from skysail.runtimes.fetch.transfer.progress import Progress, in_units
from skysail.runtimes.fetch.transfer.retry import RetryPolicy
from skysail.runtimes.fetch.unpack.paths import below

_MAX_CONCURRENT = 4


class Received(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str
    layer: bool = False


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """Download of a source. `raw` gets the files, `marks` the state for resuming. `retry_policy` creates a retry
    budget.
    """

    source: Source
    raw: Path
    marks: Path
    limit: int
    room: DiskSpace
    progress: Progress
    retry_policy: Callable[[], RetryPolicy]

    async def all(self) -> list[Received]:
        source_files = await self.retry_policy().run(self.source.items)
        self._check(source_files)
        self.progress.begin(_sum_of_sizes(source_files))
        turns = asyncio.Semaphore(_MAX_CONCURRENT)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._in_turn(source_file, turns)) for source_file in source_files]
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
        received = [task.result() for task in tasks]
        if not sum(one.size for one in received):
            raise _empty()
        return received

    def _check(self, source_files: list[SourceFile]) -> None:
        """Check all that is known before the download, so that users do not wait an hour for an error."""
        if not source_files:
            raise _empty()
        if len(source_files) > MAX_FILES:
            raise InvalidContent(
                "TooLarge", f"The address has more than {MAX_FILES} files: name the folder of the model."
            )
        if len({below(self.raw, source_file.path) for source_file in source_files}) < len(source_files):
            raise InvalidContent("UnsupportedFormat", "Two files of the model have the same path: rename one of them.")
        total = _sum_of_sizes(source_files)
        if total is None:
            return
        if total > self.limit:
            raise too_large(total, self.limit)
        self.raw.mkdir(parents=True, exist_ok=True)
        there = sum(path.stat().st_size for path in self.raw.rglob("*") if path.is_file())
        self.room.check(total, there)

    async def _in_turn(self, source_file: SourceFile, turns: asyncio.Semaphore) -> Received:
        async with (
            turns,
            PartialFile(below(self.raw, source_file.path), below(self.marks, source_file.path)) as partial_file,
        ):
            self.progress.found(partial_file.have)
            arrival = _Arrival(partial_file.have, self.retry_policy())
            while not await self._is_done(source_file, partial_file, arrival):
                pass
            self._verify(source_file, partial_file)
            return Received(source_file.path, partial_file.have, partial_file.sha256, source_file.layer)

    async def _is_done(self, source_file: SourceFile, partial_file: PartialFile, arrival: _Arrival) -> bool:
        """Try once to download the missing part."""
        try:
            await self._bring(source_file, partial_file, arrival)
        except TransientError as error:
            if isinstance(error, ContentChanged):
                self._begin(partial_file, "")
            await arrival.retry_policy.wait(error)
            return False
        return True

    async def _bring(self, source_file: SourceFile, partial_file: PartialFile, arrival: _Arrival) -> None:
        async with self.source.open(source_file, partial_file.have, partial_file.mark) as file_stream:
            if file_stream.start != partial_file.have or file_stream.mark != partial_file.mark:
                if file_stream.start:
                    raise ContentChanged(source_file.path)
                self._begin(partial_file, file_stream.mark)
            async for chunk in file_stream.chunks:
                partial_file.write(chunk)
                arrival.reached(partial_file.have)
                self.progress.came(len(chunk))
                self.room.keep()
                if self.progress.bytes > self.limit:
                    raise too_large(self.progress.bytes, self.limit)
            if file_stream.total is not None and partial_file.have < file_stream.total:
                raise TransientError(
                    "Unreachable",
                    f"The download of {source_file.path} was cut off after {in_units(partial_file.have)}.",
                )

    def _begin(self, partial_file: PartialFile, mark: str) -> None:
        self.progress.found(-partial_file.have)
        partial_file.begin(mark)

    def _verify(self, source_file: SourceFile, partial_file: PartialFile) -> None:
        if not source_file.sha256 or source_file.sha256 == partial_file.sha256:
            return
        came = partial_file.sha256
        self._begin(partial_file, "")
        raise TransientError(
            "ServerError",
            f"{source_file.path} was damaged during the download: its sha256 is {came} instead of "
            f"{source_file.sha256}.",
        )


class _Arrival:
    """Highest position reached in a file. A server that cuts at the same place again and again makes no progress."""

    def __init__(self, have: int, retry_policy: RetryPolicy) -> None:
        self._most = have
        self.retry_policy = retry_policy

    def reached(self, have: int) -> None:
        if have > self._most:
            self._most = have
            self.retry_policy.reset()


def digest_of(received: list[Received]) -> str:
    """Return the digest: of one file as `sha256sum` prints it, of several the hash of all names and hashes."""
    if len(received) == 1:
        return f"sha256:{received[0].sha256}"
    lines = "".join(sorted(f"{one.path}\0{one.sha256}\n" for one in received))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _sum_of_sizes(source_files: list[SourceFile]) -> int | None:
    sizes = [source_file.size for source_file in source_files if source_file.size is not None]
    return sum(sizes) if len(sizes) == len(source_files) else None


def too_large(size: int, limit: int) -> InvalidContent:
    return InvalidContent(
        "TooLarge",
        f"The model has at least {in_units(size)}, above the limit of {in_units(limit)}: use a smaller model, or raise"
        " the setting `max_model_bytes`.",
    )


def _empty() -> InvalidContent:
    return InvalidContent("EmptyModel", "The address has no files: check the path, and that the model was uploaded.")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error of one file; the other downloads were only cancelled because of it."""
    ours = errors.subgroup(FetchError)
    inner: BaseException = ours or errors
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
