"""One call of gRPC's health protocol, as bytes: a unary call over plain HTTP/2, and its response. Pure.

Only this call is needed, so no library is used: the request is constant except for three strings, and one small message
of the response has the result. Headers of the response are compressed and not read; a failed call has no message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATH = "/grpc.health.v1.Health/Check"
_STREAM = 1
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_METHOD_POST, _SCHEME_HTTP = b"\x83", b"\x86"  # entries of HPACK's static table
_HEAD = 9
_MAX_FRAME_BYTES = 2**14
_SEVEN_BITS = 0x7F

_UNKNOWN, SERVING = 0, 1
_NAMES = {_UNKNOWN: "UNKNOWN", SERVING: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


class NotHttp2(Exception):
    """The peer does not speak HTTP/2."""


class Frame(msgspec.Struct, frozen=True):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        return self.kind in {_DATA, _HEADERS} and self.stream == _STREAM and bool(self.flags & _END_STREAM)


def request(service: str, authority: str) -> bytes:
    """Return the bytes of the request. An empty service asks for the health of the whole server."""
    fields = {
        ":path": _PATH,
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
        "user-agent": "kube-probe/skysail",
    }
    headers = _METHOD_POST + _SCHEME_HTTP + b"".join(_literal(name, value) for name, value in fields.items())
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, _STREAM, headers)
        + _frame(_DATA, _END_STREAM, _STREAM, struct.pack(">BI", 0, len(message)) + message)
    )


class HealthResponse:
    """Parser of the peer's bytes. When `is_complete`, `reason` is the failure, empty if the service is healthy."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._unread = b""
        self._body = b""
        self._has_settings = False
        self.is_complete = False

    def feed(self, data: bytes) -> bytes:
        """Parse bytes of the peer, and return the bytes to send back. Raises NotHttp2."""
        reply = b""
        for frame in self._frames(data):
            reply += self._take(frame)
        return reply

    @property
    def reason(self) -> str:
        if not self._has_settings:
            return "the response is not HTTP/2"
        status = self._status
        if status is None:
            about = f" for the service {self._service}" if self._service else ""
            return f"the server rejected the health check: it must serve grpc.health.v1.Health{about}"
        if status == SERVING:
            return ""
        return f'service unhealthy (responded with "{_NAMES.get(status, status)}")'

    def _frames(self, data: bytes) -> Iterator[Frame]:
        self._unread += data
        while len(self._unread) >= _HEAD:
            length = int.from_bytes(self._unread[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self._unread[3:_HEAD])
            if length > _MAX_FRAME_BYTES or (not self._has_settings and kind != _SETTINGS):
                raise NotHttp2
            self._has_settings = True
            if len(self._unread) < _HEAD + length:
                return
            payload, self._unread = self._unread[_HEAD : _HEAD + length], self._unread[_HEAD + length :]
            yield Frame(kind, flags, stream & 0x7FFFFFFF, payload)

    def _take(self, frame: Frame) -> bytes:
        if frame.kind in {_SETTINGS, _PING} and not frame.flags & _ACK:
            return _frame(frame.kind, _ACK, 0, frame.payload if frame.kind == _PING else b"")
        if frame.kind == _DATA and frame.stream == _STREAM:
            self._body += _unpadded(frame)
        is_cut = frame.kind == _GO_AWAY or (frame.kind == _RESET and frame.stream == _STREAM)
        self.is_complete |= is_cut or frame.ends_stream or self._status is not None
        return b""

    @property
    def _status(self) -> int | None:
        """Return the status field of the message. Returns None without a complete and uncompressed message."""
        if len(self._body) < struct.calcsize(">BI"):
            return None
        compressed, length = struct.unpack_from(">BI", self._body)
        message = self._body[5 : 5 + length]
        if compressed or len(message) < length:
            return None
        # Field 1, a small number; zero is omitted on the wire.
        return message[1] if message[:1] == b"\x08" and len(message) > 1 else _UNKNOWN


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a literal header field without indexing, uncompressed."""
    return b"\x00" + b"".join(_length(len(part)) + part for part in (name.encode(), value.encode()))


def _length(number: int) -> bytes:
    return bytes([number]) if number < _SEVEN_BITS else bytes([_SEVEN_BITS]) + _varint(number - _SEVEN_BITS)


def _varint(number: int) -> bytes:
    """Encode a number with seven bits per byte, lowest first: the same in HTTP/2 and protobuf."""
    rest, low = number >> 7, number & _SEVEN_BITS
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _unpadded(frame: Frame) -> bytes:
    if not frame.flags & _PADDED:
        return frame.payload
    return frame.payload[1 : len(frame.payload) - frame.payload[0]]
