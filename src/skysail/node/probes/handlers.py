"""One question to a run, through its provider; and what it wants done after its start and before its end.

An empty answer is good, another is the reason. Nothing is asked of any other host than the pod itself: a node that
would connect to wherever a pod names could be sent to places that the pod itself cannot reach.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Line, Provider, RunId
from skysail.node.pod_types import Container, ExecAction, GrpcAction, Handler, HttpAction, Probe, TcpAction
from skysail.node.probes import grpc_health
from skysail.node.probes.tls_connection import TlsLine

_GOOD = range(200, 400)
_LONGEST_REASON = 1024
_LONGEST_LINE = 8192
_LONGEST_ANSWER = 10 * 1024
_HOOK_SECONDS = 30.0


class Checks:
    """Asks one run. `address` is its pod's, as its servers should see it in a request."""

    def __init__(self, provider: Provider, run: RunId, container: Container, address: str) -> None:
        self._provider = provider
        self._run = run
        self._container = container
        self._address = address

    async def check(self, action: Probe | Handler, timeout: float) -> str:  # noqa: ASYNC109 (the probe's own field)
        """Empty where all is well; else why not."""
        try:
            async with asyncio.timeout(timeout):
                return (await self._ask(action))[-_LONGEST_REASON:]
        except TimeoutError:
            return f"no answer within {timeout:.0f} s"
        except (ProviderError, OSError) as error:
            return str(error) or type(error).__name__

    async def hook(self, handler: Handler, seconds: float = _HOOK_SECONDS) -> str:
        if handler.sleep is not None:
            await asyncio.sleep(min(handler.sleep.seconds, seconds))
            return ""
        return await self.check(handler, seconds)

    async def _ask(self, action: Probe | Handler) -> str:
        if action.exec is not None:
            return await self._ask_command(action.exec)
        if action.http_get is not None:
            return await self._ask_http(action.http_get)
        if action.tcp_socket is not None:
            return await self._ask_tcp(action.tcp_socket)
        if isinstance(action, Probe) and action.grpc is not None:
            return await self._ask_grpc(action.grpc)
        return ""

    async def _ask_command(self, action: ExecAction) -> str:
        session = await self._provider.exec(self._run, action.command, stdin=False, tty=False)
        said = b""
        try:
            async for piece in session.output():
                said = (said + piece.data)[-_LONGEST_ANSWER:]
            code = await session.wait()
        except asyncio.CancelledError:
            await session.kill()  # its time is over, and the next one must not find it still there
            raise
        finally:
            await session.close()
        return said.decode(errors="replace") or f"exit code {code}" if code else ""

    async def _ask_http(self, action: HttpAction) -> str:
        port = self._port(action.port)
        async with self._line(port) as plain:
            line = await TlsLine.open(plain, self._trusting) if action.scheme == "HTTPS" else plain
            await line.write(_request(action, f"{self._address}:{port}"))
            words = (await _first_line(line)).split(maxsplit=2)
        if len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 (the version and the code)
            return "the answer is no HTTP"
        return "" if int(words[1]) in _GOOD else f"HTTP probe failed with statuscode: {words[1]}"

    async def _ask_tcp(self, action: TcpAction) -> str:
        async with self._line(self._port(action.port)):
            return ""

    async def _ask_grpc(self, action: GrpcAction) -> str:
        answer = grpc_health.Answer(action.service or "")
        async with self._line(action.port) as line:
            await line.write(grpc_health.request(action.service or "", f"{self._address}:{action.port}"))
            while not answer.is_complete and (data := await line.read()):
                try:
                    reply = answer.feed(data)
                except grpc_health.NoHttp2:
                    break
                if reply:
                    await line.write(reply)
        return answer.reason

    @asynccontextmanager
    async def _line(self, port: int) -> AsyncIterator[Line]:
        line = await self._provider.dial(self._run.pod, port, from_outside=True)
        try:
            yield line
        finally:
            await line.close()

    @functools.cached_property
    def _trusting(self) -> ssl.SSLContext:
        """A probe asks whether somebody answers, not who: no authority is read for it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _port(self, port: int | str) -> int:
        named = {row.name: row.container_port for row in self._container.ports}
        return port if isinstance(port, int) else named.get(port, 0)


async def _first_line(line: Line) -> str:
    heard = b""
    while b"\n" not in heard and len(heard) < _LONGEST_LINE and (data := await line.read()):
        heard += data
    return heard.partition(b"\n")[0].decode(errors="replace")


def _request(action: HttpAction, host: str) -> bytes:
    headers = {"Host": host, "User-Agent": "kube-probe/skysail", "Accept": "*/*", "Connection": "close"}
    headers |= {header.name: header.value for header in action.http_headers}
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()
