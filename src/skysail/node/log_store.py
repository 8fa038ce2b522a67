"""Logs of containers, on disk until their pod is deleted.

Each run has a folder of numbered files. A line has the format of container runtimes: timestamp, stream, F for a full
line or P for a partial one, text. All fields except the text have a fixed width. When there are too many files, the
oldest is deleted. A mark beside the files says how many bytes of each stream came before a point in the log. Files are
local, so they are read and written in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

import msgspec

from skysail.cloud.provider import Output, RunId

_STAMP = len("2026-11-15T20:30:26.955746944Z")
_TAG = _STAMP + len(" stdout ")
_TEXT = _TAG + len("F ")
# As in container runtimes: a program that prints no line end must not fill the memory.
_MAX_PART_BYTES = 16 * 1024
_READ = 128 * 1024
_MARK = ".mark"

_Stream = Literal["stdout", "stderr"]


class _Mark(msgspec.Struct, frozen=True):
    """A point in the log of a run, and the bytes of each stream before it, lost ones included."""

    file: int = 0
    size: int = 0
    stdout: int = 0
    stderr: int = 0


class RotationPolicy(msgspec.Struct, frozen=True):
    """Limits of the log of one run: number of files, and approximate size of each."""

    file_bytes: int = 8 * 2**20
    files: int = 4


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a log: of the last `tail` lines, those from `since` on, up to `limit` bytes."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit: int | None = None


_DEFAULT_BOUNDS = RotationPolicy()
_ALL = LogQuery()


class LogStore:
    """Logs of one node, below one folder. Several processes may read; one writes."""

    def __init__(self, folder: Path, rotation_policy: RotationPolicy = _DEFAULT_BOUNDS) -> None:
        self._folder = folder
        self._rotation_policy = rotation_policy
        self._writers: dict[RunId, LogWriter] = {}

    def writer(self, run: RunId) -> LogWriter:
        """Return a writer for this run's log. Close it when the run has ended, because followers wait for that.

        If the run already has a log, the writer appends to it and drops output that is already stored: a provider
        repeats all output for a new reader. Only the logs of this run and the previous one are kept.
        """
        for number in self.numbers(run.pod, run.container):
            if number < run.number - 1:
                older = RunId(run.pod, run.container, number)
                self._writers.pop(older, None)
                shutil.rmtree(self._path(older))
        writer = LogWriter(self._path(run), self._rotation_policy)
        self._writers[run] = writer
        return writer

    def numbers(self, pod: str, container: str) -> list[int]:
        """Return the numbers of a container's runs that have a log, oldest first."""
        folder = self._folder / _safe(pod) / _safe(container)
        return sorted(int(entry.name) for entry in folder.iterdir()) if folder.is_dir() else []

    async def read(self, run: RunId, log_query: LogQuery = _ALL) -> AsyncIterator[bytes]:
        """Yield the requested part, in pieces. With `follow`, also later output, until the run's writer is closed."""
        remaining = log_query.limit
        async with contextlib.aclosing(self._pieces(run, log_query)) as pieces:
            async for piece in pieces:
                if remaining is not None and len(piece) >= remaining:
                    yield piece[:remaining]
                    return
                remaining = remaining and remaining - len(piece)
                yield piece

    def end(self, run: RunId, lines: int, size: int) -> bytes:
        """Return the last lines, up to `size` bytes: the message of a failed container."""
        path = self._path(run)
        with contextlib.closing(_Cursor(path, *_start_of_tail(path, lines))) as cursor:
            found = list(itertools.chain.from_iterable(cursor.batches()))
        return _render(found, _ALL, starts_line=True)[-size:]

    def forget(self, pod: str) -> None:
        """Delete all logs of the pod with this UID, and end their followers. Unknown pods are no error."""
        for run in [run for run in self._writers if run.pod == pod]:
            self._writers.pop(run).close()
        shutil.rmtree(self._folder / _safe(pod), ignore_errors=True)

    def forget_others(self, pods: Collection[str]) -> None:
        """Delete the logs of all pods except these: pods may have been deleted while the node was down."""
        stored = {entry.name for entry in self._folder.iterdir()} if self._folder.is_dir() else set()
        for pod in stored - {*pods}:
            if not pod.startswith("."):  # hidden files of a file system
                self.forget(pod)

    async def _pieces(self, run: RunId, log_query: LogQuery) -> AsyncGenerator[bytes, None]:
        path, writer = self._path(run), self._writers.get(run)
        since = b"" if log_query.since is None else stamp(log_query.since)
        starts_line = True
        with contextlib.closing(_Cursor(path, *_start_of_tail(path, log_query.tail))) as cursor:
            while True:
                # Read before the files, so that no line that is written meanwhile is missed.
                seen = writer.written if writer else 0
                is_complete = not log_query.follow or writer is None or writer.is_closed
                for batch in cursor.batches():
                    desired = [line for line in batch if line[:_STAMP] >= since] if since else batch
                    if desired:
                        yield _render(desired, log_query, starts_line=starts_line)
                        starts_line = _is_full(desired[-1])
                if is_complete or writer is None:
                    return
                await writer.grown(seen)

    def _path(self, run: RunId) -> Path:
        return self._folder / _safe(run.pod) / _safe(run.container) / str(run.number)


class LogWriter:
    """Writes the log of one run. Created by `LogStore.writer`."""

    def __init__(self, folder: Path, rotation_policy: RotationPolicy) -> None:
        self._folder = folder
        self._rotation_policy = rotation_policy
        folder.mkdir(parents=True, exist_ok=True)
        numbers = _file_numbers(folder)
        self._number = numbers[-1] if numbers else 0
        self._after = b""
        if numbers:
            _cut_torn_line(folder / str(self._number))
            self._after = _last_stamp(folder)
        self._file: IO[bytes] = self._open()
        self._stored = _stored_bytes(folder)
        # Whether lines were lost after the mark, so that the files hold less than was read.
        self._has_lost = False
        self._parts: dict[_Stream, bytes] = {}
        self._last = b""
        self._grown = asyncio.Event()
        self.written = 0
        self.is_closed = False

    def write(self, output: Output) -> None:
        """Append a piece of output. Drops what an earlier writer of this run has stored."""
        at, text = stamp(output.at), self._unseen(output)
        if not text:
            return
        self._last = at
        text = self._parts.get(output.stream, b"") + text
        whole, end, rest = text.rpartition(b"\n")
        data = _lines(at, output.stream, whole) if end else b""
        if len(rest) >= _MAX_PART_BYTES:
            data += _line(at, output.stream, rest, is_full=False)
            rest = b""
        self._parts[output.stream] = rest
        is_stored = self._append(data)
        self._stored[output.stream] += len(text) - len(rest)
        if is_stored and data and self._has_lost:
            self._write_mark()
        self._has_lost = not is_stored or (self._has_lost and not data)

    def _unseen(self, output: Output) -> bytes:
        """Return the part of a piece that is not stored yet: by its place in the stream if it has one, else by time."""
        if output.offset is None:
            return output.data if stamp(output.at) > self._after else b""
        part = len(self._parts.get(output.stream, b""))
        missing = output.offset - self._stored[output.stream] - part
        if missing > 0:
            self._stored[output.stream] += missing
            self._write_mark()
        return output.data[max(0, -missing) :]

    def close(self) -> None:
        """Close the log. Text without a line end becomes a partial line. Idempotent."""
        if self.is_closed:
            return
        rests = [(stream, rest) for stream, rest in self._parts.items() if rest]
        self._append(b"".join(_line(self._last, stream, rest, is_full=False) for stream, rest in rests))
        self._file.close()
        self.is_closed = True
        self._notify()

    async def grown(self, seen: int) -> None:
        """Wait until more than `seen` bytes have been written, or the writer is closed."""
        while self.written <= seen and not self.is_closed:
            await self._grown.wait()

    def _append(self, data: bytes) -> bool:
        """Append formatted lines, and return whether they are stored."""
        if not data:
            return True
        if self._file.tell() >= self._rotation_policy.file_bytes:
            self._rotate()
        if not self._store(data):
            return False
        self.written += len(data)
        self._notify()
        return True

    def _store(self, data: bytes) -> bool:
        """Write the data, and return whether that succeeded. On a full disk lines are lost; the container continues."""
        start = self._file.tell()
        with contextlib.suppress(OSError):
            if self._file.write(data) == len(data):
                return True
        with contextlib.suppress(OSError):
            self._file.truncate(start)  # remove an incomplete line, which could not be parsed
            self._file.seek(start)
        return False

    def _notify(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _rotate(self) -> None:
        self._file.close()
        self._number += 1
        self._file = self._open()
        self._write_mark()
        for number in _file_numbers(self._folder)[: -self._rotation_policy.files]:
            (self._folder / str(number)).unlink()

    def _write_mark(self) -> None:
        """Record the bytes of each stream at the current end. On a full disk the mark before it stays."""
        mark = _Mark(self._number, self._file.tell(), self._stored["stdout"], self._stored["stderr"])
        new = self._folder / f"{_MARK}.new"
        with contextlib.suppress(OSError):
            new.write_bytes(msgspec.json.encode(mark))
            new.replace(self._folder / _MARK)

    def _open(self) -> IO[bytes]:
        return (self._folder / str(self._number)).open("ab", buffering=0)


class _Cursor:
    """A position in the files of a run. Continues as files grow and new ones are added."""

    def __init__(self, folder: Path, number: int, offset: int) -> None:
        self._folder = folder
        self._number = number
        self._offset = offset
        self._file: IO[bytes] | None = None

    def batches(self) -> Iterator[list[bytes]]:
        """Yield all lines from the current position to the current end."""
        while True:
            if self._file is None and not self._open():
                return
            yield from self._rest()
            following = [number for number in _file_numbers(self._folder) if number > self._number]
            if not following:
                return
            # The file may have grown after we read its end and before the next one was created.
            yield from self._rest()
            self.close()
            self._number, self._offset = following[0], 0

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = (self._folder / str(self._number)).open("rb")
        except FileNotFoundError:
            later = [number for number in _file_numbers(self._folder) if number > self._number]
            if not later:
                return False
            self._number, self._offset = later[0], 0
            return self._open()
        return True

    def _rest(self) -> Iterator[list[bytes]]:
        assert self._file is not None
        while True:
            self._file.seek(self._offset)
            whole, end, _ = self._file.read(_READ).rpartition(b"\n")
            if not end:
                return
            self._offset += len(whole) + 1
            yield whole.split(b"\n")


def stamp(at: float) -> bytes:
    """Return the time in RFC 3339 with nine fractional digits, so that times compare as bytes."""
    seconds, nanoseconds = divmod(round(at * 1e9), 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z".encode()


def _lines(at: bytes, stream: _Stream, text: bytes) -> bytes:
    """Format lines; all at once if none is too long, so that a program that prints much does not delay the others."""
    lines = text.split(b"\n")
    if max(map(len, lines)) > _MAX_PART_BYTES:
        return b"".join(_line(at, stream, line) for line in lines)
    head = _head(at, stream, is_full=True)
    return head + (b"\n" + head).join(lines) + b"\n"


def _line(at: bytes, stream: _Stream, line: bytes, *, is_full: bool = True) -> bytes:
    *parts, last = [line[start : start + _MAX_PART_BYTES] for start in range(0, len(line), _MAX_PART_BYTES)] or [b""]
    partly = _head(at, stream, is_full=False)
    return b"".join(partly + part + b"\n" for part in parts) + _head(at, stream, is_full=is_full) + last + b"\n"


def _head(at: bytes, stream: _Stream, *, is_full: bool) -> bytes:
    """Return the fields before the text of a line."""
    return b"%b %b %b " % (at, stream.encode(), b"F" if is_full else b"P")


def _is_full(line: bytes) -> bool:
    return line[_TAG : _TAG + 1] == b"F"


def _render(lines: list[bytes], log_query: LogQuery, *, starts_line: bool) -> bytes:
    if not log_query.timestamps and all(map(_is_full, lines)):
        return b"\n".join([*(line[_TEXT:] for line in lines), b""])
    pieces = []
    for line in lines:
        if log_query.timestamps and starts_line:
            pieces.append(line[:_STAMP] + b" ")
        pieces.append(line[_TEXT:])
        starts_line = _is_full(line)
        if starts_line:
            pieces.append(b"\n")
    return b"".join(pieces)


def _start_of_tail(folder: Path, lines: int | None) -> tuple[int, int]:
    """Return the file number and offset at which the last `lines` lines begin."""
    numbers = _file_numbers(folder)
    if lines is None or not numbers:
        return (numbers[0] if numbers else 0), 0
    remaining = lines
    for number in reversed(numbers):
        content = _mapped(folder / str(number))
        offset, remaining = _back(content, remaining, is_end=number == numbers[-1])
        if remaining < 0:
            return number, offset
    return numbers[0], 0


def _back(content: bytes | mmap.mmap, lines: int, *, is_end: bool) -> tuple[int, int]:
    """Go back over `lines` lines from the end.

    Returns the offset at which they begin, and -1. If the content has fewer lines, returns 0 and the missing number.
    """
    end = len(content)
    is_last_record = is_end
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        # A partial line at the end counts as a line.
        if is_last_record or content[start + _TAG : start + _TAG + 1] == b"F":
            if not lines:
                return end, -1
            lines -= 1
        is_last_record = False
        end = start
    return 0, lines


def _mapped(path: Path) -> bytes | mmap.mmap:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _last_stamp(folder: Path) -> bytes:
    for number in reversed(_file_numbers(folder)):
        content = _mapped(folder / str(number))
        if content:
            start = content.rfind(b"\n", 0, len(content) - 1) + 1
            return bytes(content[start : start + _STAMP])
    return b""


def _stored_bytes(folder: Path) -> dict[_Stream, int]:
    """Return how many bytes of each stream are in the log or before it."""
    try:
        mark = msgspec.json.decode((folder / _MARK).read_bytes(), type=_Mark)
    except (FileNotFoundError, msgspec.DecodeError):
        mark = _Mark()
    stored: dict[_Stream, int] = {"stdout": mark.stdout, "stderr": mark.stderr}
    for number in _file_numbers(folder):
        if number < mark.file:
            continue
        start = mark.size if number == mark.file else 0
        for line in bytes(_mapped(folder / str(number))[start:]).split(b"\n")[:-1]:
            stream: _Stream = "stdout" if line[_STAMP + 1 : _TAG - 1] == b"stdout" else "stderr"
            stored[stream] += len(line) - _TEXT + _is_full(line)
    return stored


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line: an earlier writer may have died while writing it."""
    content = _mapped(path)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def _file_numbers(folder: Path) -> list[int]:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _safe(name: str) -> str:
    """Return the name. Raises ValueError if it has a slash or a leading dot, which could lead out of the folder."""
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"{name!r} cannot be the name of a log's folder")
    return name
