"""A scene for tests of RunPod's account in virtual time: the stand-in on a Unix socket, with idle containers."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from skysail.base import unix_sockets
from skysail.cloud.account import GpuRequest, LaunchSpec, Member
from skysail.cloud.output_buffer import OutputBuffer
from skysail.cloud.provider import (
    Container,
    Ended,
    Features,
    Output,
    Pod,
    RunId,
    Running,
    RuntimeListing,
    Volume,
)
from skysail.cloud.runpod.account import KEY_FIELD, RunPodAccount
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.stand_in.faults import Fault, FaultScript
from skysail.cloud.runpod.stand_in.server import StandInServer
from skysail.cloud.runpod.stand_in.service import StandInOptions, StandInService
from skysail.cloud.simulated.ledger import Ledger
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "rpa_canary_key"
CLUSTER = "0b9b7c1e-0000-4000-8000-000000000001"
_numbers = itertools.count(1)


class SilentProvider:
    """A provider whose containers run for ever and print what a test says, for a hundred pods at once."""

    name = "silent"
    features = Features()

    def __init__(self) -> None:
        self.containers: dict[RunId, Container] = {}
        self._outputs: dict[RunId, OutputBuffer] = {}
        self._never: asyncio.Event = asyncio.Event()

    async def create_sandbox(self, pod: Pod) -> str:
        return ""

    async def start(self, run: RunId, container: Container) -> None:
        self.containers[run] = container
        self._outputs[run] = OutputBuffer()

    async def say(self, run: RunId, text: str) -> None:
        await self._outputs[run].put(Output("stdout", 0.0, text.encode()))

    async def remove_sandbox(self, pod: str) -> None:
        for run, output in self._outputs.items():
            if run.pod == pod:
                output.end()

    async def changes(self) -> AsyncIterator[RunId]:
        await self._never.wait()
        yield RunId("", "", 0)

    async def state(self, run: RunId) -> Running | Ended:
        return Running(0.0)

    def output(self, run: RunId) -> AsyncIterator[Output]:
        return self._outputs[run].replay()

    async def list(self) -> RuntimeListing:
        return RuntimeListing(runs={}, pods={})


class Exited:
    """A command that exits with 0 at once."""

    async def output(self):
        for piece in ():
            yield piece

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        return

    async def close(self) -> None:
        return


class Scene:
    def __init__(self, server: StandInServer, account: RunPodAccount, provider: SilentProvider) -> None:
        self.server = server
        self.service = server.service
        self.account = account
        self.provider = provider

    def body(self, number: int = -1):
        return list(self.service.pods.values())[number].body

    async def until_running(self, count: int) -> None:
        while sum(i.state == "running" for i in (await self.account.list()).instances) < count:  # noqa: ASYNC110
            await asyncio.sleep(1.0)


@asynccontextmanager
async def scene(*script: Fault, key: str = KEY, **options: object) -> AsyncIterator[Scene]:
    loop = asyncio.get_running_loop()
    base = 1.8e9

    def now() -> float:
        return base + loop.time()

    provider = SilentProvider()
    chosen = msgspec.convert({"quota": 100_000, **options}, StandInOptions)
    service = StandInService(provider, Ledger(), now=now, options=chosen, script=FaultScript(script))  # type: ignore[arg-type]
    server = StandInServer(service, KEY)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runpod.sock"
        await server.start(unix_sockets.listen(path))
        account = RunPodAccount(Endpoint(f"unix:{path}"), {KEY_FIELD: key}, cluster=CLUSTER, now=now, clock=loop.time)
        try:
            yield Scene(server, account, provider)
        finally:
            await account.close()
            await server.close()


def launch_spec(*volumes: Volume, gpus: GpuRequest | None = None, **fields: object) -> LaunchSpec:
    number = next(_numbers)
    container = Container(name="main", image="busybox:1.36", command=("sh", "-c", "sleep 1000"), env=(("A", "1"),))
    container = replace(container, **fields.pop("container", {}))  # type: ignore[arg-type]
    pod = Pod(uid=f"uid-{number}", namespace="default", name="p", hostname="p", volumes=volumes)
    return LaunchSpec(
        claim=f"claim-{number}",
        cluster=CLUSTER,
        members=(Member(pod, container),),
        gpus=gpus,
        max_lifetime=600.0,
        **fields,  # type: ignore[arg-type]
    )


A40 = GpuRequest("NVIDIA A40")


def virtual(test):
    """Run a test in virtual time."""

    def wrapper() -> None:
        virtual_time.run(test())

    wrapper.__name__ = test.__name__
    return wrapper


def second_account(at: Scene) -> RunPodAccount:
    """The account in another process."""
    clock = asyncio.get_running_loop().time
    endpoint, key = at.account.client.endpoint, {KEY_FIELD: KEY}
    return RunPodAccount(endpoint, key, cluster=CLUSTER, now=at.service.now, clock=clock)
