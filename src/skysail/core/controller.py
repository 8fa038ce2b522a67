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
from skysail.core.actions import Note, Plan
from skysail.core.errors import Stale
from skysail.core.executor import NameTaken, Performer
from skysail.core.fence import Fenced
from skysail.core.workqueue import Queue
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache, owner_uids
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
REFUSED_SECONDS = 10.0
# Retry a rejected object at least once a minute, so that users see soon whether their fix helped.
_REFUSED_AT_MOST = 60.0
# Rate limit of status writes that only add detail.
_DETAILS_A_SECOND = 4.0
_DETAILS_AT_ONCE = 20.0
# Delay until a postponed status write is tried again.
_HELD_SECONDS = 2.0


class Snapshot(Protocol):
    """Input of one plan: frozen, complete, and without access to a client."""

    @property
    def object(self) -> Object:
        """Object that the plan is for."""
        ...


S = TypeVar("S", bound=Snapshot)


class Controller(Protocol[S]):
    """Reconciler of one kind. Stateless; called for any key at any time, even if no such object ever existed."""

    @property
    def resource(self) -> Resource: ...

    async def observe(self, key: Key) -> S | None:
        """Return a frozen snapshot, or None if the object does not exist. May read from other systems; never writes."""
        ...

    def plan(self, snapshot: S) -> Plan:
        """Return the plan. Pure: equal snapshots give equal plans."""
        ...

    def refused(self, snapshot: S, why: Note) -> Plan:
        """Return the status and events after the API server rejected an action. Pure. The plan has no actions."""
        ...


class Recorder(Protocol):
    def record(self, resource: Resource, object_: Object, note: Note) -> None:
        """Record an event about an object. Never blocks and never raises."""
        ...


class Meter(Protocol):
    """Metrics of reconciles; the operator exports them to Prometheus."""

    def began(self, kind: str, waited: float) -> None: ...

    def ended(self, kind: str, result: str, seconds: float) -> None: ...


class Loop(Generic[S]):
    """Queue and workers of one kind. Each key is reconciled at least every `resync` seconds."""

    def __init__(
        self,
        controller: Controller[S],
        performer: Performer,
        recorder: Recorder,
        *,
        rng: random.Random,
        meter: Meter,
        resync: float = 600.0,
    ) -> None:
        self._controller = controller
        self._performer = performer
        self._recorder = recorder
        self._rng = rng
        self._meter = meter
        self._resync = resync
        self.kind = controller.resource.kind
        self.ration = Ration(a_second=_DETAILS_A_SECOND, at_once=_DETAILS_AT_ONCE)
        self.queue: Queue[Key] = Queue(rng=rng)

    def changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue a changed object of this kind. Subscribed to the cache of the kind."""
        object_ = new or old
        assert object_ is not None, "a change has an old or a new object"
        self.queue.add(object_.metadata.key)

    def follow(self, children: Cache[Any], roots: Cache[Any]) -> None:
        """Enqueue the owner of a changed child.

        The owner is found by UID in the namespace of the child, in the index `uid` of `roots`.
        """

        def changed(old: Object | None, new: Object | None) -> None:
            owners = {owner for o in (old, new) if o is not None for owner in owner_uids(o)}
            for root in [root for owner in owners for root in roots.by("uid", owner)]:
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
            self._meter.began(self.kind, waited)
            start = clock()
            try:
                result = await self._pass(key)
            finally:
                self.queue.done(key)
            self._meter.ended(self.kind, result, clock() - start)

    async def _pass(self, key: Key) -> str:
        """Reconcile one key and handle every error. Contains the only broad `except` of the process."""
        try:
            return await self._reconcile(key)
        except Terminating:
            # A terminating namespace accepts no new objects, and its own are deleted anyway.
            return "terminating"
        except (Fenced, Stale, Conflict, AlreadyExists, NotFound) as error:
            log.debug("reconcile conflict, requeued", extra={"kind": self.kind, "object": str(key), "why": str(error)})
            self.queue.retry(key)
            return "requeue"
        except Throttled as error:
            self.queue.retry(key, at_least=error.retry_after or 0.0)
            return "throttled"
        except KubeError as error:
            self._interrupted(key, error)
            return "error"
        except Exception:
            delay = self.queue.retry(key)
            log.exception(
                "reconcile failed, requeued", extra={"kind": self.kind, "object": str(key), "retry_in": round(delay, 1)}
            )
            return "error"

    async def _reconcile(self, key: Key) -> str:
        await self._performer.settle((self._controller.resource, key))
        snapshot = await self._controller.observe(key)
        if snapshot is None:
            self.queue.forget(key)
            return "gone"
        plan = self._controller.plan(snapshot)
        try:
            is_told = await self._carry_out(key, snapshot.object, plan)
        except Terminating:
            raise
        except (Invalid, Forbidden, NameTaken) as error:
            await self._refused(key, snapshot, error)
            return "refused"
        self.queue.forgive(key)
        self.queue.add_after(key, self._next_look(plan, is_told=is_told))
        return "success"

    async def _carry_out(self, key: Key, root: Object, plan: Plan) -> bool:
        """Execute the actions in order, write the status once, then record events.

        Returns False if the status write is postponed.
        """
        for action in plan.actions:
            if self._performer.moved_on(self._controller.resource, root):
                return True
            written = await self._performer.perform((self._controller.resource, key), action)
            if written is not None and written.metadata.uid == root.metadata.uid:
                root = written
        if plan.status is not None and plan.status != getattr(root, "status", None):
            if plan.can_wait and not self.ration.take(asyncio.get_running_loop().time()):
                return False  # the events wait with the status: the next plan contains them again
            root = await self._performer.report(self._controller.resource, root, plan.status)
        for note in (*plan.notes, *self._performer.news((self._controller.resource, key))):
            self._recorder.record(self._controller.resource, root, note)
        return True

    def _next_look(self, plan: Plan, *, is_told: bool) -> float:
        longest = (self._resync if is_told else _HELD_SECONDS) * self._rng.uniform(0.9, 1.1)
        return longest if plan.look_again is None else min(plan.look_again, longest)

    def _interrupted(self, key: Key, error: KubeError) -> None:
        delay = self.queue.retry(key)
        extra = {"kind": self.kind, "object": str(key), "why": str(error), "retry_in": round(delay, 1)}
        log.warning("reconcile interrupted, requeued", extra=extra)

    async def _refused(self, key: Key, snapshot: S, error: Exception) -> None:
        """Report a rejected write in the status and in events, and retry with a long delay."""
        delay = self.queue.retry(key, at_least=REFUSED_SECONDS, at_most=_REFUSED_AT_MOST)
        extra = {"kind": self.kind, "object": str(key), "why": str(error), "retry_in": round(delay, 1)}
        log.warning("write rejected, requeued", extra=extra)
        resource, root = self._controller.resource, snapshot.object
        reason = Reason.NAME_TAKEN if isinstance(error, NameTaken) else Reason.RECONCILE_FAILED
        plan = self._controller.refused(snapshot, Note(reason, str(error), warning=True))
        assert plan.status is not None, "a rejection has a status"
        if plan.status != getattr(root, "status", None) and not self._performer.moved_on(resource, root):
            await self._performer.report(resource, root, plan.status)
        for note in plan.notes:
            self._recorder.record(resource, root, note)
