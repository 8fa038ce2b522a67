"""Responses before they are written to a connection."""

from __future__ import annotations

import msgspec

from skysail.runtimes.model_server.errors import Refused

Header = tuple[bytes, bytes]

JSON: tuple[Header, ...] = ((b"content-type", b"application/json"),)
CLOSE: Header = (b"connection", b"close")


class Answer(msgspec.Struct, frozen=True):
    status: int
    content: bytes
    headers: tuple[Header, ...] = JSON


def of(status: int, content: object) -> Answer:
    return Answer(status, msgspec.json.encode(content))


def of_refusal(refusal: Refused, *more: Header) -> Answer:
    retry = [(b"retry-after", b"%d" % refusal.retry_after)] if refusal.retry_after else []
    return Answer(refusal.status, msgspec.json.encode({"error": str(refusal)}), (*JSON, *retry, *more))
