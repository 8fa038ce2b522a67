"""Probe and lifecycle handlers of a run, executed through its provider.

An empty result is success; otherwise it is the reason. Handlers connect to the pod itself only: a node that connects to
any host named in a pod could be sent to servers that the pod itself cannot reach.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skysail.cloud.errors import ProviderError, Throttled
from skysail.cloud.provider import PortConnection, Provider, RunId
from skysail.node.pod_types import Container, ExecAction, GrpcAction, Handler, HttpAction, Probe, TcpAction
from skysail.node.probes import grpc_health
from skysail.node.probes.pace import ProbePace
from skysail.node.probes.tls_connection import TlsConnection

_GOOD = range(200, 400)
_MAX_REASON_LENGTH = 1024
_MAX_LINE_BYTES = 8192
_MAX_RESPONSE_BYTES = 10 * 1024
_HOOK_SECONDS = 30.0


class ProbeHandlers:
    """Runs the handlers of one run. `address` is the pod's address, for the headers of requests."""

    def __init__(self, provider: Provider, run: RunId, container: Container, address: str) -> None:
        self._provider = provider
        self._run = run
        self._container = container
        self._address = address

    async def paced_probe(self, pace: ProbePace, probe: Probe | Handler, timeout: float) -> str | None:  # noqa: ASYNC109 (the probe's own field)
        """Run a probe once, a command only when it has its turn.

        Returns the reason of a failure, an empty string, or None if the provider had no request left for it.
        """
        if probe.exec is not None:
            await pace.wait_for_turn()
        try:
            return await self._run_once(probe, timeout)
        except Throttled:
            return None

    async def probe(self, action: Probe | Handler, timeout: float) -> str:  # noqa: ASYNC109 (the probe's own field)
        """Run the handler once. Returns the reason of a failure, or an empty string."""
        try:
            return await self._run_once(action, timeout)
        except Throttled as error:
            return str(error)

    async def _run_once(self, action: Probe | Handler, timeout: float) -> str:  # noqa: ASYNC109 (the probe's own field)
        """Run the handler once. Raises Throttled if it could not run."""
        try:
            async with asyncio.timeout(timeout):
                return (await self._run_action(action))[-_MAX_REASON_LENGTH:]
        except TimeoutError:
            return f"no answer within {timeout:.0f} s"
        except Throttled:
            raise
        except (ProviderError, OSError) as error:
            return str(error) or type(error).__name__

    async def run_hook(self, handler: Handler, seconds: float = _HOOK_SECONDS) -> str:
        if handler.sleep is not None:
            await asyncio.sleep(min(handler.sleep.seconds, seconds))
            return ""
        return await self.probe(handler, seconds)

    async def _run_action(self, action: Probe | Handler) -> str:
        if action.exec is not None:
            return await self._run_exec(action.exec)
        if action.http_get is not None:
            return await self._run_http(action.http_get)
        if action.tcp_socket is not None:
            return await self._run_tcp(action.tcp_socket)
        if isinstance(action, Probe) and action.grpc is not None:
            return await self._run_grpc(action.grpc)
        return ""

    async def _run_exec(self, action: ExecAction) -> str:
        session = await self._provider.exec(self._run, action.command, stdin=False, tty=False)
        output = b""
        try:
            async for piece in session.output():
                output = (output + piece.data)[-_MAX_RESPONSE_BYTES:]
            code = await session.wait()
        except asyncio.CancelledError:
            await session.kill()  # after a timeout, so that commands of later probes do not pile up
            raise
        finally:
            await session.close()
        return output.decode(errors="replace") or f"exit code {code}" if code else ""

    async def _run_http(self, action: HttpAction) -> str:
        port = self._port(action.port)
        async with self._connect(port) as plain:
            connection = await TlsConnection.open(plain, self._insecure_tls) if action.scheme == "HTTPS" else plain
            await connection.write(_request(action, f"{self._address}:{port}"))
            parts = (await _first_line(connection)).split(maxsplit=2)
        if len(parts) < 2 or not parts[1].isdigit():  # noqa: PLR2004 (the version and the code)
            return "the response is not HTTP"
        return "" if int(parts[1]) in _GOOD else f"HTTP probe failed with statuscode: {parts[1]}"

    async def _run_tcp(self, action: TcpAction) -> str:
        async with self._connect(self._port(action.port)):
            return ""

    async def _run_grpc(self, action: GrpcAction) -> str:
        health_response = grpc_health.HealthResponse(action.service or "")
        async with self._connect(action.port) as connection:
            await connection.write(grpc_health.request(action.service or "", f"{self._address}:{action.port}"))
            while not health_response.is_complete and (data := await connection.read()):
                try:
                    reply = health_response.feed(data)
                except grpc_health.NotHttp2:
                    break
                if reply:
                    await connection.write(reply)
        return health_response.reason

    @asynccontextmanager
    async def _connect(self, port: int) -> AsyncIterator[PortConnection]:
        connection = await self._provider.connect(self._run.pod, port, from_outside=True)
        try:
            yield connection
        finally:
            await connection.close()

    @functools.cached_property
    def _insecure_tls(self) -> ssl.SSLContext:
        """Return a context without verification: as in a kubelet, a probe does not check the server's identity."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _port(self, port: int | str) -> int:
        named = {row.name: row.container_port for row in self._container.ports}
        return port if isinstance(port, int) else named.get(port, 0)


async def _first_line(connection: PortConnection) -> str:
    received = b""
    while b"\n" not in received and len(received) < _MAX_LINE_BYTES and (data := await connection.read()):
        received += data
    return received.partition(b"\n")[0].decode(errors="replace")


def _request(action: HttpAction, host: str) -> bytes:
    headers = {"Host": host, "User-Agent": "kube-probe/skysail", "Accept": "*/*", "Connection": "close"}
    headers |= {header.name: header.value for header in action.http_headers}
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()
