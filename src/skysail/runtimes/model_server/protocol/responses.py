"""Responses before they are written to a connection."""

from __future__ import annotations

import msgspec

from skysail.runtimes.model_server.errors import RequestError

Header = tuple[bytes, bytes]

JSON: tuple[Header, ...] = ((b"content-type", b"application/json"),)
CLOSE: Header = (b"connection", b"close")


class Response(msgspec.Struct, frozen=True):
    status: int
    content: bytes
    headers: tuple[Header, ...] = JSON


def json_response(status: int, content: object) -> Response:
    return Response(status, msgspec.json.encode(content))


def error_response(refusal: RequestError, *more: Header) -> Response:
    retry = [(b"retry-after", b"%d" % refusal.retry_after)] if refusal.retry_after else []
    return Response(refusal.status, msgspec.json.encode({"error": str(refusal)}), (*JSON, *retry, *more))
