"""DNS messages (RFC 1035), limited to one question per message."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from enum import IntEnum
from ipaddress import IPv4Address

import msgspec

MAX_DATAGRAM_BYTES = 512
_TTL_SECONDS = 2
_IN = 1
_ANY = 255
_RESPONSE, _OPCODES, _AUTHORITATIVE, _TRUNCATED, _WANTS_RECURSION, _RECURSES = 0x8000, 0x7800, 0x400, 0x200, 0x100, 0x80
_AS_ASKED = b"\xc0\x0c"  # pointer to the name after the header: preserves the case of the query
_MAX_LABEL_LENGTH = 63
_MAX_NAME_LENGTH = 255

_HEADER = struct.Struct("!6H")
_TAIL = struct.Struct("!2H")
_RECORD = struct.Struct("!2HIH")
_TARGET = struct.Struct("!3H")


class Type(IntEnum):
    A = 1
    CNAME = 5
    PTR = 12
    SRV = 33


class Code(IntEnum):
    """Response code."""

    OK = 0
    MALFORMED = 1
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4
    REFUSED = 5


class NotAQuery(ValueError):
    """The message is not a query, so it gets no answer."""


class QueryError(ValueError):
    """The query is invalid or not supported. `code` is the answer."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question. `name` is in lower case without the final dot; `wire` are the original bytes."""

    id: int
    flags: int
    name: str
    type: int
    wire: bytes

    def wants(self, type_: Type) -> bool:
        return self.type in {type_, _ANY}


class Record(msgspec.Struct, frozen=True):
    name: str
    type: Type
    data: bytes


def read(message: bytes) -> Question:
    """Parse a query. Raises `NotAQuery` or `QueryError`."""
    if len(message) < _HEADER.size:
        raise NotAQuery("shorter than a header")
    id_, flags, questions, *_ = _HEADER.unpack_from(message)
    if flags & _RESPONSE:
        raise NotAQuery("an answer")
    if flags & _OPCODES:
        raise QueryError(Code.NOT_IMPLEMENTED)
    if questions != 1:
        raise QueryError(Code.MALFORMED)
    name, end = _read_name(message, _HEADER.size)
    if len(message) < end + _TAIL.size:
        raise QueryError(Code.MALFORMED)
    type_, class_ = _TAIL.unpack_from(message, end)
    if class_ not in {_IN, _ANY}:
        raise QueryError(Code.REFUSED)
    wire = message[_HEADER.size : end + _TAIL.size]
    return Question(id=id_, flags=flags, name=name, type=type_, wire=wire)


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """Return the name and the offset of its end. The question comes first, so compression cannot occur."""
    labels: list[str] = []
    start = at
    while at < len(message) and at - start < _MAX_NAME_LENGTH:
        length = message[at]
        at += 1
        if length == 0:
            return ".".join(labels).lower(), at
        if length > _MAX_LABEL_LENGTH:
            break
        labels.append(message[at : at + length].decode("latin-1"))
        at += length
    raise QueryError(Code.MALFORMED)


def answer(question: Question, code: Code, records: Iterable[Record] = (), extra: Iterable[Record] = ()) -> bytes:
    """Return a response. `extra` are records that the client would query next."""
    answers, more = ([_record(record, question) for record in part] for part in (records, extra))
    flags = _RESPONSE | _AUTHORITATIVE | question.flags & _WANTS_RECURSION | _RECURSES | code
    header = _HEADER.pack(question.id, flags, 1, len(answers), 0, len(more))
    return b"".join((header, question.wire, *answers, *more))


def failure(message: bytes, code: Code) -> bytes:
    """Return the response to an unreadable message, of which only the id is known."""
    return _HEADER.pack(int.from_bytes(message[:2]), _RESPONSE | code, 0, 0, 0, 0)


def truncate(message: bytes, question: Question) -> bytes:
    """Return the message for a datagram.

    If it is too long, only the truncation flag is left, and the client uses TCP.
    """
    if len(message) <= MAX_DATAGRAM_BYTES:
        return message
    id_, flags, *_ = _HEADER.unpack_from(message)
    return _HEADER.pack(id_, flags | _TRUNCATED, 1, 0, 0, 0) + question.wire


def is_truncated(message: bytes) -> bool:
    return len(message) >= _HEADER.size and bool(_HEADER.unpack_from(message)[1] & _TRUNCATED)


def tcp_frame(message: bytes) -> bytes:
    """Return the message with its length, for TCP."""
    return len(message).to_bytes(2) + message


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Read the next message of a TCP connection. Raises IncompleteReadError if the connection ends."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))


def address(name: str, value: str) -> Record:
    return Record(name, Type.A, IPv4Address(value).packed)


def pointer(name: str, to: str) -> Record:
    return Record(name, Type.PTR, _name(to))


def alias(name: str, of: str) -> Record:
    return Record(name, Type.CNAME, _name(of))


def target(name: str, host: str, port: int) -> Record:
    return Record(name, Type.SRV, _TARGET.pack(0, 100, port) + _name(host))


def _record(record: Record, question: Question) -> bytes:
    name = _AS_ASKED if record.name == question.name else _name(record.name)
    return name + _RECORD.pack(record.type, _IN, _TTL_SECONDS, len(record.data)) + record.data


def _name(name: str) -> bytes:
    labels = (label.encode("latin-1") for label in name.split(".") if label)
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
