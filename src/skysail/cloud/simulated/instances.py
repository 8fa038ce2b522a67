"""The instances of a simulated account. The ledger knows them; here are those that live, and how they do."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import AsyncIterator, Callable

import msgspec

from skysail.cloud.account import Instance, Order
from skysail.cloud.change_feed import Changes
from skysail.cloud.provider import Ended, Provider
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Ledger, Row, Verb
from skysail.cloud.simulated.lifecycle import Life, Pace, failed, lost
from skysail.cloud.simulated.programs import Placed, Pretended, Program
from skysail.cloud.simulated.vendors import Vendor

IGNORED = "ignored"
# Pods of instances are told apart from those of Kubernetes, which may be at the same provider.
_PODS = uuid.UUID("5b0c4a1e-7d0f-4e0b-9a39-0d6f6b6f2d11")

log = logging.getLogger(__name__)


class Machines:
    """Made inside a running event loop, and belongs to it."""

    def __init__(self, vendor: Vendor, ledger: Ledger, *, now: Callable[[], float], provider: Provider | None) -> None:
        self.lives: dict[str, Life] = {}
        self._vendor = vendor
        self._ledger = ledger
        self._now = now
        self._provider = provider
        self._changes: Changes[str] = Changes()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._take_up()

    def make(self, begin: Row, order: Order | None) -> Instance:
        """`begin` has everything but an id and a time. Without an order nothing runs, until it is ended."""
        parts = ("simulated", self._vendor.name, self._ledger.mark, str(len(self._ledger.beginnings) + 1))
        name = "-".join(filter(None, parts))
        begin = msgspec.structs.replace(begin, at=self._now(), instance=name)
        self._ledger.write(begin)
        self._changes.tell(begin.claim)
        self._live(begin, self._program(begin, order))
        return self._ledger.instances[name]

    def record(self, instance: str, verb: Verb, *, exit_: Ended | None = None, note: str = "") -> None:
        begin, now = self._ledger.beginnings[instance], self._now()
        row = Row(
            at=now,
            verb=verb,
            instance=instance,
            claim=begin.claim,
            cluster=begin.cluster,
            usd=billing.cost(begin, now) if verb == "ended" else 0.0,
            exit=exit_,
            note=note,
        )
        self._ledger.write(row)
        self._changes.tell(begin.claim)

    def changes(self) -> AsyncIterator[str]:
        """Claims."""
        return self._changes.follow()

    def find(self, instance: str) -> Instance | None:
        """None where the cloud does not admit that there is one."""
        known = self._ledger.instances.get(instance)
        return known if known and self._is_told(known) else None

    def listed(self) -> tuple[Instance, ...]:
        return tuple(known for known in self._ledger.instances.values() if self._is_told(known, in_listing=True))

    async def end(self, instance: str, grace: float, *, delay: float = 0.0) -> None:
        """Ask an instance to end. One without a task, which has nothing left to stop, ends at once."""
        life = self.lives.get(instance)
        if life is None:
            self._abandon(instance, "Nothing is left of the instance at the simulated cloud.")
        else:
            await life.end(grace, delay=delay)

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_up(self) -> None:
        """Go on with what the process before left: a pretence continues, a real program went away with it."""
        asked = {row.instance for row in self._ledger.rows if row.verb == "end asked" and row.note != IGNORED}
        for known in [known for known in self._ledger.instances.values() if known.state != "ended"]:
            begin = self._ledger.beginnings[known.id]
            if self._provider and not _is_planted(begin):
                if known.exit is None:
                    self.record(known.id, "exited", exit_=lost(self._now()))
                self.record(known.id, "ended")
                continue
            program = self._pretended(begin)
            if known.started is not None:
                program.resume(known.started)
            life = self._live(begin, program)
            if known.id in asked:
                life.call_off()

    def _live(self, begin: Row, program: Program) -> Life:
        wished = begin.wishes
        pace = Pace(
            start=self._vendor.start if wished.start is None else wished.start,
            end=wished.end,
            deadline=begin.seconds,
            preempt=wished.preempt,
            lingers=self._vendor.lingers,
        )
        record = functools.partial(self.record, begin.instance)
        life = Life(self._ledger.instances[begin.instance], program, pace, record=record, now=self._now)
        self.lives[begin.instance] = life
        task = asyncio.create_task(life.run())
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._over, begin.instance))
        return life

    def _over(self, instance: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_closing:
            return
        error = None if task.cancelled() else task.exception()
        task.get_loop().call_later(self._vendor.remembers, self.lives.pop, instance, None)
        if self._ledger.instances[instance].state != "ended":
            log.error("instance has lost its task, ending it", extra={"instance": instance}, exc_info=error)
            release = asyncio.create_task(self.lives[instance].program.release())
            self._tasks.add(release)
            release.add_done_callback(self._tasks.discard)
            self._abandon(instance, "The simulated cloud lost the instance: delete the pod and create it again.")

    def _abandon(self, instance: str, why: str) -> None:
        """Record the end of an instance that no task ends any more, so that it is not billed on."""
        if self._ledger.instances[instance].exit is None:
            self.record(instance, "exited", exit_=failed(self._now(), why))
        self.record(instance, "ended")

    def _program(self, begin: Row, order: Order | None) -> Program:
        if self._provider is None or order is None:
            return self._pretended(begin)
        pod = msgspec.structs.replace(order.pod, uid=str(uuid.uuid5(_PODS, begin.instance)))
        return Placed(self._provider, pod, order.container, self._now)

    def _pretended(self, begin: Row) -> Pretended:
        wished = begin.wishes
        seconds = self._vendor.run if wished.run is None else wished.run
        return Pretended(
            begin.instance, seconds=None if _is_planted(begin) else seconds, code=wished.exit, now=self._now
        )

    def _is_told(self, instance: Instance, *, in_listing: bool = False) -> bool:
        """Whether the cloud admits that it exists; a listing comes after everybody else."""
        now, wished = self._now(), self._ledger.beginnings[instance.id].wishes
        lag = self._vendor.lag if wished.lag is None else wished.lag
        hidden = max(wished.hidden, lag) if in_listing else wished.hidden
        is_forgotten = instance.ended is not None and now >= instance.ended + self._vendor.remembers
        return not is_forgotten and now >= instance.created + hidden


def _is_planted(begin: Row) -> bool:
    return begin.seconds is None
