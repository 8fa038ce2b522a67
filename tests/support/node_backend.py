"""A backend of the node's server whose pods are processes of this machine: a stand-in for the node and a provider."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web
from yarl import URL

from skysail.cloud.errors import Gone, Rejected
from skysail.cloud.provider import Features, Output, RunId, Usage
from skysail.node.server.backend import ContainerStats, NodeStats, PodRef
from skysail.node.server.errors import NotFound, NotRunning
from skysail.node.server.routes import make_runner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.node.log_store import LogQuery, LogStore

PIECE = 128 * 1024
EVERYTHING = Features(exec=True, attach=True, port_forward=True, stats=True)


class Talk:
    """A command with pipes or a terminal: `cloud.contract.Session`."""

    def __init__(self, child: asyncio.subprocess.Process, master: int | None) -> None:
        self.child = child
        self._master = master
        self.sizes: list[tuple[int, int]] = []

    @classmethod
    async def start(cls, command: tuple[str, ...], *, tty: bool) -> Talk:
        pipe = asyncio.subprocess.PIPE
        try:
            if not tty:
                return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe), None)
            master, slave = pty.openpty()
            try:
                child = await asyncio.create_subprocess_exec(
                    *command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=_own_terminal
                )
            except OSError:
                os.close(master)
                raise
            finally:
                os.close(slave)
            os.set_blocking(master, False)
            return cls(child, master)
        except FileNotFoundError as error:
            message = f'exec: "{command[0]}": executable file not found in $PATH'
            raise Rejected("StartError", message) from error

    async def write(self, data: bytes) -> None:
        if self._master is not None:
            os.write(self._master, data)
            return
        assert self.child.stdin
        self.child.stdin.write(data)
        await self.child.stdin.drain()

    async def close_stdin(self) -> None:
        if self._master is None:
            assert self.child.stdin
            self.child.stdin.close()

    async def output(self) -> AsyncIterator[Output]:
        if self._master is not None:
            while data := await self._from_terminal():
                yield Output("stdout", time.time(), data)
            return
        queue: asyncio.Queue[Output | None] = asyncio.Queue(4)
        async with asyncio.TaskGroup() as tasks:
            for name in ("stdout", "stderr"):
                tasks.create_task(self._from_pipe(name, queue))
            for _ in range(2):
                while piece := await queue.get():
                    yield piece

    async def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))
        if self._master is not None:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def wait(self) -> int:
        code = await self.child.wait()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        if self.child.returncode is None:
            self.child.kill()

    async def close(self) -> None:
        await self.kill()
        await self.child.wait()
        if self._master is not None:
            os.close(self._master)
            self._master = None
        self.child._transport.close()

    async def _from_pipe(self, name: Any, queue: asyncio.Queue[Output | None]) -> None:
        reader = getattr(self.child, name)
        while data := await reader.read(PIECE):
            await queue.put(Output(name, time.time(), data))
        await queue.put(None)

    async def _from_terminal(self) -> bytes:
        while self._master is not None:
            try:
                return os.read(self._master, PIECE)
            except BlockingIOError:
                await _readable(self._master)
            except OSError:
                return b""
        return b""


class Attached:
    """Hears a container's output from now on, and types to it."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._pieces: asyncio.Queue[Output | None] = asyncio.Queue()
        container.listeners.append(self._pieces)

    async def write(self, data: bytes) -> None:
        await self._container.talk.write(data)

    async def close_stdin(self) -> None:
        await self._container.talk.close_stdin()

    async def output(self) -> AsyncIterator[Output]:
        while piece := await self._pieces.get():
            yield piece

    async def resize(self, width: int, height: int) -> None:
        await self._container.talk.resize(width, height)

    async def wait(self) -> int:
        return await self._container.talk.wait()

    async def kill(self) -> None:
        return

    async def close(self) -> None:
        if self._pieces in self._container.listeners:
            self._container.listeners.remove(self._pieces)


class Container:
    """One run of the container `main`, whose output goes to the log and to whoever is attached."""

    def __init__(self, run: RunId, talk: Talk, logs: LogStore) -> None:
        self.run = run
        self.talk = talk
        self.listeners: list[asyncio.Queue[Output | None]] = []
        self.writer = logs.writer(run)
        self.task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        async for piece in self.talk.output():
            self.writer.write(piece)
            for listener in self.listeners:
                listener.put_nowait(piece)
        self.writer.close()
        for listener in self.listeners:
            listener.put_nowait(None)


class TcpLine:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class ProcessBackend:
    """Pods by name, each with a container `main`; `skysail.node.server.backend.Backend`."""

    def __init__(self, logs: LogStore) -> None:
        self.features = EVERYTHING
        self.logs_store = logs
        self.uids: dict[tuple[str, str], str] = {}
        self.containers: dict[str, Container] = {}
        self.open_lines = 0

    async def start(self, pod_ref: PodRef, command: tuple[str, ...]) -> Container:
        """Run `main` of this pod, again if it has run before."""
        self.uids[pod_ref.namespace, pod_ref.pod] = pod_ref.uid
        before = self.containers.get(pod_ref.uid)
        if before:
            await before.talk.close()
            await before.task
        run = RunId(pod_ref.uid, "main", before.run.number + 1 if before else 0)
        talk = await Talk.start(command, tty=False)
        self.containers[pod_ref.uid] = Container(run, talk, self.logs_store)
        return self.containers[pod_ref.uid]

    async def close(self) -> None:
        for container in self.containers.values():
            await container.talk.close()
            await container.task

    def pod(self, pod_ref: PodRef) -> str:
        uid = self.uids.get((pod_ref.namespace, pod_ref.pod))
        if uid is None or pod_ref.uid not in {"", uid}:
            raise NotFound(f'pod "{pod_ref.pod}" in namespace "{pod_ref.namespace}" is not on this node')
        return uid

    def run(self, pod_ref: PodRef) -> RunId:
        container = self._container(pod_ref)
        if container.talk.child.returncode is not None:
            raise NotRunning(f'container "{pod_ref.container}" has ended')
        return container.run

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Talk:
        talk = await Talk.start(command, tty=tty)
        if not stdin:
            await talk.close_stdin()
        return talk

    async def attach(self, run: RunId, *, stdin: bool) -> Attached:
        return Attached(self.containers[run.pod])

    async def dial(self, pod: str, port: int) -> TcpLine:
        if pod not in self.containers:
            raise Gone("the pod is gone")
        try:
            return TcpLine(*await asyncio.open_connection("127.0.0.1", port))
        except OSError as error:
            raise Rejected("ConnectionRefused", f"nothing listens on port {port}") from error

    def logs(self, pod_ref: PodRef, *, previous: bool, log_query: LogQuery) -> AsyncIterator[bytes]:
        run = self._container(pod_ref).run
        if previous:
            run = RunId(run.pod, run.container, run.number - 1)
            if run.number not in self.logs_store.numbers(run.pod, run.container):
                raise NotRunning(
                    f'previous terminated container "{pod_ref.container}" in pod "{pod_ref.pod}" not found'
                )
        return self.logs_store.read(run, log_query)

    def pods(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"namespace": namespace, "name": name, "uid": uid}}
            for (namespace, name), uid in self.uids.items()
        ]

    def running_pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if pod["metadata"]["uid"] in self.containers]

    async def stats(self) -> NodeStats:
        usage = Usage(cpu_seconds=1.5, memory=2**20)
        containers = tuple(
            ContainerStats(namespace=namespace, pod=name, uid=uid, container="main", started=1.0, usage=usage)
            for (namespace, name), uid in self.uids.items()
        )
        return NodeStats(
            started=1.0, at=time.time(), usage=Usage(cpu_seconds=100.0, memory=2**30), containers=containers
        )

    def _container(self, pod_ref: PodRef) -> Container:
        uid = self.pod(pod_ref)
        if pod_ref.container != "main":
            raise NotFound(f'container "{pod_ref.container}" is not in pod "{pod_ref.pod}"')
        if uid not in self.containers:
            raise NotRunning(f'container "{pod_ref.container}" in pod "{pod_ref.pod}" is waiting to start')
        return self.containers[uid]


@contextlib.asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[URL]:
    """As the real server listens: aiohttp's own test server would cancel the handlers of callers who leave."""
    runner = make_runner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield URL(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def _readable(file: int) -> None:
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A process started in the background hands down that it ignores these.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
