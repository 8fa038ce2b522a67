"""A simulated cloud account: `cloud.instances.Cloud` over a ledger, with a script of what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from skysail.base.names import MOCK, SIMULATED
from skysail.cloud.account import Instance, Inventory, Order, Terms
from skysail.cloud.errors import Gone, ProviderError, Unsupported
from skysail.cloud.provider import Abilities, Line, Output, Provider, Session
from skysail.cloud.simulated import launch
from skysail.cloud.simulated.faults import NOTHING, Fault, Mishap, Script
from skysail.cloud.simulated.instances import IGNORED, Machines
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.cloud.simulated.lifecycle import PREEMPTED
from skysail.cloud.simulated.options import Wishes
from skysail.cloud.simulated.programs import Placed
from skysail.cloud.simulated.vendors import Vendor

T = TypeVar("T")

PRETENDING = Abilities(volumes=True, gang=True)
PLACING = Abilities(exec=True, attach=True, port_forward=True, volumes=True)


class Account:
    """Made inside a running event loop, and belongs to it. Outlives its callers: who stops waiting stops nothing.

    Without a provider, programs are pretended, and an account that is opened again goes on where it was. With one they
    are real, and those of the process before are `Lost`.
    """

    def __init__(
        self,
        vendor: Vendor,
        ledger: Ledger,
        *,
        now: Callable[[], float],
        provider: Provider | None = None,
        script: Sequence[Fault] = (),
    ) -> None:
        self.vendor = vendor
        self.ledger = ledger
        self.script = Script(script)
        self._now = now
        self._abilities = PLACING if provider else PRETENDING
        self._machines = Machines(vendor, ledger, now=now, provider=provider)
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def account(self) -> str:
        return SIMULATED if self._abilities is PLACING else MOCK

    @property
    def abilities(self) -> Abilities:
        return self._abilities

    @property
    def terms(self) -> Terms:
        return self.vendor.terms

    async def close(self) -> None:
        """For a process that ends. Nothing is ended at the account by it."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._machines.close()
        self.ledger.close()

    async def create(self, order: Order) -> Instance:
        return await self._to_its_end(self._create(order))

    async def end(self, instance: str, grace: float) -> None:
        await self._to_its_end(self._end(instance, grace))

    async def list(self) -> Inventory:
        fault = self.script.strike("list", self._now())
        await fault.before()
        fault.after()
        seen = self._machines.listed()
        match fault.what:
            case "empty":
                return Inventory(())
            case "partial" | "partial-lie":
                return Inventory(seen[1::2], complete=fault.what == "partial-lie")
            case _:
                return Inventory(seen)

    async def look(self, instance: str) -> Instance | None:
        fault = self.script.strike("look", self._now())
        try:
            await fault.before()
        except Gone:
            return None
        fault.after()
        return self._machines.find(instance)

    def changes(self) -> AsyncIterator[str]:
        return self._machines.changes()

    async def output(self, instance: str) -> AsyncIterator[Output]:
        life = self._machines.lives.get(instance)
        if life is None:
            raise Gone(f"The simulated {self.name} has no output of an instance {instance}.")
        async for piece in life.program.output():
            yield piece

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        placed = self._placed(instance)
        return await placed.provider.exec(placed.run, command, stdin=stdin, tty=tty)

    async def attach(self, instance: str, *, stdin: bool) -> Session:
        placed = self._placed(instance)
        return await placed.provider.attach(placed.run, stdin=stdin)

    async def dial(self, instance: str, port: int) -> Line:
        placed = self._placed(instance)
        return await placed.provider.dial(placed.run.pod, port)

    def plant(self, *, claim: str = "", cluster: str = "", usd: float = 1.0) -> Instance:
        """An instance that somebody else made. It runs until it is ended."""
        wished = Wishes(start=0.0, lag=0.0)
        return self._machines.make(
            Row(at=0.0, verb="create", claim=claim, cluster=cluster, usd=usd, wishes=wished), None
        )

    async def preempt(self, instance: str) -> None:
        """Take it away, as a cloud does."""
        await self._machines.lives[instance].end(0.0, reason=PREEMPTED)

    async def _create(self, order: Order) -> Instance:
        fault = self.script.strike("create", self._now())
        try:
            wished = launch.check(order, self.vendor, self.abilities)
            if fault is NOTHING:
                fault = launch.wished_fault(order, wished, self.ledger.rows)
            await fault.before()
        except ProviderError as error:
            self._refused(
                error, Row(at=0.0, verb="refused", claim=order.claim, cluster=order.cluster, pod=order.pod.uid)
            )
            raise
        begin = launch.beginning(order, self.vendor, wished, fault)
        if fault.what == "lost-later":
            self._track(self._make_later(fault.seconds, begin, order))
            raise Mishap(fault.what)
        instance = self._machines.make(begin, order)
        if fault.what == "duplicate":
            self._machines.make(begin, order)
        fault.after()
        return instance

    async def _end(self, instance: str, grace: float) -> None:
        fault = self.script.strike("end", self._now())
        try:
            await fault.before()
            known = self._machines.find(instance)
            if known is None:
                raise Gone(f"The simulated {self.name} has no instance {instance}.")
        except ProviderError as error:
            self._refused(error, Row(at=0.0, verb="refused", instance=instance))
            raise
        is_ignored = fault.what == "end-ignored"
        self._machines.record(instance, "end asked", note=IGNORED if is_ignored else "")
        if not is_ignored and known.state != "ended":
            delay = fault.seconds if fault.what == "slow-end" else 0.0
            await self._machines.end(instance, grace, delay=delay)
        fault.after()

    def _refused(self, error: ProviderError, row: Row) -> None:
        note = f"{type(error).__name__}: {error}"
        self.ledger.write(msgspec.structs.replace(row, at=self._now(), note=note))

    def _placed(self, instance: str) -> Placed:
        if not self.abilities.exec:
            raise Unsupported(
                f"The simulated {self.name} only pretends that something runs: there is nothing to enter."
            )
        life = self._machines.lives.get(instance)
        if life is None or not life.is_running or not isinstance(life.program, Placed):
            raise Gone(f"The instance {instance} of the simulated {self.name} does not run.")
        return life.program

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Who stops waiting leaves nothing half done."""
        return await asyncio.shield(self._track(work))

    async def _make_later(self, seconds: float, begin: Row, order: Order) -> None:
        await asyncio.sleep(seconds)
        self._machines.make(begin, order)

    def _track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task
