"""Web Functions of a user, as a lone file: an ASGI app, and a server of its own."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any


def asgi() -> Any:
    """Return an app that answers with what it received. Raises if the environment asks for it."""
    if os.environ.get("BROKEN"):
        raise RuntimeError("broken on purpose")
    return answer


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await _echo(receive, send)
    else:
        await _answer(scope, receive, send)


async def _answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    names = {name.decode() for name, _ in scope["headers"]}
    if scope["path"] == "/slow":
        await asyncio.sleep(float(scope["query_string"].decode()))
    if scope["path"] == "/exit":
        os._exit(7)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    if scope["path"] == "/stream":
        for number in range(3):
            await send({"type": "http.response.body", "body": f"{number}\n".encode(), "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})
        return
    seen = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "length": len(body),
        "value": os.environ.get("VALUE", ""),
        "task": os.environ["MODAL_TASK_ID"],
        "has_credentials": "modal-secret" in names,
    }
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


async def _echo(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": f"echo {message.get('text')}"})


def serve() -> None:
    """Start the user's own server in the background."""
    subprocess.Popen([sys.executable, "-m", "http.server", "8000"])
