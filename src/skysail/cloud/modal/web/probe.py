"""Probe of a deployed web App: whether a container really imports the handler, or starts the server."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import msgspec
from yarl import URL

from skysail.cloud.errors import OutcomeUnknown, Rejected

READY_PATH = "/_skysail/ready"
_PROBLEM_HEADER = "X-Skysail-Problem"
# Begin of the answers of Modal's own gateway.
_GATEWAY = "modal-http:"
_START_FAILED = f"{_GATEWAY} container failed to start"
_REQUEST_SECONDS = 170.0
_RETRY_SECONDS = 0.5
_MAX_TEXT = 2000
_MAX_FAILURES = 3
_REDIRECT, _UNAUTHORIZED, _NOT_FOUND, _SERVER_ERROR = 303, 401, 404, 500
_LOOPBACK = frozenset({"127.0.0.1", "localhost"})


class _Problem(msgspec.Struct):
    error: str = ""


def verifies(url: str) -> bool:
    """Return whether the certificate of a URL is checked. A stand-in on this machine has none that others know."""
    return URL(url).host not in _LOOPBACK


async def probe(url: str, headers: tuple[tuple[str, str], ...], seconds: float) -> None:
    """Return when a container answers. Raises Rejected with the reason if it cannot, OutcomeUnknown after `seconds`."""
    deadline = time.monotonic() + seconds
    failures, text = 0, "no answer"
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, headers=dict(headers)) as session:
        while time.monotonic() < deadline:
            try:
                async with session.get(f"{url}{READY_PATH}", ssl=verifies(url)) as reply:
                    text = (await reply.text(errors="replace"))[:_MAX_TEXT].strip()
                    if (reason := reply.headers.get(_PROBLEM_HEADER)) is not None:
                        raise Rejected(reason, _message(text))
                    if _is_answer(reply.status, text):
                        return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                text = f"{type(error).__name__}: {error}"
            failures += text.startswith(_START_FAILED)
            if failures >= _MAX_FAILURES:
                raise Rejected("StartError", f"Modal cannot start a container: {text}")
            await asyncio.sleep(_RETRY_SECONDS)
    raise OutcomeUnknown(f"The App did not answer in {seconds:.0f} seconds: {text}")


def _is_answer(status: int, text: str) -> bool:
    """Return whether the server has answered. Modal's own answers come before a deploy has reached its gateway."""
    if text.startswith(_GATEWAY):
        return False
    return status < _SERVER_ERROR


def _message(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=_Problem).error or text
    except msgspec.MsgspecError:
        return text
