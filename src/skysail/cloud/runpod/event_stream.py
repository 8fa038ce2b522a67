"""Decoder of Server-Sent Events of a log stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp

from skysail.base import untrusted_json
from skysail.base.untrusted_json import InvalidJson
from skysail.cloud.runpod import api

MAX_LINE_BYTES = 2**20
LEFT_OUT = "(Skysail left out a line that is longer than 1 MiB or malformed.)"
_MAX_ID_LENGTH = 256


async def read(stream: aiohttp.StreamReader) -> AsyncIterator[api.LogEvent]:
    """Yield the log events of a stream to its end.

    Comments and events without data are skipped. An event that is too long or cannot be decoded has the line
    `LEFT_OUT`, so that its reader continues after it.
    """
    id_, data = "", bytearray()
    async for raw in _lines(stream):
        line = raw.rstrip(b"\r")
        if not line:
            event = _event(id_, bytes(data)) if data else None
            if event is not None:
                yield event
            data = bytearray()
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"id":
            id_ = _id(value.decode(errors="replace")) or id_
        elif field == b"data" and len(data) <= MAX_LINE_BYTES:
            data += (b"\n" if data else b"") + value


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. The end of a line that is too long is dropped."""
    line = bytearray()
    async for chunk in stream.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield bytes(line) + end[: MAX_LINE_BYTES - len(line)]
            line.clear()
        line += rest[: MAX_LINE_BYTES - len(line)]


def _id(text: str) -> str:
    """Return an id if it can be sent as a header, else an empty string."""
    return text if len(text) <= _MAX_ID_LENGTH and text.isascii() and text.isprintable() else ""


def _event(id_: str, data: bytes) -> api.LogEvent | None:
    """Decode one event. Returns None if it has nothing to continue after."""
    try:
        line = untrusted_json.decode(data, api.LogLine)
    except InvalidJson:
        line = api.LogLine(line=LEFT_OUT)
    at = api.seconds(line.ts)
    cursor = id_ or (_id(line.ts) if at is not None else "")
    return api.LogEvent(cursor, line.source, line.line, at or 0.0) if cursor else None
