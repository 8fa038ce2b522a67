"""Decoder of Server-Sent Events of a log stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp

from skysail.base import untrusted_json
from skysail.base.untrusted_json import InvalidJson
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.runpod import api

MAX_LINE_BYTES = 2**20
_MAX_ID_LENGTH = 256


async def read(stream: aiohttp.StreamReader) -> AsyncIterator[api.LogEvent]:
    """Yield the log events of a stream to its end.

    Comments and events without data are skipped. Raises `OutcomeUnknown` for an event that cannot be decoded, and
    ValueError for a line that is too long.
    """
    id_, data = "", bytearray()
    async for raw in stream:
        line = raw.rstrip(b"\r\n")
        if not line:
            if data:
                yield _event(id_, bytes(data))
            data = bytearray()
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"id":
            id_ = _id(value)
        elif field == b"data":
            data += (b"\n" if data else b"") + value
            if len(data) > MAX_LINE_BYTES:
                raise OutcomeUnknown("RunPod sent a log event that is too long.")


def _id(value: bytes) -> str:
    text = value.decode(errors="replace")
    if len(text) > _MAX_ID_LENGTH or not text.isascii() or not text.isprintable():
        raise OutcomeUnknown("RunPod sent a log event with an invalid id.")
    return text


def _event(id_: str, data: bytes) -> api.LogEvent:
    try:
        line = untrusted_json.decode(data, api.LogLine)
    except InvalidJson as error:
        raise OutcomeUnknown("RunPod sent a log event that cannot be decoded.") from error
    at = api.seconds(line.ts)
    if at is None:
        raise OutcomeUnknown("RunPod sent a log event without a time.")
    return api.LogEvent(id_ or line.ts, line.source, line.line, at)
