"""Calls to clouds: each a task of its own, known by its claim, because one may take many minutes.

What came of a call is kept until it is written down. A process that ends before that leaves a claim with a nonce that
nobody remembers; the next one finds the instance, or its absence, in the listings.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from skysail.base.backoff import delay_after
from skysail.claims.brake import Brake
from skysail.claims.snapshot import Call
from skysail.claims.types import CloudInstance
from skysail.cloud.errors import Gone, NoCapacity, ProviderError, Refused, Throttled, Unknown, Unsupported
from skysail.cloud.instances import Cloud, Instance, Order
from skysail.core.actions import End, Launch

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 300.0
# Long after it an end is asked for again anyway.
_ASKED_FOR = timedelta(hours=1)

log = logging.getLogger(__name__)


class _Launched(NamedTuple):
    """A call as it was begun."""

    claim: CloudInstance
    order: Order
    nonce: str
    at: datetime

    @property
    def name(self) -> str:
        return self.claim.metadata.name


class Calls:
    """Of one process. `changed` is told the name of each claim whose call has an outcome."""

    def __init__(
        self,
        clouds: Mapping[str, Cloud],
        brake: Brake,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        changed: Callable[[str], None],
    ) -> None:
        self._clouds = clouds
        self._brake = brake
        self._now = now
        self._rng = rng
        self._changed = changed
        self._tickets: dict[str, str] = {}
        self._calls: dict[str, Call] = {}
        self._tasks: dict[str, asyncio.Task[Instance]] = {}
        self._failures: dict[str, int] = {}
        # When each instance was last asked to end. Never changed, only replaced: snapshots hold it.
        self.asked: Mapping[str, datetime] = {}
        self.made: Callable[[Instance], None] = lambda _: None

    def ticket(self, claim: str) -> str:
        """A nonce of this process that no call has used."""
        return self._tickets.setdefault(claim, f"{self._rng.getrandbits(64):016x}")

    def call(self, claim: CloudInstance) -> Call | None:
        """The last call for this claim. One that the claim does not wait for any more is broken off."""
        call, task = self._calls.get(claim.metadata.name), self._tasks.get(claim.metadata.name)
        if call is not None and task is not None and call.nonce != _awaited(claim) and not task.cancelling():
            task.cancel()
        return call

    def forget(self, claim: str) -> None:
        self._tickets.pop(claim, None)
        self._calls.pop(claim, None)
        self._failures.pop(claim, None)
        if task := self._tasks.pop(claim, None):
            task.cancel()

    def launch(self, action: Launch) -> None:
        claim, order, at = action.object, action.order, self._now()
        assert isinstance(claim, CloudInstance), "only claims are launched"
        name = claim.metadata.name
        if self._brake.verdict(claim.spec, at):
            self._changed(name)  # others were launched since the plan was made: the next one says so
            return
        nonce = self._tickets.pop(name)
        assert nonce == _awaited(claim), "the claim carries the ticket"
        self._brake.count(claim.spec, at)
        self._calls[name] = Call(nonce=nonce)
        create = self._clouds[claim.spec.provider].create(order)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(create, name=f"launch {name}")
        task.add_done_callback(partial(self._answered, _Launched(claim, order, nonce, at)))

    async def end(self, action: End) -> None:
        id_, now = action.instance, self._now()
        self.asked = {other: at for other, at in self.asked.items() if abs(now - at) < _ASKED_FOR} | {id_: now}
        try:
            await self._clouds[action.cloud].end(id_, action.grace)
        except Gone:
            log.debug("end of what the cloud does not know", extra={"instance": id_})
        except ProviderError as error:
            log.warning("end not answered, asked again", extra={"instance": id_, "why": str(error)})
            self.asked = {other: at for other, at in self.asked.items() if other != id_}

    async def close(self) -> None:
        """The process stops: what is under way is left to the listings of the next one."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, launched: _Launched, task: asyncio.Task[Instance]) -> None:
        name = launched.name
        outcome = self._outcome(launched, task)
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if name in self._calls and self._calls[name].nonce == launched.nonce:
            self._calls[name] = outcome
        if outcome.instance is not None:
            self.made(outcome.instance)
        self._changed(name)

    def _outcome(self, launched: _Launched, task: asyncio.Task[Instance]) -> Call:
        nonce = launched.nonce
        if task.cancelled():
            return Call(nonce=nonce, error=Unknown("The call was broken off."))
        error = task.exception()
        if isinstance(error, ProviderError):
            return self._failed(launched, error)
        if error is not None:
            log.error("call failed", exc_info=error, extra={"claim": launched.name})
            return Call(nonce=nonce, error=Unknown("The call failed; the operator's log tells more."))
        instance, order = task.result(), launched.order
        if (instance.claim, instance.cluster) != (order.claim, order.cluster):
            return Call(nonce=nonce, error=Unknown(f"The cloud answered with instance {instance.id} of another claim."))
        self._failures.pop(launched.name, None)
        return Call(nonce=nonce, instance=instance)

    def _failed(self, launched: _Launched, error: ProviderError) -> Call:
        if isinstance(error, (NoCapacity, Throttled, Refused, Unsupported)):
            self._brake.take_back(launched.claim.spec, launched.at)
        if not isinstance(error, (NoCapacity, Throttled)):
            return Call(nonce=launched.nonce, error=error)
        asked_for = error.retry_after if isinstance(error, Throttled) else 0.0
        pause = timedelta(seconds=max(self._pause(launched.name), asked_for))
        return Call(nonce=launched.nonce, error=error, failed=self._now(), pause=pause)

    def _pause(self, claim: str) -> float:
        failures = self._failures.get(claim, 0)
        self._failures[claim] = failures + 1
        longest = delay_after(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        return self._rng.uniform(_FIRST_PAUSE / 2, longest)


def _awaited(claim: CloudInstance) -> str:
    """The nonce of the call whose outcome the claim waits for."""
    launching = claim.status.launching
    return launching.nonce if launching is not None and claim.status.state == "Launching" else ""


def seed(brake: Brake, claims: Iterable[CloudInstance]) -> None:
    """Let a new process know of the launches before it, also of those that have ended since."""
    launches = [(at, claim.spec) for claim in claims if (at := _launched_at(claim))]
    for at, spec in sorted(launches, key=lambda launch: launch[0]):
        brake.count(spec, at)


def _launched_at(claim: CloudInstance) -> datetime | None:
    status = claim.status
    at = status.launching.at if status.launching else status.start_time
    return datetime.fromisoformat(at) if at else None
