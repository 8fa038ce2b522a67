"""Output of a sandbox or an exec: bytes by offset for live readers, and lines with their time for stored logs."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import AsyncIterator, Iterator

import msgspec

from skysail.cloud.modal.stand_in.changes import Changes

STDOUT, STDERR, SYSTEM = 1, 2, 3
_KEPT = 16 * 1024 * 1024
_MAX_CHUNK = 256 * 1024
_MAX_LINES = 200_000


class Line(msgspec.Struct, frozen=True):
    """A line of a stored log, or the part of a line that was printed at once."""

    at: float
    descriptor: int
    text: str


class ByteStream:
    """Output of one descriptor. Only the most recent part is kept."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._first = 0
        self._data = bytearray()

    @property
    def end(self) -> int:
        return self._first + len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data
        if (surplus := len(self._data) - self._kept) > 0:
            del self._data[:surplus]
            self._first += surplus

    def read(self, offset: int) -> tuple[int, bytes]:
        """Return a chunk and its offset, which is higher than `offset` if the output there is not kept any more."""
        start = max(offset, self._first)
        return start, bytes(self._data[start - self._first : start - self._first + _MAX_CHUNK])


class StreamLog:
    """Output of one program, on both descriptors.

    `is_text`: bytes that are not UTF-8 are replaced before anybody reads them, as V1 sandboxes do.
    """

    def __init__(self, *, is_text: bool = False, kept: int = _KEPT) -> None:
        self.streams = {STDOUT: ByteStream(kept), STDERR: ByteStream(kept)}
        self.lines: deque[Line] = deque(maxlen=_MAX_LINES)
        self.has_ended = False
        self.changes = Changes()
        self._is_text = is_text
        self._decoders = {number: _decoder() for number in self.streams}

    def put(self, descriptor: int, at: float, data: bytes) -> None:
        text = self._decoders[descriptor].decode(data)
        self.streams[descriptor].append(text.encode() if self._is_text else data)
        self._keep(descriptor, at, text)
        self.changes.notify()

    def end(self, at: float) -> None:
        """Finish the log: characters that were cut by the end are kept as a replacement character."""
        if self.has_ended:
            return
        for descriptor, decoder in self._decoders.items():
            if rest := decoder.decode(b"", final=True):
                self._keep(descriptor, at, rest)
                if self._is_text:
                    self.streams[descriptor].append(rest.encode())
        self.has_ended = True
        self.changes.notify()

    def add_line(self, line: Line) -> None:
        """Add a line that no program printed, such as one of an image build."""
        self.lines.append(line)
        self.changes.notify()

    async def read(
        self, descriptor: int, offset: int, seconds: float | None = None
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Yield chunks with their offsets from `offset` to the end. Stops early if nothing comes for `seconds`."""
        stream = self.streams[descriptor]
        while True:
            if not await self.until_bytes(descriptor, offset, seconds):
                return
            start, data = stream.read(offset)
            if self._is_text:
                data = _whole_characters(data)
            if not data:
                return
            yield start, data
            offset = start + len(data)

    async def until_bytes(self, descriptor: int, offset: int, seconds: float | None = None) -> bool:
        """Wait until there is output after `offset`, or the end. Returns False after `seconds` without either."""
        stream = self.streams[descriptor]
        return await self.changes.until(lambda: stream.end > offset or self.has_ended, seconds)

    async def until_lines(self, count: int, seconds: float | None = None) -> bool:
        """Wait until there are more than `count` lines, or the end. Returns False after `seconds` without either."""
        return await self.changes.until(lambda: len(self.lines) > count or self.has_ended, seconds)

    async def until_end(self) -> None:
        await self.changes.until(lambda: self.has_ended)

    def _keep(self, descriptor: int, at: float, text: str) -> None:
        self.lines.extend(Line(at, descriptor, line) for line in _split(text))


def _split(text: str) -> Iterator[str]:
    """Yield lines with their end. Only a newline ends a line, not a carriage return."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end + 1]
        start = end + 1
    if start < len(text):
        yield text[start:]


def _whole_characters(data: bytes) -> bytes:
    """Cut the chunk in front of a character that continues in the next chunk."""
    for length in range(1, 4):
        if len(data) >= length and data[-length] & 0xC0 == 0xC0:  # noqa: PLR2004 (first byte of a longer character)
            return data if _is_whole(data[-length:]) else data[:-length]
        if len(data) < length or not data[-length] & 0x80:
            return data
    return data


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
