"""A simulated cloud account: `cloud.account.CloudAccount` over a ledger, with a script of faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from skysail.base.names import ACCOUNT_MOCK, ACCOUNT_SIMULATED
from skysail.cloud.account import Instance, Inventory, LaunchSpec, Timings
from skysail.cloud.errors import Gone, ProviderError, Rejected, Unsupported
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Provider, Session
from skysail.cloud.simulated import launch
from skysail.cloud.simulated.faults import NOTHING, Fault, LostReply, Script
from skysail.cloud.simulated.gang import GangProgram
from skysail.cloud.simulated.instances import IGNORED, InstanceManager, disk_name
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.cloud.simulated.lifecycle import PREEMPTED
from skysail.cloud.simulated.options import SimulationOptions
from skysail.cloud.simulated.programs import Program, ProviderProgram
from skysail.cloud.simulated.vendors import Vendor

T = TypeVar("T")

# No path of a file: the disks of a provider are folders.
_VOLUME_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,71}")

_MOCK_FEATURES = Features(volumes=True, volume_deletion=True)
_SIMULATED_FEATURES = Features(exec=True, attach=True, port_forward=True, volumes=True, volume_deletion=True)


RemoveDisk = Callable[[str], Awaitable[None]]


async def remove_nothing(_: str) -> None:
    """Take the place of a provider: fake programs write no files."""


def features_of(vendor: Vendor, *, is_mock: bool = False) -> Features:
    """Return the features of a simulated account of this vendor."""
    features = _MOCK_FEATURES if is_mock else _SIMULATED_FEATURES
    return msgspec.structs.replace(features, gang=vendor.private_network)


class SimulatedAccount:
    """A simulated account. Must be created inside the running event loop.

    A call continues even if its caller is cancelled.
    Without a provider, programs are fake, and a reopened account resumes them. With a provider, programs are real, and
    those of the previous process become `Lost`. `remove_disk` deletes a disk of the provider with its files, if it
    exists.
    """

    def __init__(
        self,
        vendor: Vendor,
        ledger: Ledger,
        *,
        now: Callable[[], float],
        provider: Provider | None = None,
        script: Sequence[Fault] = (),
        remove_disk: RemoveDisk = remove_nothing,
    ) -> None:
        self.vendor = vendor
        self.ledger = ledger
        self.script = Script(script)
        self._now = now
        self._is_mock = provider is None
        self.remove_disk = remove_disk
        self._features = features_of(vendor, is_mock=self._is_mock)
        self._instances = InstanceManager(vendor, ledger, now=now, provider=provider)
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def account(self) -> str:
        return ACCOUNT_MOCK if self._is_mock else ACCOUNT_SIMULATED

    @property
    def features(self) -> Features:
        return self._features

    @property
    def terms(self) -> Timings:
        return self.vendor.terms

    async def close(self) -> None:
        """Stop all tasks before the process exits. Terminates no instance of the account."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._instances.close()
        self.ledger.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        return await self._shielded(self._create(spec))

    async def terminate(self, instance: str, grace: float) -> None:
        await self._shielded(self._end(instance, grace))

    async def delete_volume(self, namespace: str, volume: str) -> None:  # noqa: ARG002 (part of the id)
        if not _VOLUME_ID.fullmatch(volume):
            raise Rejected("InvalidVolume", f"The simulated {self.name} has no volume with such a name.")
        await self.remove_disk(disk_name(self.name, volume))

    async def list(self) -> Inventory:
        fault = self.script.next_fault("list", self._now())
        await fault.before()
        fault.after()
        seen = self._instances.listed()
        match fault.what:
            case "empty":
                return Inventory(())
            case "partial" | "partial-lie":
                return Inventory(seen[1::2], complete=fault.what == "partial-lie")
            case _:
                return Inventory(seen)

    async def offers(self) -> OfferList:
        fault = self.script.next_fault("offers", self._now())
        await fault.before()
        fault.after()
        return OfferList(launch.offers(self.vendor, fault), self._now())

    async def get(self, instance: str) -> Instance | None:
        fault = self.script.next_fault("look", self._now())
        try:
            await fault.before()
        except Gone:
            return None
        fault.after()
        return self._instances.find(instance)

    def watch(self) -> AsyncIterator[str]:
        return self._instances.changes()

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        program = self._program(instance, rank)
        lifecycle = self._instances.lifecycles.get(instance)
        if lifecycle is not None and isinstance(lifecycle.program, GangProgram) and lifecycle.program.is_one_pod:
            program = lifecycle.program
        async for piece in program.output():
            yield piece

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        provider_program = self._running_program(instance, rank)
        return await provider_program.provider.exec(provider_program.run, command, stdin=stdin, tty=tty)

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:
        provider_program = self._running_program(instance, rank)
        return await provider_program.provider.attach(provider_program.run, stdin=stdin)

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        provider_program = self._running_program(instance, rank)
        return await provider_program.provider.connect(provider_program.run.pod, port)

    def inject_orphan(self, *, claim: str = "", cluster: str = "", usd: float = 1.0) -> Instance:
        """Create an instance as a foreign caller would. It runs until it is terminated."""
        requested = SimulationOptions(start=0.0, lag=0.0)
        return self._instances.make(
            Row(at=0.0, verb="create", claim=claim, cluster=cluster, usd=usd, options=requested), None
        )

    async def preempt(self, instance: str) -> None:
        """Preempt an instance, as a cloud does."""
        await self._instances.lifecycles[instance].end(0.0, reason=PREEMPTED)

    async def _create(self, spec: LaunchSpec) -> Instance:
        fault = self.script.next_fault("create", self._now(), spec.gpus.type if spec.gpus else "")
        try:
            requested = launch.validate(spec, self.vendor, self.features)
            if fault is NOTHING:
                fault = launch.requested_fault(spec, requested, self.ledger.rows)
            await fault.before()
        except ProviderError as error:
            self._record_refused(
                error, Row(at=0.0, verb="refused", claim=spec.claim, cluster=spec.cluster, pod=spec.pod.uid)
            )
            raise
        begin = launch.first_row(spec, self.vendor, requested, fault)
        if fault.what == "lost-later":
            self._track(self._make_later(fault.seconds, begin, spec))
            raise LostReply(fault.what)
        instance = self._instances.make(begin, spec)
        if fault.what == "duplicate":
            self._instances.make(begin, spec)
        fault.after()
        return instance

    async def _end(self, instance: str, grace: float) -> None:
        fault = self.script.next_fault("end", self._now())
        try:
            await fault.before()
            previous = self._instances.find(instance)
            if previous is None:
                raise Gone(f"The simulated {self.name} has no instance {instance}.")
        except ProviderError as error:
            self._record_refused(error, Row(at=0.0, verb="refused", instance=instance))
            raise
        is_ignored = fault.what == "end-ignored"
        self._instances.record(instance, "end asked", note=IGNORED if is_ignored else "")
        if not is_ignored and previous.state != "ended":
            delay = fault.seconds if fault.what == "slow-end" else 0.0
            await self._instances.end(instance, grace, delay=delay)
        fault.after()

    def _record_refused(self, error: ProviderError, row: Row) -> None:
        note = f"{type(error).__name__}: {error}"
        self.ledger.write(msgspec.structs.replace(row, at=self._now(), note=note))

    def _program(self, instance: str, rank: int) -> Program:
        lifecycle = self._instances.lifecycles.get(instance)
        if lifecycle is None:
            raise Gone(f"The simulated {self.name} has no output of an instance {instance}.")
        program = lifecycle.program
        programs = program.ranks if isinstance(program, GangProgram) else (program,)
        if not 0 <= rank < len(programs):
            raise Gone(f"Instance {instance} of the simulated {self.name} has no rank {rank}.")
        return programs[rank]

    def _running_program(self, instance: str, rank: int) -> ProviderProgram:
        if not self.features.exec:
            raise Unsupported(
                f"The simulated {self.name} runs fake programs only: exec, attach and port-forward are not available."
            )
        lifecycle = self._instances.lifecycles.get(instance)
        program = self._program(instance, rank) if lifecycle is not None and lifecycle.is_running else None
        if not isinstance(program, ProviderProgram):
            raise Gone(f"Instance {instance} of the simulated {self.name} is not running.")
        return program

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a call that continues if the caller is cancelled, so that no call stops half-way."""
        return await asyncio.shield(self._track(work))

    async def _make_later(self, seconds: float, begin: Row, spec: LaunchSpec) -> None:
        await asyncio.sleep(seconds)
        self._instances.make(begin, spec)

    def _track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task
