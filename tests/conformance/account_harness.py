"""Words for the suite of paid clouds: a launch spec, what became of it, and what it printed."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skysail.cloud.account import GpuRequest, LaunchSpec, Member
from skysail.cloud.provider import Container, Pod
from skysail.cloud.simulated.options import VARIABLE
from tests.conformance.provider_harness import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from skysail.cloud.account import CloudAccount, Instance
    from skysail.cloud.provider import Ended, Volume

_FOR_EVER = 3600
_RETRY_SECONDS = 0.01


class AccountHarness:
    """Buys at one cloud, for a cluster of its own. What a program does is told twice: to run it, and to pretend it."""

    def __init__(self, account: CloudAccount, image: str = "busybox:1.36", python_image: str = "python:3") -> None:
        self.cloud = account
        self.image = image
        self.python_image = python_image
        self.cluster = str(uuid.uuid4())
        # GPUs of each member of a gang.
        self.gang_gpus: GpuRequest | None = GpuRequest("")
        self._numbers = itertools.count(1)

    def launch_spec(
        self,
        script: str = "echo ahoy; sleep 3600",
        *volumes: Volume,
        claim: str = "",
        run: float = _FOR_EVER,
        exit_: int = 0,
        seconds: float = 600.0,
        gpu: GpuRequest | None = None,
    ) -> LaunchSpec:
        number = next(self._numbers)
        env = ((VARIABLE, f"start=0s,run={int(run * 1000)}ms,exit={exit_}"),)
        return LaunchSpec(
            claim=claim or f"claim-{number}",
            cluster=self.cluster,
            members=(
                Member(
                    Pod(uid=str(uuid.uuid4()), namespace="default", name="pod", hostname="pod", volumes=volumes),
                    Container(name="main", image=self.image, command=("sh", "-c", script), env=env),
                ),
            ),
            max_lifetime=seconds,
            gpus=gpu,
        )

    def gang(self, *scripts: str) -> LaunchSpec:
        """One rank for each Python script, as pods of a headless Service."""
        spec = self.launch_spec()
        members = (
            Member(
                Pod(
                    uid=str(uuid.uuid4()),
                    namespace="default",
                    name=f"rank-{rank}",
                    hostname=f"rank-{rank}",
                    subdomain="gang",
                ),
                Container(name="main", image=self.python_image, command=("python3", "-c", script)),
            )
            for rank, script in enumerate(scripts)
        )
        return replace(spec, members=tuple(members), gpus=self.gang_gpus)

    def short(self, code: int = 0) -> LaunchSpec:
        """It prints `ahoy` and ends at once."""
        return self.launch_spec(f"echo ahoy; exit {code}", run=0, exit_=code)

    async def running(self, spec: LaunchSpec | None = None) -> Instance:
        made = await self.cloud.create(spec or self.launch_spec())
        return await self.until(made.id, lambda now: now.state == "running")

    async def until(
        self, instance: str, is_so: Callable[[Instance], bool], seconds: float = TIMEOUT_SECONDS
    ) -> Instance:
        async with asyncio.timeout(seconds):
            while (now := await self.cloud.get(instance)) is None or not is_so(now):  # noqa: ASYNC110 (asking is the only way)
                await asyncio.sleep(_RETRY_SECONDS)
        return now

    async def exited(self, instance: str, seconds: float = TIMEOUT_SECONDS) -> Ended:
        exit_ = (await self.until(instance, lambda now: now.exit is not None, seconds)).exit
        assert exit_
        return exit_

    async def ended(self, instance: str, grace: float = 0.0) -> Instance:
        """Ask for the end, and wait for it."""
        await self.cloud.terminate(instance, grace)
        return await self.until(instance, lambda now: now.state == "ended")

    async def mine(self) -> dict[str, Instance]:
        inventory = await self.cloud.list()
        assert inventory.complete
        return {instance.id: instance for instance in inventory.instances if instance.cluster == self.cluster}

    async def seen(self, instance: str) -> Instance:
        """As a listing shows it, as soon as one does."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (found := (await self.mine()).get(instance)) is None:  # noqa: ASYNC110 (asking is the only way)
                await asyncio.sleep(_RETRY_SECONDS)
        return found

    async def said(self, instance: str, rank: int = 0) -> str:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return b"".join([piece.data async for piece in self.cloud.output(instance, rank=rank)]).decode()


def with_container(spec: LaunchSpec, container: Container) -> LaunchSpec:
    return replace(spec, members=(Member(spec.pod, container),))
