"""Calls to clouds: each a task of its own, because one may take many minutes, and a cloud that is down all its time.

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
from typing import Any, NamedTuple

from skysail.base import tasks as guard
from skysail.base.backoff import delay_after
from skysail.claims.limits.launch_history import launched_at
from skysail.claims.limits.launch_limiter import Brake, Launched
from skysail.claims.snapshot import Call
from skysail.claims.types import CloudInstance
from skysail.cloud.account import Cloud, Instance, Order
from skysail.cloud.errors import Gone, NoCapacity, ProviderError, Refused, Throttled, Unknown, Unsupported
from skysail.core.actions import End, Launch

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 300.0
# A cloud that asks for more than this is asked again all the same.
_LONGEST_REQUEST = 3600.0
# Long after it an end is asked for again anyway.
_ASKED_FOR = timedelta(hours=1)

log = logging.getLogger(__name__)


class _Begun(NamedTuple):
    """A call as it was begun."""

    claim: CloudInstance
    order: Order
    nonce: str
    launched: Launched

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
        self._throttled: dict[str, Call] = {}
        # By cloud, when each instance was last asked to end. Never changed, only replaced: snapshots hold it.
        self._asked: dict[str, Mapping[str, datetime]] = {}
        self._ends: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.made: Callable[[Instance], None] = lambda _: None

    def ticket(self, claim: str) -> str:
        """A nonce of this process that no call has used."""
        return self._tickets.setdefault(claim, f"{self._rng.getrandbits(64):016x}")

    def last(self, claim: str) -> Call | None:
        """The last call for this claim."""
        return self._calls.get(claim)

    def throttled(self, cloud: str) -> Call | None:
        """The last call after which this cloud asked for a pause."""
        return self._throttled.get(cloud)

    def asked(self, cloud: str) -> Mapping[str, datetime]:
        """When each instance of this cloud was last asked to end."""
        return self._asked.get(cloud, {})

    def heed(self, claim: CloudInstance) -> None:
        """Break off the call that this claim does not wait for any more."""
        call, task = self._calls.get(claim.metadata.name), self._tasks.get(claim.metadata.name)
        if call is not None and task is not None and call.nonce != _awaited(claim) and not task.cancelling():
            task.cancel()

    def forget(self, claim: str) -> None:
        self._tickets.pop(claim, None)
        self._calls.pop(claim, None)
        self._failures.pop(claim, None)
        if task := self._tasks.pop(claim, None):
            task.cancel()

    def launch(self, action: Launch) -> None:
        claim, order = action.object, action.order
        assert isinstance(claim, CloudInstance), "only claims are launched"
        name = claim.metadata.name
        if self._brake.verdict(claim.spec):
            self._changed(name)  # others were launched since the plan was made: the next one says so
            return
        nonce = self._tickets.pop(name)
        assert nonce == _awaited(claim), "the claim carries the ticket"
        launched = self._brake.count(claim.spec)
        self._calls[name] = Call(nonce=nonce)
        create = self._clouds[claim.spec.provider].create(order)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(create, name=f"launch {name}")
        task.add_done_callback(partial(self._answered, _Begun(claim, order, nonce, launched)))

    def end(self, action: End) -> None:
        """One that is being asked for already is not asked for twice."""
        key, now = (action.cloud, action.instance), self._now()
        if key in self._ends:
            return
        recent = {id_: at for id_, at in self.asked(action.cloud).items() if abs(now - at) < _ASKED_FOR}
        self._asked[action.cloud] = recent | {action.instance: now}
        task = self._ends[key] = asyncio.get_running_loop().create_task(self._end(action), name=f"end {key[1]}")
        task.add_done_callback(lambda _: self._ends.pop(key))

    async def close(self) -> None:
        """The process stops: what is under way is left to the listings of the next one."""
        tasks: list[asyncio.Task[Any]] = [*self._tasks.values(), *self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, action: End) -> None:
        extra = {"cloud": action.cloud, "instance": action.instance}
        if not await guard.survive(self._try_end(action, extra), f"end of {action.instance} at {action.cloud}"):
            self._unask(action)

    async def _try_end(self, action: End, extra: dict[str, str]) -> None:
        try:
            await self._clouds[action.cloud].end(action.instance, action.grace)
        except Gone:
            log.debug("end of what the cloud does not know", extra=extra)
        except ProviderError as error:
            log.warning("end not answered, asked again", extra={**extra, "why": str(error)})
            self._unask(action)

    def _unask(self, action: End) -> None:
        asked = self.asked(action.cloud)
        self._asked[action.cloud] = {id_: at for id_, at in asked.items() if id_ != action.instance}

    def _answered(self, begun: _Begun, task: asyncio.Task[Instance]) -> None:
        name = begun.name
        outcome = self._outcome(begun, task)
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if name in self._calls and self._calls[name].nonce == begun.nonce:
            self._calls[name] = outcome
        if outcome.instance is not None:
            self.made(outcome.instance)
        self._changed(name)

    def _outcome(self, begun: _Begun, task: asyncio.Task[Instance]) -> Call:
        nonce = begun.nonce
        if task.cancelled():
            return Call(nonce=nonce, error=Unknown("The call was broken off."))
        error = task.exception()
        if isinstance(error, ProviderError):
            return self._failed(begun, error)
        if error is not None:
            log.error("call failed", exc_info=error, extra={"claim": begun.name})
            return Call(nonce=nonce, error=Unknown("The call failed; the operator's log tells more."))
        instance, order = task.result(), begun.order
        if not instance.has_usable_id:
            return Call(nonce=nonce, error=Unknown("The cloud answered with an id that cannot be written down."))
        if (instance.claim, instance.cluster) != (order.claim, order.cluster):
            return Call(nonce=nonce, error=Unknown(f"The cloud answered with instance {instance.id} of another claim."))
        self._failures.pop(begun.name, None)
        return Call(nonce=nonce, instance=instance)

    def _failed(self, begun: _Begun, error: ProviderError) -> Call:
        if isinstance(error, (NoCapacity, Throttled, Refused, Unsupported)):
            self._brake.take_back(begun.claim.spec, begun.launched)
        if not isinstance(error, (NoCapacity, Throttled)):
            return Call(nonce=begun.nonce, error=error)
        asked_for = min(error.retry_after, _LONGEST_REQUEST) if isinstance(error, Throttled) else 0.0
        pause = timedelta(seconds=max(self._pause(begun.name), asked_for))
        call = Call(nonce=begun.nonce, error=error, failed=self._now(), pause=pause)
        if isinstance(error, Throttled):
            self._throttled[begun.claim.spec.provider] = call
        return call

    def _pause(self, claim: str) -> float:
        failures = self._failures.get(claim, 0)
        self._failures[claim] = failures + 1
        longest = delay_after(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        return self._rng.uniform(_FIRST_PAUSE / 2, longest)


def _awaited(claim: CloudInstance) -> str:
    """The nonce of the call whose outcome the claim waits for."""
    launching = claim.status.launching
    return launching.nonce if launching is not None and claim.status.state == "Launching" else ""


def seed(brake: Brake, claims: Iterable[CloudInstance], now: datetime) -> None:
    """Let a new process know of the launches before it, also of those that have ended since."""
    for claim in claims:
        if at := launched_at(claim):
            brake.count(claim.spec, max(now - at, timedelta()))
