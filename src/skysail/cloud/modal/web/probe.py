"""Probe of a deployed web App: whether a container really imports the handler, or starts the server."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import msgspec
from yarl import URL

from skysail.cloud import http_address, outbound
from skysail.cloud.errors import OutcomeUnknown, Rejected

READY_PATH = "/_skysail/ready"
_PROBLEM_HEADER = "X-Skysail-Problem"
# Begin of the answers of Modal's own gateway.
_GATEWAY = "modal-http:"
_START_FAILED = f"{_GATEWAY} container failed to start"
_REQUEST_SECONDS = 170.0
_RETRY_SECONDS = 0.5
# Bytes of an answer.
_MAX_TEXT = 2000
_MAX_FAILURES = 3
# Modal redirects a slow request each 150 seconds.
_MAX_REDIRECTS = 20
_SERVER_ERROR = 500
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})


class _Problem(msgspec.Struct):
    error: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the App. `problem` is why the handler cannot be imported or the server cannot start, if so."""

    status: int
    problem: str | None
    text: str


def verifies(url: str) -> bool:
    """Return whether the certificate of a URL is checked. A stand-in on this machine has none that others know."""
    return URL(url).host not in _LOOPBACK


async def probe(url: str, headers: tuple[tuple[str, str], ...], seconds: float) -> None:
    """Return when a container answers. Raises Rejected with the reason if it cannot, OutcomeUnknown after `seconds`."""
    deadline = time.monotonic() + seconds
    failures, text = 0, "no answer"
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    # An answer is never unpacked: a small one may become as large as the memory.
    plain = {"Accept-Encoding": "identity"}
    async with aiohttp.ClientSession(timeout=timeout, headers=plain, auto_decompress=False) as session:
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    answer = await _ask(session, URL(url), headers)
                text = answer.text
                if answer.problem is not None:
                    raise Rejected(answer.problem, _message(text))
                if _is_answer(answer.status, text):
                    return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                text = _reason(error)
            failures += text.startswith(_START_FAILED)
            if failures >= _MAX_FAILURES:
                raise Rejected("StartError", f"Modal cannot start a container: {text}")
            await asyncio.sleep(_RETRY_SECONDS)
    raise OutcomeUnknown(f"The App did not answer in {seconds:.0f} seconds: {text}")


async def _ask(session: aiohttp.ClientSession, base: URL, headers: tuple[tuple[str, str], ...]) -> _Answer:
    """Send one request, and follow Modal's own redirects alone: the headers must not reach another host."""
    url = base.join(URL(READY_PATH))
    for _ in range(_MAX_REDIRECTS):
        async with session.get(
            url, headers=headers, allow_redirects=False, ssl=verifies(str(base)), proxy=outbound.http_proxy(url)
        ) as reply:
            following = http_address.follows(reply.status, reply.headers.get("Location", ""), base, reply.url)
            if following is None:
                text = await _begin(reply.content)
                return _Answer(status=reply.status, problem=reply.headers.get(_PROBLEM_HEADER), text=text)
        url = following
    raise TimeoutError(f"no answer after {_MAX_REDIRECTS} redirects")


async def _begin(body: aiohttp.StreamReader) -> str:
    """Return the begin of a body. The rest is never read: a tenant's server decides how long it is."""
    found = b""
    while len(found) < _MAX_TEXT and (chunk := await body.read(_MAX_TEXT - len(found))):
        found += chunk
    return found.decode(errors="replace").strip()


def _is_answer(status: int, text: str) -> bool:
    """Return whether the server has answered. Modal's own answers come before a deploy has reached its gateway."""
    if text.startswith(_GATEWAY):
        return False
    return status < _SERVER_ERROR


def _reason(error: Exception) -> str:
    """Return the text of an error without the URL of a proxy, which contains its password: tenants read the text."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy of the environment answered {error.status}"
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.InvalidURL)):
        return type(error).__name__
    return f"{type(error).__name__}: {error}"


def _message(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=_Problem).error or text
    except msgspec.MsgspecError:
        return text
