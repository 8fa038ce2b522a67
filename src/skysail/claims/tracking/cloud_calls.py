"""Calls to clouds. Each call is a task, because it may take many minutes, or its whole timeout if the cloud is down.

The result of a call is kept until the status of the claim records it. If the process stops before that, the claim keeps
an unknown nonce, and the next process finds the instance, or its absence, in the inventories.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from skysail.base import tasks as base_tasks
from skysail.base.backoff import delay_bound
from skysail.claims.limits.launch_history import launch_time
from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchTime
from skysail.claims.snapshot import CallResult
from skysail.claims.tracking.volume_deletions import VolumeDeletions
from skysail.claims.types import CloudInstance
from skysail.cloud.account import CloudAccount, Instance, LaunchSpec
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.core.actions import DeleteCloudVolume, LaunchInstance, TerminateInstance

_INITIAL_BACKOFF = 10.0
_MAX_BACKOFF = 300.0
# Maximum for a cloud's Retry-After: retry after this time even if the cloud asks for more.
_MAX_RETRY_AFTER = 3600.0
# Forget termination requests after this time: they are repeated long before.
_ASKED_FOR = timedelta(hours=1)

log = logging.getLogger(__name__)


class _Begun(NamedTuple):
    """A launch call that was started."""

    claim: CloudInstance
    launch_spec: LaunchSpec
    nonce: str
    launched: LaunchTime

    @property
    def name(self) -> str:
        return self.claim.metadata.name


class CloudCalls:
    """Cloud calls of one process. `changed` gets the name of each claim whose call has finished."""

    def __init__(
        self,
        accounts: Mapping[str, CloudAccount],
        limiter: LaunchLimiter,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        changed: Callable[[str], None],
    ) -> None:
        self._accounts = accounts
        self._limiter = limiter
        self._now = now
        self._rng = rng
        self._changed = changed
        self._tickets: dict[str, str] = {}
        self._calls: dict[str, CallResult] = {}
        self._tasks: dict[str, asyncio.Task[Instance]] = {}
        self._failures: dict[str, int] = {}
        self._throttled: dict[str, CallResult] = {}
        # Time of the last termination request, by cloud and instance id. Replace the inner mapping, never change it:
        # snapshots hold references to it.
        self._asked: dict[str, Mapping[str, datetime]] = {}
        self._ends: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.volumes = VolumeDeletions(accounts, now)
        self.on_created: Callable[[Instance], None] = lambda _: None

    def nonce_for(self, claim: str) -> str:
        """Return a nonce of this process that no call has used."""
        return self._tickets.setdefault(claim, f"{self._rng.getrandbits(64):016x}")

    def last(self, claim: str) -> CallResult | None:
        """Return the last call for this claim."""
        return self._calls.get(claim)

    def throttled_call(self, cloud: str) -> CallResult | None:
        """Return the last call that this cloud throttled."""
        return self._throttled.get(cloud)

    def termination_requests(self, cloud: str) -> Mapping[str, datetime]:
        """Return the time of the last termination request, by instance id."""
        return self._asked.get(cloud, {})

    def cancel_stale(self, claim: CloudInstance) -> None:
        """Cancel the running call if the claim no longer waits for it."""
        call, task = self._calls.get(claim.metadata.name), self._tasks.get(claim.metadata.name)
        if call is not None and task is not None and call.nonce != _awaited(claim) and not task.cancelling():
            task.cancel()

    def discard(self, claim: str) -> None:
        self._tickets.pop(claim, None)
        self._calls.pop(claim, None)
        self._failures.pop(claim, None)
        if task := self._tasks.pop(claim, None):
            task.cancel()

    def launch(self, action: LaunchInstance) -> None:
        claim, spec = action.object, action.launch_spec
        assert isinstance(claim, CloudInstance), "only claims are launched"
        name = claim.metadata.name
        if self._limiter.check(claim.spec):
            self._changed(name)  # launches since the plan used up the limit: plan again
            return
        nonce = self._tickets.pop(name)
        assert nonce == _awaited(claim), "the claim contains the nonce"
        launch_time = self._limiter.record(claim.spec)
        self._calls[name] = CallResult(nonce=nonce)
        create = self._accounts[claim.spec.provider].create(spec)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(create, name=f"launch {name}")
        task.add_done_callback(partial(self._answered, _Begun(claim, spec, nonce, launch_time)))

    def terminate(self, action: TerminateInstance) -> None:
        """Request a termination, unless a request for this instance is in progress."""
        key, now = (action.cloud, action.instance), self._now()
        if key in self._ends:
            return
        recent = {id_: at for id_, at in self.termination_requests(action.cloud).items() if abs(now - at) < _ASKED_FOR}
        self._asked[action.cloud] = recent | {action.instance: now}
        task = self._ends[key] = asyncio.get_running_loop().create_task(self._end(action), name=f"end {key[1]}")
        task.add_done_callback(lambda _: self._ends.pop(key))

    def delete_volume(self, action: DeleteCloudVolume) -> None:
        self.volumes.delete(action)

    async def close(self) -> None:
        """Cancel all calls. The next process learns their outcome from its inventories, or repeats deletions."""
        await self.volumes.close()
        tasks: list[asyncio.Task[Any]] = [*self._tasks.values(), *self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, action: TerminateInstance) -> None:
        extra = {"cloud": action.cloud, "instance": action.instance}
        if not await base_tasks.run_logged(
            self._try_end(action, extra), f"termination of {action.instance} at {action.cloud}"
        ):
            self._unask(action)

    async def _try_end(self, action: TerminateInstance, extra: dict[str, str]) -> None:
        try:
            await self._accounts[action.cloud].terminate(action.instance, action.grace)
        except Gone:
            log.debug("terminate: instance not found", extra=extra)
        except ProviderError as error:
            log.warning("terminate failed, retried", extra={**extra, "why": str(error)})
            self._unask(action)

    def _unask(self, action: TerminateInstance) -> None:
        asked = self.termination_requests(action.cloud)
        self._asked[action.cloud] = {id_: at for id_, at in asked.items() if id_ != action.instance}

    def _answered(self, begun: _Begun, task: asyncio.Task[Instance]) -> None:
        name = begun.name
        outcome = self._outcome(begun, task)
        _log_outcome(begun, outcome)
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if name in self._calls and self._calls[name].nonce == begun.nonce:
            self._calls[name] = outcome
        if outcome.instance is not None:
            self.on_created(outcome.instance)
        self._changed(name)

    def _outcome(self, begun: _Begun, task: asyncio.Task[Instance]) -> CallResult:
        nonce = begun.nonce
        if task.cancelled():
            return CallResult(nonce=nonce, error=OutcomeUnknown("The call to the cloud was cancelled."))
        error = task.exception()
        if isinstance(error, ProviderError):
            return self._failed(begun, error)
        if error is not None:
            log.error("launch call failed", exc_info=error, extra={"claim": begun.name})
            return CallResult(nonce=nonce, error=OutcomeUnknown("The call to the cloud failed: see the operator log."))
        instance, spec = task.result(), begun.launch_spec
        if not instance.has_usable_id:
            return CallResult(nonce=nonce, error=OutcomeUnknown("The cloud returned an empty or too long instance ID."))
        if (instance.claim, instance.cluster) != (spec.claim, spec.cluster):
            return CallResult(
                nonce=nonce, error=OutcomeUnknown(f"The cloud returned instance {instance.id} of another claim.")
            )
        self._failures.pop(begun.name, None)
        return CallResult(nonce=nonce, instance=instance)

    def _failed(self, begun: _Begun, error: ProviderError) -> CallResult:
        # What has cost money counts as a launch, although there is no instance.
        if isinstance(error, (NoCapacity, Throttled, Rejected, Unsupported)) and not error.usd:
            self._limiter.undo(begun.claim.spec, begun.launched)
        if not isinstance(error, (NoCapacity, Throttled)):
            return CallResult(nonce=begun.nonce, error=error)
        asked_for = min(error.retry_after, _MAX_RETRY_AFTER) if isinstance(error, Throttled) else 0.0
        pause = timedelta(seconds=max(self._pause(begun), asked_for)) if _needs_delay(begun, error) else timedelta()
        call = CallResult(nonce=begun.nonce, error=error, failed=self._now(), pause=pause)
        if isinstance(error, Throttled):
            self._throttled[begun.claim.spec.provider] = call
        return call

    def _pause(self, begun: _Begun) -> float:
        failures = self._failures.get(begun.name, 0)
        self._failures[begun.name] = failures + 1
        longest = delay_bound(failures, first=_INITIAL_BACKOFF, longest=_MAX_BACKOFF)
        return self._rng.uniform(_INITIAL_BACKOFF / 2, longest)


def _needs_delay(begun: _Begun, error: ProviderError) -> bool:
    """Return whether to wait after this error. The next candidate is tried at once; the first one again after a delay.

    So the delay grows with each round over all candidates.
    """
    return isinstance(error, Throttled) or begun.claim.status.candidate + 1 >= len(begun.claim.spec.candidates)


def _log_outcome(begun: _Begun, outcome: CallResult) -> None:
    """Log what a launch costs, or why there is none: operators of a cluster compare the log with the bill."""
    extra: dict[str, Any] = {"claim": begun.name, "provider": begun.claim.spec.provider}
    if outcome.instance is not None:
        price = outcome.instance.usd_per_hour
        log.info("launched", extra={**extra, "instance": outcome.instance.id, "usd_per_hour": price})
    else:
        log.warning("not launched", extra={**extra, "why": str(outcome.error)})


def _awaited(claim: CloudInstance) -> str:
    """Return the nonce of the call that the claim waits for."""
    launching = claim.status.launching
    return launching.nonce if launching is not None and claim.status.state == "Launching" else ""


def seed_limiter(limiter: LaunchLimiter, claims: Iterable[CloudInstance], now: datetime) -> None:
    """Count the launches of existing claims, also of terminated ones, when a process starts."""
    for claim in claims:
        if at := launch_time(claim):
            limiter.record(claim.spec, max(now - at, timedelta()))
