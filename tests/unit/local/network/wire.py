"""The other side of DNS: how a resolver asks, and how it reads an answer. Written apart from the server's code."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple


def query(name: str, type_: int = 1, *, id_: int = 7, flags: int = 0x100, questions: int = 1, class_: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label)
    return struct.pack("!6H", id_, flags, questions, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", type_, class_)


class Decoded(NamedTuple):
    id: int
    code: int
    is_truncated: bool
    records: list[tuple[str, int, Any]]
    extra: list[tuple[str, int, Any]]


def decode(message: bytes) -> Decoded:
    id_, flags, questions, answers, _, extra = struct.unpack_from("!6H", message)
    assert flags & 0x8000, "an answer says that it is one"
    at = 12
    for _ in range(questions):
        _, at = _name(message, at)
        at += 4
    records = []
    for _ in range(answers + extra):
        record, at = _record(message, at)
        records.append(record)
    assert at == len(message), "nothing is left over"
    return Decoded(id_, flags & 15, bool(flags & 0x200), records[:answers], records[answers:])


def _record(message: bytes, at: int) -> tuple[tuple[str, int, Any], int]:
    name, at = _name(message, at)
    type_, _, _, length = struct.unpack_from("!2HIH", message, at)
    at += 10
    if type_ == 1:
        data: Any = socket.inet_ntoa(message[at : at + length])
    elif type_ == 33:
        data = (*struct.unpack_from("!3H", message, at), _name(message, at + 6)[0])
    else:
        data = _name(message, at)[0]
    return (name, type_, data), at + length


def _name(message: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := message[at]:
        if length >= 0xC0:
            pointed, _ = _name(message, int.from_bytes(message[at : at + 2]) & 0x3FFF)
            return ".".join([*labels, pointed]), at + 2
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1
