"""Answers of the stand-in: documents, problems, and answers that a fault loses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from skysail.cloud.provider import Session
from skysail.cloud.runpod.client import MAX_BODY_BYTES
from skysail.cloud.runpod.stand_in.faults import Fault
from skysail.cloud.runpod.stand_in.log_book import Entry, LogBook
from skysail.cloud.runpod.stand_in.validation import Refusal

_TITLES = {400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found"}
_MAX_TAIL = 5000
_TOO_MANY = 429


class RawAnswer(Exception):
    """Ends a request with an answer that is no problem of the API."""

    def __init__(self, response: web.Response) -> None:
        super().__init__()
        self.response = response


async def after(request: web.Request, fault: Fault, response: web.Response) -> web.Response:
    """Return the answer, unless the fault loses it after the work was done."""
    match fault.what:
        case "500-done":
            raise Refusal(500, "internal error")
        case "malformed-done":
            return web.Response(body=b'{"id": "', status=response.status, content_type="application/json")
        case "timeout-done":
            await asyncio.sleep(fault.seconds)
            abort(request)
    return response


async def executed(session: Session, seconds: int) -> dict[str, object]:
    found = {"stdout": b"", "stderr": b""}

    async def collect() -> int:
        async for piece in session.output():
            found[piece.stream] += piece.data
        return await session.wait()

    try:
        async with asyncio.timeout(seconds):
            code: int | None = await collect()
    except TimeoutError:
        await session.kill()
        code = None
    finally:
        await session.close()
    texts = {name: data.decode(errors="replace") for name, data in found.items()}
    return {"exitCode": code, **texts, "timedOut": code is None}


def start_of_log(request: web.Request, log: LogBook) -> int:
    """Return the number of the entry after which a stream starts. A cursor wins; else time and tail both apply."""
    if last := request.headers.get("Last-Event-ID", ""):
        return log.after(last)
    tail = int(request.query.get("tail", "100"))
    if not 0 <= tail <= _MAX_TAIL:
        raise Refusal(400, "tail must be from 0 to 5000")
    given = request.query.get("since", "")
    return max(log.since(given) if given else 0, len(log.entries) - tail)


def log_line(entry: Entry) -> bytes:
    """Return the payload of one event of a log stream."""
    return msgspec.json.encode({"source": entry.source, "line": entry.line, "ts": entry.ts})


def with_stock(request: web.Request) -> bool:
    has_stock = "AVAILABILITY" in request.query.getall("include", [])
    if has_stock and request.query.get("product") != "POD":
        raise Refusal(400, "product is required with include=AVAILABILITY")
    return has_stock


async def body(request: web.Request) -> bytes:
    content = await request.read()
    if len(content) > MAX_BODY_BYTES:
        raise Refusal(413, f"request body exceeds {MAX_BODY_BYTES} bytes")
    return content


def problem(refusal: Refusal, headers: Mapping[str, str]) -> web.Response:
    problem: dict[str, object] = {
        "title": _TITLES.get(refusal.status, "Error"),
        "status": refusal.status,
        "detail": refusal.detail,
    }
    extra = dict(headers)
    if refusal.status == _TOO_MANY:
        extra["Retry-After"] = refusal.errors[0]
    elif refusal.errors:
        problem["errors"] = list(refusal.errors)
    return web.Response(
        body=msgspec.json.encode(problem),
        status=refusal.status,
        headers=extra,
        content_type="application/problem+json",
    )


def json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


def pod_id(request: web.Request) -> str:
    return request.match_info["id"]


def abort(request: web.Request) -> None:
    assert request.transport is not None, "a request that is being handled has a connection"
    request.transport.abort()
