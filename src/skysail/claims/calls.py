"""Calls to clouds: each a task of its own, known by its claim, because one may take many minutes.

What came of a call is kept until it is written down. A process that ends before that leaves a claim with a nonce that
nobody remembers; the next one finds the instance, or its absence, in the listings.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from skysail.base.backoff import delay_after
from skysail.claims.brake import Brake
from skysail.claims.snapshot import Call
from skysail.claims.types import CloudInstance
from skysail.cloud.errors import Gone, NoCapacity, ProviderError, Refused, Throttled, Unknown, Unsupported
from skysail.cloud.instances import Cloud, Instance, Order
from skysail.core.actions import End, Launch

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 300.0

log = logging.getLogger(__name__)


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
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self.asked: dict[str, datetime] = {}
        self.made: Callable[[Instance], None] = lambda _: None

    def ticket(self, claim: str) -> str:
        """A nonce of this process that no call has used."""
        return self._tickets.setdefault(claim, f"{self._rng.getrandbits(64):016x}")

    def call(self, claim: CloudInstance) -> Call | None:
        """The last call for this claim. One that the claim knows nothing of any more is broken off."""
        name = claim.metadata.name
        call = self._calls.get(name)
        nonce = claim.status.launching.nonce if claim.status.launching else ""
        if call is not None and call.is_under_way and call.nonce != nonce:
            self._tasks[name].cancel()
        return call

    def forget(self, claim: str) -> None:
        self._tickets.pop(claim, None)
        self._calls.pop(claim, None)
        self._failures.pop(claim, None)
        if task := self._tasks.pop(claim, None):
            task.cancel()

    def launch(self, action: Launch) -> None:
        claim = action.object
        assert isinstance(claim, CloudInstance), "only claims are launched"
        name = claim.metadata.name
        nonce = self._tickets.pop(name)
        self._calls[name] = Call(nonce=nonce)
        task = asyncio.get_running_loop().create_task(self._create(claim, nonce, action.order), name=f"launch {name}")
        self._tasks[name] = task

    async def end(self, action: End) -> None:
        self.asked[action.instance] = self._now()
        try:
            await self._clouds[action.cloud].end(action.instance, action.grace)
        except Gone:
            log.debug("end of what the cloud does not know", extra={"instance": action.instance})
        except ProviderError as error:
            log.warning("end not answered, asked again", extra={"instance": action.instance, "why": str(error)})
            del self.asked[action.instance]

    async def close(self) -> None:
        """The process stops: what is under way is left to the listings of the next one."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _create(self, claim: CloudInstance, nonce: str, order: Order) -> None:
        name, at = claim.metadata.name, self._now()
        self._brake.count(claim.spec, at)
        try:
            instance = await self._clouds[claim.spec.provider].create(order)
        except ProviderError as error:
            outcome = self._failed(claim, nonce, at, error)
        except asyncio.CancelledError:
            outcome = Call(nonce=nonce, error=Unknown("The call was broken off."))
            raise
        else:
            outcome = Call(nonce=nonce, instance=instance)
            self._failures.pop(name, None)
            self.made(instance)
        finally:
            if self._calls.get(name, outcome).nonce == nonce:
                self._calls[name] = outcome
            self._changed(name)

    def _failed(self, claim: CloudInstance, nonce: str, at: datetime, error: ProviderError) -> Call:
        if isinstance(error, (NoCapacity, Throttled, Refused, Unsupported)):
            self._brake.take_back(claim.spec, at)
        if not isinstance(error, (NoCapacity, Throttled)):
            return Call(nonce=nonce, error=error)
        pause = max(self._pause(claim.metadata.name), error.retry_after if isinstance(error, Throttled) else 0.0)
        return Call(nonce=nonce, error=error, retry_at=self._now() + timedelta(seconds=pause))

    def _pause(self, claim: str) -> float:
        failures = self._failures.get(claim, 0)
        self._failures[claim] = failures + 1
        longest = delay_after(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        return self._rng.uniform(_FIRST_PAUSE / 2, longest)


def seed(brake: Brake, claims: list[CloudInstance]) -> None:
    """Let a new process know of the launches before it."""
    for claim in claims:
        if claim.status.launching is not None:
            brake.count(claim.spec, datetime.fromisoformat(claim.status.launching.at))
