"""Reconcile loop of every kind: take a key, observe, plan, execute, write the status.

Decisions are in `plan`, which is pure. This module holds the order of steps and the error handling.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Generic, Protocol, TypeVar

from skysail.base.names import Reason
from skysail.base.rate_limiter import Ration
from skysail.core.actions import Event, Plan
from skysail.core.errors import Stale
from skysail.core.executor import Executor, NameConflict
from skysail.core.fence import Fenced
from skysail.core.workqueue import WorkQueue
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache, Index, index_by_owner
from skysail.kube.client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    Terminating,
    Throttled,
)

log = logging.getLogger(__name__)

# Equal to the connections of a transport, because a reconcile mostly waits for the API server.
_WORKERS = 48
# First delay after a rejected write, because a user has to change something first.
REJECTED_RETRY_SECONDS = 10.0
# Retry a rejected object at least once a minute, so that users see soon whether their fix helped.
_REJECTED_MAX_RETRY_SECONDS = 60.0
# Rate limit of status writes that only add detail.
_DEFERRABLE_RATE = 4.0
_DEFERRABLE_BURST = 20.0
# Delay until a postponed status write is tried again.
_DEFERRED_RETRY_SECONDS = 2.0


class Snapshot(Protocol):
    """Input of one plan: frozen, complete, and without access to a client."""

    @property
    def object(self) -> Object:
        """Object that the plan is for."""
        ...


S = TypeVar("S", bound=Snapshot)


class Reconciler(Protocol[S]):
    """Reconciler of one kind. Stateless; called for any key at any time, even if no such object ever existed."""

    @property
    def resource(self) -> Resource: ...

    async def observe(self, key: Key) -> S | None:
        """Return a frozen snapshot, or None if the object does not exist. May read from other systems; never writes."""
        ...

    def plan(self, snapshot: S) -> Plan:
        """Return the plan. Pure: equal snapshots give equal plans."""
        ...

    def on_rejected(self, snapshot: S, event: Event) -> Plan:
        """Return the status and events after the API server rejected an action. Pure. The plan has no actions.

        The status may be None if the reconciler writes none.
        """
        ...


class EventRecorder(Protocol):
    def record(self, resource: Resource, object_: Object, event: Event) -> None:
        """Record an event about an object. Never blocks and never raises."""
        ...


class ReconcileMetrics(Protocol):
    """Metrics of reconciles; the operator exports them to Prometheus."""

    def reconcile_started(self, kind: str, waited: float) -> None: ...

    def reconcile_finished(self, kind: str, result: str, seconds: float) -> None: ...


class Controller(Generic[S]):
    """Queue and workers of one kind. Each key is reconciled at least every `resync` seconds."""

    def __init__(
        self,
        reconciler: Reconciler[S],
        executor: Executor,
        recorder: EventRecorder,
        *,
        rng: random.Random,
        metrics: ReconcileMetrics,
        resync: float = 600.0,
    ) -> None:
        self._reconciler = reconciler
        self._executor = executor
        self._recorder = recorder
        self._rng = rng
        self._metrics = metrics
        self._resync = resync
        self.kind = reconciler.resource.kind
        self.status_limiter = Ration(rate=_DEFERRABLE_RATE, burst=_DEFERRABLE_BURST)
        self.queue: WorkQueue[Key] = WorkQueue(rng=rng)

    def enqueue_object(self, old: Object | None, new: Object | None) -> None:
        """Enqueue a changed object of this kind. Subscribed to the cache of the kind."""
        object_ = new or old
        assert object_ is not None, "a change has an old or a new object"
        self.queue.add(object_.metadata.key)

    def watch_owned(self, children: Cache[Any], owner_cache: Cache[Any], index: Index[Object] = index_by_owner) -> None:
        """Enqueue the owner of a changed child.

        `index` returns the UID of the owner in the namespace of the child. The owner is found in the index `uid` of
        `owner_cache`.
        """

        def changed(old: Object | None, new: Object | None) -> None:
            owners = {owner for o in (old, new) if o is not None for owner in index(o)}
            for root in [root for owner in owners for root in owner_cache.by("uid", owner)]:
                self.queue.add(root.metadata.key)

        children.subscribe(changed)

    async def run(self) -> None:
        """Run the workers until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())
        finally:
            self.queue.close()

    async def _work(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            key, waited = await self.queue.get()
            self._metrics.reconcile_started(self.kind, waited)
            start = clock()
            try:
                result = await self._reconcile_safely(key)
            finally:
                self.queue.done(key)
            self._metrics.reconcile_finished(self.kind, result, clock() - start)

    async def _reconcile_safely(self, key: Key) -> str:
        """Reconcile one key and handle every error. Contains the only broad `except` of the process."""
        try:
            return await self._reconcile(key)
        except Terminating:
            # A terminating namespace accepts no new objects, and its own are deleted anyway.
            return "terminating"
        except (Fenced, Stale, Conflict, AlreadyExists, NotFound) as error:
            log.debug("reconcile conflict, requeued", extra={"kind": self.kind, "object": str(key), "why": str(error)})
            self.queue.add_rate_limited(key)
            return "requeue"
        except Throttled as error:
            self.queue.add_rate_limited(key, min_delay=error.retry_after or 0.0)
            return "throttled"
        except KubeError as error:
            self._retry_later(key, error)
            return "error"
        except Exception:
            delay = self.queue.add_rate_limited(key)
            log.exception(
                "reconcile failed, requeued", extra={"kind": self.kind, "object": str(key), "retry_in": round(delay, 1)}
            )
            return "error"

    async def _reconcile(self, key: Key) -> str:
        await self._executor.resolve_unknown_writes((self._reconciler.resource, key))
        snapshot = await self._reconciler.observe(key)
        if snapshot is None:
            self.queue.discard(key)
            return "gone"
        plan = self._reconciler.plan(snapshot)
        try:
            is_reported = await self._execute(key, snapshot.object, plan)
        except Terminating:
            raise
        except (Invalid, Forbidden, NameConflict) as error:
            await self._report_rejection(key, snapshot, error)
            return "refused"
        self.queue.forget(key)
        self.queue.add_after(key, self._requeue_delay(plan, is_reported=is_reported))
        return "success"

    async def _execute(self, key: Key, root: Object, plan: Plan) -> bool:
        """Execute the actions in order, write the status once, then record events.

        Returns False if the status write is postponed.
        """
        for action in plan.actions:
            if self._executor.is_outdated(self._reconciler.resource, root):
                return True
            written = await self._executor.execute((self._reconciler.resource, key), action)
            if written is not None and written.metadata.uid == root.metadata.uid:
                root = written
        if plan.status is not None and plan.status != getattr(root, "status", None):
            if plan.is_deferrable and not self.status_limiter.try_acquire(asyncio.get_running_loop().time()):
                return False  # the events wait with the status: the next plan contains them again
            root = await self._executor.write_status(self._reconciler.resource, root, plan.status)
        for event in (*plan.events, *self._executor.pop_events((self._reconciler.resource, key))):
            self._recorder.record(self._reconciler.resource, root, event)
        return True

    def _requeue_delay(self, plan: Plan, *, is_reported: bool) -> float:
        longest = (self._resync if is_reported else _DEFERRED_RETRY_SECONDS) * self._rng.uniform(0.9, 1.1)
        return longest if plan.requeue_after is None else min(plan.requeue_after, longest)

    def _retry_later(self, key: Key, error: KubeError) -> None:
        delay = self.queue.add_rate_limited(key)
        extra = {"kind": self.kind, "object": str(key), "why": str(error), "retry_in": round(delay, 1)}
        log.warning("reconcile interrupted, requeued", extra=extra)

    async def _report_rejection(self, key: Key, snapshot: S, error: Exception) -> None:
        """Report a rejected write in the status and in events, and retry with a long delay."""
        delay = self.queue.add_rate_limited(
            key, min_delay=REJECTED_RETRY_SECONDS, max_delay=_REJECTED_MAX_RETRY_SECONDS
        )
        extra = {"kind": self.kind, "object": str(key), "why": str(error), "retry_in": round(delay, 1)}
        log.warning("write rejected, requeued", extra=extra)
        resource, root = self._reconciler.resource, snapshot.object
        reason = Reason.NAME_CONFLICT if isinstance(error, NameConflict) else Reason.RECONCILE_FAILED
        plan = self._reconciler.on_rejected(snapshot, Event(reason, str(error), warning=True))
        is_changed = plan.status is not None and plan.status != getattr(root, "status", None)
        if plan.status is not None and is_changed and not self._executor.is_outdated(resource, root):
            await self._executor.write_status(resource, root, plan.status)
        for event in plan.events:
            self._recorder.record(resource, root, event)
