"""Asks a run whether it has started, is ready, and is alive; and does what it wants done after its start.

A check is one question: an empty answer is good, another is the reason. Probes are loops over checks, by the rules of
Kubernetes: thresholds count answers in a row, and nothing else is asked before the start-up probe has passed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from skysail.cloud.contract import Provider, RunId
from skysail.cloud.errors import ProviderError
from skysail.node.manifest import Container, ExecAction, Handler, HttpAction, Probe, TcpAction
from skysail.node.snapshot import Health

_GOOD = range(200, 400)
_LONGEST_REASON = 1024
_HOOK_SECONDS = 30.0

Check = Callable[[Probe | Handler, float], Awaitable[str]]


def initial(container: Container) -> Health:
    """What is known of a run before anything was asked."""
    return Health(started=container.startup_probe is None, ready=container.readiness_probe is None)


async def watch(container: Container, check: Check, tell: Callable[[Health], None]) -> None:
    """Ask until cancelled, or until the run has to be ended. Tells the health whenever it changes."""
    health = initial(container)

    def changed(**news: bool | str) -> None:
        nonlocal health
        new = msgspec.structs.replace(health, **news)
        if new != health:
            health = new
            tell(new)

    if container.startup_probe:
        async for passed, reason in _verdicts(container.startup_probe, check):
            if passed:
                break
            changed(failure=f"Startup probe failed: {reason}")
            return
        changed(started=True)
    async with asyncio.TaskGroup() as tasks:
        if container.readiness_probe:
            tasks.create_task(_follow_readiness(container.readiness_probe, check, lambda ready: changed(ready=ready)))
        if container.liveness_probe:
            tasks.create_task(_follow_liveness(container.liveness_probe, check, lambda why: changed(failure=why)))


async def _follow_readiness(probe: Probe, check: Check, tell: Callable[[bool], None]) -> None:
    async for passed, _ in _verdicts(probe, check):
        tell(passed)


async def _follow_liveness(probe: Probe, check: Check, tell: Callable[[str], None]) -> None:
    async for passed, reason in _verdicts(probe, check):
        if not passed:
            tell(f"Liveness probe failed: {reason}")
            return


async def _verdicts(probe: Probe, check: Check) -> AsyncIterator[tuple[bool, str]]:
    """A verdict each time that enough answers in a row agree."""
    await asyncio.sleep(probe.initial_delay_seconds)
    good = bad = 0
    while True:
        reason = await check(probe, float(probe.timeout_seconds))
        good, bad = (0, bad + 1) if reason else (good + 1, 0)
        if good >= probe.success_threshold:
            yield True, ""
        if bad >= probe.failure_threshold:
            yield False, reason
        await asyncio.sleep(probe.period_seconds)


class Checks:
    """Asks one run. `address` is its pod's."""

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
        except (ProviderError, OSError, ssl.SSLError) as error:
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
        return ""

    async def _ask_command(self, action: ExecAction) -> str:
        session = await self._provider.exec(self._run, action.command, stdin=False, tty=False)
        try:
            said = b"".join([piece.data async for piece in session.output()])
            code = await session.wait()
        finally:
            await session.close()
        return said.decode(errors="replace") or f"exit code {code}" if code else ""

    async def _ask_http(self, action: HttpAction) -> str:
        tls = _trusting() if action.scheme == "HTTPS" else None
        host, port = action.host or self._address, self._port(action.port)
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            writer.write(_request(action, f"{host}:{port}"))
            line = (await reader.readline()).decode(errors="replace").split(maxsplit=2)
        finally:
            writer.close()
        if len(line) < 2 or not line[1].isdigit():  # noqa: PLR2004 (the version and the code)
            return "the answer is no HTTP"
        return "" if int(line[1]) in _GOOD else f"HTTP probe failed with statuscode: {line[1]}"

    async def _ask_tcp(self, action: TcpAction) -> str:
        _, writer = await asyncio.open_connection(action.host or self._address, self._port(action.port))
        writer.close()
        return ""

    def _port(self, port: int | str) -> int:
        named = {row.name: row.container_port for row in self._container.ports}
        return port if isinstance(port, int) else named.get(port, 0)


def _request(action: HttpAction, host: str) -> bytes:
    headers = {"Host": host, "User-Agent": "kube-probe/skysail", "Accept": "*/*", "Connection": "close"}
    headers |= {header.name: header.value for header in action.http_headers}
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


def _trusting() -> ssl.SSLContext:
    """A probe asks whether somebody answers, not who."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
