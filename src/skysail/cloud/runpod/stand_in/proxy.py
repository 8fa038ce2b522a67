"""HTTP proxy of the stand-in: `<pod>-<port>.proxy.runpod.net` reaches a port of a pod, as at RunPod.

One request per connection. The answer is passed on byte by byte, so that streams work.
"""

from __future__ import annotations

import re

from aiohttp import web

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import PortConnection
from skysail.cloud.runpod.stand_in.service import StandInService
from skysail.cloud.runpod.stand_in.validation import Refusal

_HOST = re.compile(r"([a-z0-9]{1,64})-([0-9]{1,5})\.proxy\.runpod\.net(?::[0-9]+)?")
_MAX_HEAD_BYTES = 64 * 1024
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


def target(host: str) -> tuple[str, int] | None:
    """Return the pod and the port that a host name means, or None for another host."""
    match = _HOST.fullmatch(host)
    return (match[1], int(match[2])) if match else None


async def forward(request: web.Request, service: StandInService, pod_id: str, port: int) -> web.StreamResponse:
    """Send a request to a port of a pod, and return its answer."""
    try:
        pod = service.find(pod_id)
        if f"{port}/http" not in pod.body.ports:
            return web.Response(status=404, text="port not exposed")
        connection = await pod.connect(port)
    except (Refusal, ProviderError) as error:
        return web.Response(status=502, text=str(error))
    try:
        return await _exchange(request, connection)
    except ConnectionError:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502, text="connection broke")
    finally:
        await connection.close()


async def _exchange(request: web.Request, connection: PortConnection) -> web.StreamResponse:
    body = await request.read()
    lines = [f"{request.method} {request.path_qs} HTTP/1.0"]  # without chunks
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP]
    lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
    await connection.write("\r\n".join(lines).encode() + body)
    head, rest = await _head(connection)
    if head is None:
        return web.Response(status=502, text="no answer")
    status, headers = head
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    # The head may come without a part of the body, so an empty rest is not the end.
    if rest:
        await response.write(rest)
    while data := await connection.read():
        await response.write(data)
    await response.write_eof()
    return response


async def _head(connection: PortConnection) -> tuple[tuple[int, dict[str, str]] | None, bytes]:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _MAX_HEAD_BYTES:
        piece = await connection.read()
        if not piece:
            return None, b""
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 (version and status)
        return None, b""
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    headers = {name.strip(): value.strip() for name, value in pairs if name.strip().lower() not in _HOP_BY_HOP}
    return (int(words[1]), headers), rest
