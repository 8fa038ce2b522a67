"""Search for /bin/sh in the layers of an image: tar files, with gzip or without, read piece by piece. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

_BLOCK = 512
_MAX_HEADER_BYTES = 2**20
_PIECE = 2**20
# 16: with the header of gzip.
_GZIP = zlib.MAX_WBITS | 16
_SYMLINK, _LONG_NAME, _PAX = b"2", b"L", b"x"
_OTHER_EXTENSIONS = frozenset({b"K", b"g"})
_SHELL = "bin/sh"
_MERGED_SHELL = "usr/bin/sh"
_MERGED = "usr/bin"


class InvalidLayer(Exception):
    """The layer is no tar file, or is packed by an unknown program."""


class Entry(NamedTuple):
    """One member of a tar file. `target` is that of a symbolic link, else empty."""

    name: str
    target: str = ""


class ShellSearch:
    """Searches the layers of one image, from the lowest to the highest.

    A shell that a higher layer deletes still counts: the search ends when it has found one.
    """

    def __init__(self) -> None:
        self._has_merged_shell = False
        self._has_link = False
        self.is_found = False

    def take(self, entry: Entry) -> None:
        name = entry.name
        self._has_merged_shell = self._has_merged_shell or name == _MERGED_SHELL
        self._has_link = self._has_link or (name == "bin" and entry.target.strip("/") == _MERGED)
        self.is_found = self.is_found or name == _SHELL or (self._has_merged_shell and self._has_link)


class LayerReader:
    """Reads the names in one layer. Raises InvalidLayer if `media_type` or the content is unknown."""

    def __init__(self, media_type: str) -> None:
        if not media_type.endswith(("tar", "tar+gzip", "tar.gzip")):
            raise InvalidLayer(f"layers of type {media_type} cannot be read")
        self._unpacker = zlib.decompressobj(_GZIP) if media_type.endswith("gzip") else None
        self._tar = _TarReader()
        self.unpacked = 0

    def feed(self, data: bytes) -> Iterator[Entry]:
        """Yield the members whose headers are complete with this piece."""
        for piece in self._unpacked(data):
            self.unpacked += len(piece)
            yield from self._tar.feed(piece)

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        if self._unpacker is None:
            yield data
            return
        try:
            while data:
                if self._unpacker.eof:
                    # A file may have several members. Zeros after the last one only fill it up.
                    data = data.lstrip(b"\0")
                    if not data:
                        return
                    self._unpacker = zlib.decompressobj(_GZIP)
                yield self._unpacker.decompress(data, _PIECE)
                data = self._unpacker.unused_data if self._unpacker.eof else self._unpacker.unconsumed_tail
        except zlib.error as error:
            raise InvalidLayer("a layer is damaged") from error


class _TarReader:
    """Reads headers and skips contents."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipped = 0
        self._extension: tuple[bytes, int] | None = None  # type and size of an extended header that is being read
        self._name = ""  # from an extended header, for the next member

    def feed(self, data: bytes) -> Iterator[Entry]:
        self._buffer += data
        while True:
            skipped = min(self._skipped, len(self._buffer))
            del self._buffer[:skipped]
            self._skipped -= skipped
            if self._skipped:
                return
            if self._extension is not None:
                kind, size = self._extension
                if len(self._buffer) < size:
                    return
                self._name = _extended_name(kind, bytes(self._buffer[:size])) or self._name
                self._extension, self._skipped = None, _padded(size)
                continue
            if len(self._buffer) < _BLOCK:
                return
            header = bytes(self._buffer[:_BLOCK])
            del self._buffer[:_BLOCK]
            if header.strip(b"\0"):
                yield from self._member(header)

    def _member(self, header: bytes) -> Iterator[Entry]:
        kind, size = header[156:157], _size(header[124:136])
        if kind in {_LONG_NAME, _PAX}:
            if size > _MAX_HEADER_BYTES:
                raise InvalidLayer("a layer has a header that is too long")
            self._extension = kind, size
            return
        self._skipped = _padded(size)
        if kind in _OTHER_EXTENSIONS:
            return
        prefix = _text(header[345:500]) if header[257:262] == b"ustar" else ""
        name = self._name or "/".join(filter(None, (prefix, _text(header[:100]))))
        self._name = ""
        yield Entry(name.removeprefix("./").strip("/"), _text(header[157:257]) if kind == _SYMLINK else "")


def _size(field: bytes) -> int:
    if field[0] & 0x80:  # a binary number, of members that are larger than 8 GiB
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise InvalidLayer("a layer is no tar file") from error


def _extended_name(kind: bytes, content: bytes) -> str:
    if kind == _LONG_NAME:
        return _text(content)
    for line in content.split(b"\n"):
        _, _, row = line.partition(b" ")
        if row.startswith(b"path="):
            return row.removeprefix(b"path=").decode(errors="replace")
    return ""


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="replace")
