"""One pod of the stand-in: its container runs at a provider and is started again whenever it ends, as at RunPod."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import uuid
from collections.abc import Callable

from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.provider import (
    Container,
    EmptyDir,
    Ended,
    Mount,
    PersistentDisk,
    Pod,
    PortConnection,
    Provider,
    RunId,
    Session,
    Volume,
)
from skysail.cloud.runpod import api
from skysail.cloud.runpod.stand_in.log_book import LogBook
from skysail.cloud.runpod.stand_in.port_mappings import PortMappings

# Pods of the stand-in need UIDs that differ from those of Kubernetes pods at the same provider.
_PODS = uuid.UUID("b0a1f2c4-6f43-4f0b-8f5e-6d2a4c6f9a01")
_CONTAINER = "main"
_MAX_START_FAILURES = 3
# The folder that keeps a container's writable layer over restarts.
_LAYER = "/tmp"  # noqa: S108 (inside the container)


class Timing:
    """Delays of the stand-in in seconds.

    `start`: until a container starts. `restart`: until an ended one is started again. `port`: until ports are mapped.
    """

    def __init__(self, start: float = 0.5, restart: float = 0.5, port: float = 0.0) -> None:
        self.start = start
        self.restart = restart
        self.port = port


class PodRecord:
    """One pod. `usd` is the billed price per hour, `center` its data center."""

    def __init__(
        self, body: api.CreatePod, *, provider: Provider, usd: float, center: str, now: Callable[[], float]
    ) -> None:
        self.id = secrets.token_hex(7)
        self.body = body
        # Key of this pod, which its container gets: it may only read and delete the pod itself.
        self.key = f"pod_{secrets.token_hex(16)}"
        self.usd = usd
        self.center = center
        self.created = now()
        self.started: float | None = None
        self.status: api.PodStatus = "PROVISIONING"
        self.log = LogBook()
        self.restarts = 0
        self.never_starts = False
        self.on_started: Callable[[], None] = lambda: None
        self._provider = provider
        self._now = now
        self._uid = str(uuid.uuid5(_PODS, self.id))
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._ports = PortMappings(self.connect)

    def start(self, timing: Timing) -> None:
        self._task = asyncio.create_task(self._run(timing))

    async def stop(self) -> None:
        """End the container. The pod stays, with its disk."""
        await self._cancel()
        self.status = "EXITED"

    async def terminate(self) -> None:
        await self._cancel()
        self.status = "TERMINATED"
        self.log.end()

    async def exec(self, command: api.ExecCommand) -> Session:
        words = command.command
        if command.cwd:
            words = ("sh", "-c", 'cd "$0" && exec "$@"', command.cwd, *words)
        return await self._provider.exec(self._run_id(), words, stdin=False, tty=False)

    async def connect(self, port: int) -> PortConnection:
        if self.status != "RUNNING":
            raise Gone("The pod is not running.")
        return await self._provider.connect(self._uid, port, from_outside=False)

    def to_json(self) -> dict[str, object]:
        """Return the pod as the API shows it."""
        body, is_running = self.body, self.status == "RUNNING"
        is_billed = self.status not in {"EXITED", "TERMINATED"}
        compute: dict[str, object] = {}
        if body.gpu is not None:
            compute["gpu"] = {"id": body.gpu.id, "count": body.gpu.count}
        if body.cpu is not None:
            compute["cpu"] = {"id": body.cpu.id, "vcpuCount": body.cpu.vcpu_count, "memory": 4 * body.cpu.vcpu_count}
        return {
            "id": self.id,
            "name": body.name,
            "status": self.status,
            "actions": ["stop", "restart", "terminate"] if is_running else ["start", "terminate"],
            "image": body.image,
            "args": body.args,
            "disk": body.disk or 50,
            "mounts": {},
            "ports": list(body.ports),
            "env": dict(body.env),
            "registry": body.registry,
            "cloud": body.cloud,
            "dataCenterId": self.center,
            "cudaVersion": None,
            "ssh": {"proxy": None, "direct": None},
            "template": None,
            "cost": self.usd if is_billed else 0.0,
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": self._runtime() if is_running else None,
            "createdAt": api.timestamp(self.created),
            "startedAt": api.timestamp(self.started) if self.started is not None else None,
            **compute,
        }

    def _runtime(self) -> dict[str, object]:
        ports = []
        for text in self.body.ports:
            number, _, kind = text.partition("/")
            public = self._ports.public.get(int(number))
            ports.append(
                {"private": int(number), "public": public, "type": kind, "ip": "127.0.0.1" if public else None}
            )
        uptime = int(self._now() - (self.started or self._now()))
        return {"uptime": uptime, "gpus": [], "ports": ports}

    async def _run(self, timing: Timing) -> None:
        """Run the container again and again, until the task is cancelled or the service gives up."""
        await asyncio.sleep(timing.start)
        self.status = "STARTING"
        failures = 0
        while failures < _MAX_START_FAILURES:
            if not await self._start_container():
                failures += 1
                await asyncio.sleep(timing.restart)
                continue
            self.status = "RUNNING"
            self.started = self._now()
            await self._ports.open(_tcp_ports(self.body.ports), delay=timing.port)
            self.on_started()
            await self._until_end()
            self.restarts += 1
            self._number += 1
            await asyncio.sleep(timing.restart)
        self.status = "EXITED"

    async def _start_container(self) -> bool:
        self.log.add("system", f"create container {self.body.image}", self._now())
        if self.never_starts:
            self.log.add("system", "error creating container: no space left on device", self._now())
            return False
        try:
            await self._provider.create_sandbox(self._pod())
            await self._provider.start(self._run_id(), self._container())
        except ProviderError as error:
            self.log.add("system", f"error pulling image: {error}", self._now())
            return False
        self.log.add("system", "start container", self._now())
        return True

    async def _until_end(self) -> None:
        run = self._run_id()
        copying = asyncio.create_task(self._copy(run))
        changes = self._provider.changes()
        try:
            while not isinstance(state := await self._provider.state(run), Ended) and state is not None:
                while await anext(changes) != run:
                    pass
            await asyncio.wait({copying})
        finally:
            copying.cancel()

    async def _copy(self, run: RunId) -> None:
        with contextlib.suppress(ProviderError):
            async for piece in self._provider.output(run):
                self.log.write(piece.data, self._now())
        self.log.flush(self._now())

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._ports.close()
        await self._provider.remove_sandbox(self._uid)

    def _run_id(self) -> RunId:
        return RunId(self._uid, _CONTAINER, self._number)

    def _pod(self) -> Pod:
        volumes = [Volume("layer", EmptyDir())]
        volumes += [Volume("network", PersistentDisk(mount.volume_id)) for mount in self._network_mounts()]
        return Pod(
            uid=self._uid, namespace="runpod", name=self.id, hostname=self.id[:60].lower(), volumes=tuple(volumes)
        )

    def _container(self) -> Container:
        body = self.body
        own = {
            "RUNPOD_POD_ID": self.id,
            "RUNPOD_API_KEY": self.key,
            "RUNPOD_DC_ID": self.center,
            "RUNPOD_GPU_COUNT": str(body.gpu.count if body.gpu else 0),
        }
        mounts = [Mount(volume="layer", path=_LAYER)]
        mounts += [Mount(volume="network", path=mount.path) for mount in self._network_mounts()]
        return Container(
            name=_CONTAINER,
            image=body.image,
            command=body.entrypoint,
            args=body.cmd or tuple(shlex.split(body.args)),
            env=tuple((body.env | own).items()),
            mounts=tuple(mounts),
        )

    def _network_mounts(self) -> tuple[api.NetworkMount, ...]:
        return self.body.mounts.network if self.body.mounts else ()


def _tcp_ports(ports: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(text.partition("/")[0]) for text in ports if text.endswith("/tcp"))
