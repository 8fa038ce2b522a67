"""The hull's process: the control plane and the operator on this machine, inside one set of namespaces.

Two parts. The outer part stays in the machine's network and carries connections in; when it dies, the kernel ends the
rest. The inner part supervises the units and answers on the control socket.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from skysail.app.install import install, install_node
from skysail.kube import kubeconfig, resources
from skysail.kube.client import Client
from skysail.kube.errors import KubeError
from skysail.kube.http import HttpTransport
from skysail.local import control, doors, hull, syscalls
from skysail.local.addresses import API_PORT, HULL, NODE, OPERATOR_HEALTH_PORT
from skysail.local.control import Answer, Control, HullStatus, Request
from skysail.local.control_server import ControlServer
from skysail.local.errors import LocalError
from skysail.local.home import Home
from skysail.local.launch import HullSettings
from skysail.local.net import egress
from skysail.local.net.guard import Guard
from skysail.local.net.httpproxy import HttpProxy
from skysail.local.plane import credentials, pki, start
from skysail.local.supervisor import Supervisor, Surroundings, Unit
from skysail.node import register

_DIAL_SECONDS = 5.0


def main(argument: str) -> int:
    """Run until stopped. Returns the exit code; why it failed is left in the home for the one who asked."""
    settings = msgspec.json.decode(argument, type=HullSettings)
    if settings.tied:
        syscalls.die_with_parent()
    home = Home(Path(settings.home))
    home.prepare()
    os.chdir(home.root)
    if home.lock() is None:
        return 0  # another `up` was faster: there is one hull per home
    door = doors.open_listener(_last_port(home))
    home.door_port.write_text(str(door.getsockname()[1]))
    inside = _Inside(settings, home, f"https://127.0.0.1:{door.getsockname()[1]}")
    try:
        entry = hull.launch(lambda: asyncio.run(inside.run()))
    except LocalError as error:
        home.failure.write_text(str(error))
        return error.exit_code
    return asyncio.run(_outside(entry, door, home, with_egress=settings.with_node))


async def _outside(entry: int, door: socket.socket, home: Home, *, with_egress: bool) -> int:
    """Carry connections in, and what pods ask for out, until the hull ends; pass on a wish to end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os.kill, entry, number)

    async def dial() -> socket.socket:
        return await asyncio.to_thread(Control(home.control).dial, HULL, API_PORT)

    server = await doors.serve(door, dial)
    way_out = HttpProxy(egress.outer(Guard()))
    opening = asyncio.create_task(_let_pods_out(way_out, home)) if with_egress else None
    _, status = await asyncio.to_thread(os.waitpid, entry, 0)
    server.close()
    if opening is not None:
        opening.cancel()
        await asyncio.wait([opening])
    await way_out.close()
    return os.waitstatus_to_exitcode(status)


async def _let_pods_out(proxy: HttpProxy, home: Home) -> None:
    listener = await egress.make_listener(Control(home.control))
    listener.setblocking(False)
    await proxy.serve(listener)


class _StopAsked(Exception):
    """Somebody wants the hull to end."""


class _Inside:
    """The inner part: what runs in the namespaces."""

    def __init__(self, settings: HullSettings, home: Home, url: str) -> None:
        self._settings = settings
        self._home = home
        self._url = url
        self._outer_pid = os.getpid()
        self._started = time.time()
        self._steps: list[str] = []
        self._is_ready = False
        self._supervisor = Supervisor(home.logs, Surroundings(now=time.time, pause=asyncio.sleep, tell=_log))

    async def run(self) -> int:
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        code = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ControlServer(self._home.control, self._perform).serve())
                tasks.create_task(self._until_stopped())
                tasks.create_task(self._start())
        except* _StopAsked:
            _log("stopping")
        except* (LocalError, KubeError, OSError) as failures:
            code = 1
            reasons = (str(failure) or type(failure).__name__ for failure in failures.exceptions)
            self._home.failure.write_text("\n".join(reasons))
        finally:
            self._home.control.unlink(missing_ok=True)
            await self._supervisor.stop_all()
        return code

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise _StopAsked

    async def _start(self) -> None:
        home, now = self._home, datetime.now(UTC)
        credentials.write_all(home, pki.ensure(home.pki, now), self._url, now)
        planned = start.units(home, self._settings.binaries, self._settings.plane)
        await start.start(self._supervisor, home, planned, self._say)
        await install(credentials.inside_path(home, "admin"))
        self._say("the kinds of Skysail are installed")
        if self._settings.with_operator:
            await self._start_operator()
        if self._settings.with_node:
            await self._start_node()
        self._is_ready = True

    async def _start_operator(self) -> None:
        login = credentials.inside_path(self._home, "operator")
        run = (sys.executable, "-m", "skysail", "run", f"--kubeconfig={login}", f"--webhook-host={HULL}")
        await self._supervisor.start(Unit(name="operator", argv=run))
        await start.until(_operator_is_ready, "the operator to be ready", self._supervisor)
        self._say("the operator is ready")

    async def _start_node(self) -> None:
        authority = (self._home.pki / "ca.crt").read_bytes()
        await install_node(credentials.inside_path(self._home, "admin"), authority)
        run = (sys.executable, "-m", "skysail.app.agent", str(self._home.root))
        await self._supervisor.start(Unit(name="agent", argv=run))
        transport = HttpTransport(kubeconfig.from_file(credentials.inside_path(self._home, "admin")))
        try:
            await start.until(partial(_node_is_ready, Client(transport)), "the node to be ready", self._supervisor)
        finally:
            await transport.close()
        self._say(f"node {NODE} is ready")

    def _say(self, step: str) -> None:
        self._steps.append(step)
        _log(step)

    async def _perform(self, request: Request) -> Answer | socket.socket:
        match request:
            case control.AskStatus():
                return Answer(status=self._status())
            case control.StopHull():
                self._stop.set()
            case control.StartUnit(unit):
                await self._supervisor.start(unit)
            case control.ResumeUnit(name):
                await self._supervisor.resume(name)
            case control.StopUnit(name):
                await self._supervisor.stop(name)
            case control.SignalUnit(name, number):
                self._supervisor.signal(name, number)
            case control.Listen(host, port):
                return _listen(host, port)
            case control.Dial(host, port):
                return await asyncio.wait_for(_dial(host, port), _DIAL_SECONDS)
        return Answer()

    def _status(self) -> HullStatus:
        return HullStatus(
            is_ready=self._is_ready,
            pid=self._outer_pid,
            started=self._started,
            url=self._url,
            steps=tuple(self._steps),
            units=self._supervisor.status(),
        )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(128)
    return listener


async def _dial(host: str, port: int) -> socket.socket:
    line = socket.socket()
    line.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(line, (host, port))
    except BaseException:
        line.close()
        raise
    return line


async def _operator_is_ready() -> bool:
    url = f"http://{HULL}:{OPERATOR_HEALTH_PORT}/readyz"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            return reply.status == 200  # noqa: PLR2004 (HTTP OK)
    except (aiohttp.ClientError, OSError):
        return False


async def _node_is_ready(client: Client) -> bool:
    try:
        node = await client.get(resources.NODE, "", NODE, register.NodeObject)
    except KubeError:
        return False
    return any(row["type"] == "Ready" and row["status"] == "True" for row in node.status.conditions)


def _last_port(home: Home) -> int:
    try:
        return int(home.door_port.read_text())
    except (FileNotFoundError, ValueError):
        return 0


def _log(line: str) -> None:
    print(datetime.now(UTC).isoformat(timespec="milliseconds"), line, flush=True)  # noqa: T201 (stdout is hull.log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
