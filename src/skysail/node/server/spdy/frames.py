"""Encoding and decoding of SPDY/3.1 frames. Pure; has no notion of streams.

A frame is eight bytes and a body. Control: 0x8003, u16 kind, u8 flags, u24 length. Data: u32 stream, u8 flags, u24
length. All integers are big endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from skysail.node.server.errors import ProtocolBroken

VERSION = 3
FIN = 0x01
_HEAD = struct.Struct(">II")
_WORD = struct.Struct(">I")
_CONTROL_BIT = 0x8000_0000
_LENGTH_BITS = 24
_MAX_FRAME_LENGTH = 2**_LENGTH_BITS - 1
_STREAM_MASK = 0x7FFF_FFFF


class Kind(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class Reset(IntEnum):
    """Reason of a stream reset."""

    PROTOCOL_ERROR = 1
    REFUSED = 3
    CANCEL = 5


class Data(msgspec.Struct, frozen=True):
    stream: int
    body: bytes
    flags: int = 0

    @property
    def is_last(self) -> bool:
        return bool(self.flags & FIN)

    def encode(self) -> bytes:
        assert len(self.body) <= _MAX_FRAME_LENGTH, "the writer splits longer bodies"
        return _HEAD.pack(self.stream, self.flags << _LENGTH_BITS | len(self.body)) + self.body


class Control(msgspec.Struct, frozen=True):
    """A control frame. `kind` is a plain number, because a peer may send unknown kinds, which are skipped."""

    kind: int
    body: bytes
    flags: int = 0

    @property
    def is_last(self) -> bool:
        return bool(self.flags & FIN)

    def encode(self) -> bytes:
        word = _CONTROL_BIT | VERSION << 16 | self.kind
        return _HEAD.pack(word, self.flags << _LENGTH_BITS | len(self.body)) + self.body

    def word(self, position: int = 0) -> int:
        """Return the u32 at this position of the body. Raises ProtocolBroken if the body is too short."""
        if len(self.body) < 4 * position + 4:
            raise ProtocolBroken(f"a control frame of kind {self.kind} is too short")
        return int(_WORD.unpack_from(self.body, 4 * position)[0])

    @property
    def stream(self) -> int:
        return self.word() & _STREAM_MASK


Frame = Data | Control


class Decoder:
    """Splits a byte stream, received in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each complete frame. Iterate to the end before the next call."""
        self._buffer += data
        done = 0
        try:
            while len(self._buffer) - done >= _HEAD.size:
                word, rest = _HEAD.unpack_from(self._buffer, done)
                end = done + _HEAD.size + (rest & _MAX_FRAME_LENGTH)
                if len(self._buffer) < end:
                    break
                body = bytes(memoryview(self._buffer)[done + _HEAD.size : end])
                done = end
                yield _frame(word, rest >> _LENGTH_BITS, body)
        finally:
            del self._buffer[:done]


def words(*values: int) -> bytes:
    return b"".join(_WORD.pack(value) for value in values)


def _frame(word: int, flags: int, body: bytes) -> Frame:
    if not word & _CONTROL_BIT:
        return Data(word, body, flags)
    version = word >> 16 & 0x7FFF
    if version != VERSION:
        raise ProtocolBroken(f"a frame of SPDY version {version}")
    return Control(word & 0xFFFF, body, flags)
