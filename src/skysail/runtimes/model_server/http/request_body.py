"""Reading of request bodies within the limit, and detection of disconnected clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from skysail.runtimes.model_server.errors import ClientDisconnected, RequestError

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_DRAIN_SECONDS = 2.0


class TooLong(RequestError):
    """The body exceeds the limit, and most of it is unread."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is longer than {limit} bytes (MAX_BODY_BYTES): send less.", 413)


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Read the body. Raises TooLong, before reading if possible, or ClientDisconnected."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            if int(value) > limit:
                raise TooLong(limit)
            break
    message = await receive()
    body: bytes = message.get("body", b"")
    parts = [body]
    size = len(body)
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLong(limit)
    if message["type"] == "http.disconnect":
        raise ClientDisconnected("The client has disconnected.")
    return body if len(parts) == 1 else b"".join(parts)


async def drain(scope: Scope, receive: Receive) -> None:
    """Read the rest for a moment: most clients read the answer only after they have sent everything."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return  # the client waits for permission and will not send the body
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return


def has_left(receive: Receive) -> bool:
    """Return whether the client has disconnected: one step of `receive` finishes at once only then."""
    step: Any = receive()
    try:
        step.send(None)
    except StopIteration as message:
        return bool(message.value["type"] == "http.disconnect")
    step.close()
    return False
