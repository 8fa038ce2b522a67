"""The loop: take a key, observe, plan, act, report. The same for every kind.

Decisions are in `plan`, which is pure; here is only the order of things and what to do when one fails.
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

# As many as a transport has connections: a pass waits for the server nearly all of its time.
_WORKERS = 48
# How soon to try again what was refused. A person has to change something first.
REFUSED_SECONDS = 10.0
# Whoever has put right what was told looks at once whether that helped.
_REFUSED_AT_MOST = 60.0
# How many statuses are written that only say more closely what was said before.
_DETAILS_A_SECOND = 4.0
_DETAILS_AT_ONCE = 20.0
# How soon to look whether a status that could wait may be written now.
_HELD_SECONDS = 2.0


class Snapshot(Protocol):
    """What one plan is made from: frozen, complete, without a way to ask for more."""

    @property
    def object(self) -> Object:
        """The object that the plan is about."""
        ...


S = TypeVar("S", bound=Snapshot)


class Controller(Protocol[S]):
    """One kind. Holds no state; may be called for any key at any time, also for one that never existed."""

    @property
    def resource(self) -> Resource: ...

    async def observe(self, key: Key) -> S | None:
        """One frozen snapshot, or None where the object is gone. May read outside facts; writes nothing."""
        ...

    def plan(self, snapshot: S) -> Plan:
        """Pure: the same snapshot gives the same plan."""
        ...

    def refused(self, snapshot: S, why: Note) -> Plan:
        """Pure: what to show and to tell when an action of the plan was refused for good. Nothing is done."""
        ...


class Recorder(Protocol):
    def record(self, resource: Resource, object_: Object, note: Note) -> None:
        """Tell an event about an object. Never blocks and never fails: an event is for people."""
        ...


class Meter(Protocol):
    """Counts passes; the operator's speaks Prometheus."""

    def began(self, kind: str, waited: float) -> None: ...

    def ended(self, kind: str, result: str, seconds: float) -> None: ...


class Loop(Generic[S]):
    """The workers of one controller. Every `resync` seconds each key is looked at although nothing happened."""

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
        """An object of this kind changed: look at it. Given to the kind's cache as a listener."""
        object_ = new or old
        assert object_ is not None, "a change has a before or an after"
        self.queue.add(object_.metadata.key)

    def follow(self, children: Cache[Any], roots: Cache[Any]) -> None:
        """Look at an owner when a child of it changes.

        The owner is found by its UID in the namespace of the child, in the index `uid` of `roots`.
        """

        def changed(old: Object | None, new: Object | None) -> None:
            owners = {owner for o in (old, new) if o is not None for owner in owner_uids(o)}
            for root in [root for owner in owners for root in roots.by("uid", owner)]:
                self.queue.add(root.metadata.key)

        children.subscribe(changed)

    async def run(self) -> None:
        """Until cancelled."""
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
        """One look at one key, with every way that it can end. The only broad `except` of the process."""
        try:
            return await self._reconcile(key)
        except Terminating:
            # Nothing can be made in a namespace that ends; its objects go anyway.
            return "terminating"
        except (Fenced, Stale, Conflict, AlreadyExists, NotFound) as error:
            log.debug("not now", extra={"kind": self.kind, "object": str(key), "why": str(error)})
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
            log.exception("pass failed", extra={"kind": self.kind, "object": str(key), "retry_in": round(delay, 1)})
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
        """Actions in order, then one status write, then the events that speak of it. False where that write waits."""
        for action in plan.actions:
            if self._performer.moved_on(self._controller.resource, root):
                return True
            written = await self._performer.perform((self._controller.resource, key), action)
            if written is not None and written.metadata.uid == root.metadata.uid:
                root = written
        if plan.status is not None and plan.status != getattr(root, "status", None):
            if plan.can_wait and not self.ration.take(asyncio.get_running_loop().time()):
                return False  # what there is to tell waits with it: the next plan has it again
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
        log.warning("pass interrupted", extra=extra)

    async def _refused(self, key: Key, snapshot: S, error: Exception) -> None:
        """The server or an owner said no, and will again: say it to the people who can change that, and try rarely."""
        delay = self.queue.retry(key, at_least=REFUSED_SECONDS, at_most=_REFUSED_AT_MOST)
        extra = {"kind": self.kind, "object": str(key), "why": str(error), "retry_in": round(delay, 1)}
        log.warning("pass refused", extra=extra)
        resource, root = self._controller.resource, snapshot.object
        reason = Reason.NAME_TAKEN if isinstance(error, NameTaken) else Reason.RECONCILE_FAILED
        plan = self._controller.refused(snapshot, Note(reason, str(error), warning=True))
        assert plan.status is not None, "a refusal is shown"
        if plan.status != getattr(root, "status", None) and not self._performer.moved_on(resource, root):
            await self._performer.report(resource, root, plan.status)
        for note in plan.notes:
            self._recorder.record(resource, root, note)
