"""Keeps the pods of one node: observe, plan, act, report, for each of them alone and all of them at once.

The truth about a run is the provider's, by its changes and by a complete listing from time to time; the truth about a
pod is the API server's. What the keeper itself remembers can be lost: it is found again in these two.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skysail.base import tasks as guard
from skysail.base.names import Event
from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Ended, Listing, Provider, RunId
from skysail.core.workqueue import Queue
from skysail.kube import events
from skysail.kube.api import tolerations
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.cache.audit import audit
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Conflict, Forbidden, Invalid, KubeError, NotFound, ServerFault
from skysail.node.config import container_config
from skysail.node.config.references import Node, References
from skysail.node.executor import Performer
from skysail.node.log_store import LogStore
from skysail.node.pod_state import Book
from skysail.node.pod_types import Pod
from skysail.node.sync import cloud_requirements, daemonset_pods, status, status_size, unsupported_fields
from skysail.node.sync.planner import DeletePod, Mark, Plan, Prepare, Release, Start, Stop, plan
from skysail.node.sync.snapshot import age, loss, lost
from skysail.node.sync.unsupported_fields import Burden

_WORKERS = 16
_SURVEY_SECONDS = 30.0
_REFRESH_SECONDS = 60.0
_AUDIT_SECONDS = 600.0
# A start or an end takes some milliseconds: a status in between would be a write that nobody reads.
_PATIENCE = 2.0
# A pod that is deleted must be able to go, whatever an admission webhook or the size of the pod do to its last status.
_MAX_REJECTIONS = 3

RIGHTS = (
    reading(POD),
    Right(POD, ("patch",), subresource="status"),
    Right(POD, ("delete", "patch")),
    reading(SERVICE),
)

log = logging.getLogger(__name__)


class Surroundings(msgspec.Struct, frozen=True):
    """What a keeper needs from outside.

    `wall` is the time in statuses: seconds since 1970. `clock` only goes forward.
    """

    broadcaster: events.Broadcaster
    wall: Callable[[], float]
    clock: Callable[[], float]
    rng: random.Random


class Keeper:
    """One per node."""

    def __init__(
        self,
        client: Client,
        provider: Provider,
        node: Node,
        logs: LogStore,
        *,
        around: Surroundings,
    ) -> None:
        self._client = client
        self._provider = provider
        self._node = node
        self._logs = logs
        self._broadcaster = around.broadcaster
        self._wall = around.wall
        self._clock = around.clock
        self._rng = around.rng
        self._references = References(client, node, self._wall)
        self._listing = Listing(runs={}, pods={}, complete=False)
        self._queue: Queue[str] = Queue(rng=self._rng)
        self._performer = Performer(provider, self._references, logs, self, now=self._wall, changed=self._queue.add)
        self.books: dict[str, Book] = {}
        self.pods: Cache[Pod] = Cache(POD, Pod, selector={"fieldSelector": f"spec.nodeName={node.name}"})

    async def run(self) -> None:
        """Until cancelled."""
        services = self._references.services
        try:
            async with asyncio.TaskGroup() as tasks:
                self._performer.tasks = tasks
                for cache in (self.pods, services):
                    reflector = Reflector[Any](self._client, cache, rng=self._rng)
                    tasks.create_task(reflector.run())
                    tasks.create_task(self._audit_for_ever(cache, reflector))
                tasks.create_task(self._follow_changes())
                await self.pods.synced.wait()
                await services.synced.wait()
                if not self.pods.unreadable:
                    self._logs.forget_others({pod.metadata.uid for pod in self.pods.all()})
                await self._first_survey()
                for pod in self.pods.all():
                    self._seen(None, pod)
                self.pods.subscribe(self._seen)
                tasks.create_task(self._survey_for_ever())
                tasks.create_task(self._refresh_for_ever())
                for _ in range(_WORKERS):
                    tasks.create_task(self._work())
        finally:
            self._queue.close()

    def tell(self, pod: Pod, reason: str, note: str, *, warning: bool = True) -> None:
        self._broadcaster.tell(events.Event(resource=POD, object=pod, reason=reason, note=note, warning=warning))

    def tell_of(self, run: RunId, reason: str, note: str) -> None:
        """What the provider has to say about a run, for the user."""
        book = self.books.get(run.pod)
        pod = self.pod(book) if book else None
        if pod is not None:
            self.tell(pod, reason, f"{run.container}: {note}", warning=False)

    def known(self, uid: str) -> Pod | None:
        """A pod of this node, as the API server last told it."""
        book = self.books.get(uid)
        pod = self.pods.get(book.key) if book else None
        return pod if pod is not None and pod.metadata.uid == uid else None

    def pod(self, book: Book) -> Pod | None:
        """The pod of this book as the API server has it; None where it is gone, whoever has its name now."""
        pod = self.known(book.uid)
        return container_config.without_login(pod) if pod and self._node.is_virtual else pod

    def _seen(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            self._queue.add(old.metadata.uid)
        if new is None:
            return
        if new.metadata.uid not in self.books:
            self._open_book(new)
        elif old is not None and old.spec != new.spec and self._burden(old) != self._burden(new):
            self._tell_burden(new)
        self._queue.add(new.metadata.uid)

    def _open_book(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        runs = {run: state for run, state in self._listing.runs.items() if run.pod == uid}
        now = self._wall()
        known = {**runs, **lost(pod, runs, now)}
        book = Book(pod, known, self._listing.pods.get(uid), began=self._clock() - age(pod, now))
        self.books[uid] = book
        self._tell_burden(pod)
        for run in book.live():
            self._performer.adopt(book, pod, run)

    def _tell_burden(self, pod: Pod) -> None:
        found = self._burden(pod)
        for event, sentences in ((Event.UNSUPPORTED, found.refused), (Event.LEFT_OUT, found.left_out)):
            if sentences:
                self.tell(pod, event, " ".join(sentences))

    async def _work(self) -> None:
        while True:
            uid, _ = await self._queue.get()
            try:
                await self._pass(uid)
            finally:
                self._queue.done(uid)

    async def _pass(self, uid: str) -> None:
        """One look at one pod, with every way that it can end."""
        if not await guard.survive(self._try(uid), f"pass over pod {uid}"):
            self._queue.retry(uid)

    async def _try(self, uid: str) -> None:
        try:
            await self._reconcile(uid)
        except (Conflict, NotFound) as error:
            # It changed meanwhile: the watch tells how, and the next look begins with that.
            log.debug("changed meanwhile", extra={"pod": uid, "why": str(error)})
            self._queue.retry(uid)
        except (KubeError, ProviderError) as error:
            delay = self._queue.retry(uid)
            log.warning("pass interrupted", extra={"pod": uid, "why": str(error), "retry_in": round(delay, 1)})
        else:
            self._queue.forgive(uid)

    async def _reconcile(self, uid: str) -> None:
        book = self.books.get(uid)
        if book is None:
            return
        pod = self.pod(book)
        if pod is None:
            await self._bury(book)
            return
        if self._node.is_virtual and await self._keep_here(pod):
            return  # the cache tells of what was written
        burden, pod = self._burden(pod), unsupported_fields.bounded(pod)
        snapshot = book.snapshot(pod, now=self._wall(), clock=self._clock(), host_ip=self._node.address, burden=burden)
        planned = daemonset_pods.plan(snapshot) if daemonset_pods.is_only_shown(pod, self._node) else plan(snapshot)
        await self._act(book, pod, planned)
        await self._report(book, pod, planned)
        await self._part(book, pod, planned)
        if planned.look_again is not None:
            self._queue.add_after(uid, planned.look_again)

    async def _keep_here(self, pod: Pod) -> bool:
        """Admission did it where it was there, and knew that the pod comes here."""
        lasting = tolerations.without_end(pod.spec.tolerations)
        if lasting is None or pod.is_over or pod.metadata.is_deleting:
            return False
        metadata = pod.metadata
        patch = {"metadata": {"uid": metadata.uid}, "spec": {"tolerations": lasting}}
        self.pods.wrote(await self._client.merge_patch(POD, metadata.namespace, metadata.name, patch, Pod))
        return True

    def _burden(self, pod: Pod) -> Burden:
        if daemonset_pods.is_only_shown(pod, self._node):
            return Burden()
        found = unsupported_fields.of(pod, self._provider.abilities)
        return found + cloud_requirements.burden(pod) if self._node.is_virtual else found

    async def _act(self, book: Book, pod: Pod, planned: Plan) -> None:
        for step in planned.steps:
            match step:
                case Prepare():
                    await self._performer.prepare(book, pod)
                    self._queue.add(book.uid)
                case Start():
                    self._performer.start(book, pod, step)
                case Stop():
                    await self._performer.stop(book, pod, step)
                case Mark():
                    await self._mark(pod, step.annotations)
                case Release() | DeletePod():
                    pass  # after the report: the last word is written before anything is forgotten
            await asyncio.sleep(0)  # a pod with many containers must not hold up the others

    async def _mark(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        metadata = pod.metadata
        patch = {"metadata": {"uid": metadata.uid, "annotations": annotations}}
        self.pods.wrote(await self._client.merge_patch(POD, metadata.namespace, metadata.name, patch, Pod))
        note = "Shown as running and not run: this node stands for a cloud, and no machine is there to look after."
        self.tell(pod, Event.NOT_RUN, note, warning=False)

    async def _part(self, book: Book, pod: Pod, planned: Plan) -> None:
        if Release() in planned.steps:
            await self._performer.release(book)
        if DeletePod() in planned.steps:
            await self._let_go(pod)

    async def _report(self, book: Book, pod: Pod, planned: Plan) -> None:
        shown = status_size.shortened(planned.status or {}, book.brevity)
        if planned.status is None or not status.differs(pod, shown):
            book.report_due = None
            return
        if not planned.is_parting and (planned.is_moving or book.is_moving):
            now = self._wall()
            book.report_due = book.report_due or now + _PATIENCE
            if now < book.report_due:
                self._queue.add_after(book.uid, book.report_due - now)
                return
        book.report_due = None
        try:
            self.pods.wrote(await self._client.patch_status(POD, pod, shown, Pod))
        except (Forbidden, Invalid, ServerFault) as error:
            await self._rejected(book, pod, planned, error)
            return
        book.rejections = 0
        for note in status.new_pauses(pod, shown):
            self.tell(pod, Event.BACK_OFF, note)

    async def _rejected(self, book: Book, pod: Pod, planned: Plan, error: ApiError) -> None:
        """Write a shorter status if this one is too large. Raises the error, unless the pod has to go without."""
        if status_size.is_too_large(error) and book.brevity < status_size.MAX_BREVITY:
            book.brevity += 1
            log.warning("status too large, shortened", extra={"pod": str(book.key), "brevity": book.brevity})
            await self._report(book, pod, planned)
            return
        book.rejections += 1
        if DeletePod() not in planned.steps or book.rejections < _MAX_REJECTIONS:
            raise error
        log.warning("last status rejected, pod deleted without it", extra={"pod": str(book.key), "why": str(error)})

    async def _let_go(self, pod: Pod) -> None:
        try:
            left = await self._client.delete(POD, pod, Pod, {"gracePeriodSeconds": 0})
        except (NotFound, Conflict):
            return  # gone already, or another pod has its name
        if left is not None:
            self.pods.wrote(left)

    async def _bury(self, book: Book) -> None:
        """The pod is gone from the API server: by force, or as we asked. Nothing of it stays."""
        book.close()
        await self._performer.release(book)
        self._logs.forget(book.uid)
        self._references.forget(book.uid)
        self._queue.forget(book.uid)
        del self.books[book.uid]

    async def _follow_changes(self) -> None:
        async for run in self._provider.changes():
            book = self.books.get(run.pod)
            if book is not None:
                self._performer.task(self._look(book, run), f"look at {run}")

    async def _look(self, book: Book, run: RunId) -> None:
        try:
            state = await self._provider.state(run)
        except ProviderError as error:
            log.info("state of a run not known, the next survey tells", extra={"why": str(error)})
            return
        if run in book.starting:
            return  # whoever starts it looks at it
        await self._performer.learned(book, self.pod(book), run, state)

    async def _first_survey(self) -> None:
        """Without a complete listing nobody can say what is lost, so nothing is done before there is one."""
        while not self._listing.complete:
            try:
                self._listing = await self._provider.list()
            except ProviderError as error:
                log.warning("provider does not list", extra={"why": str(error)})
            if not self._listing.complete:
                await asyncio.sleep(1.0)

    async def _survey_for_ever(self) -> None:
        while True:
            await guard.survive(self._try_survey(), "survey")
            await asyncio.sleep(_SURVEY_SECONDS * self._rng.uniform(0.9, 1.1))

    async def _try_survey(self) -> None:
        try:
            await self._survey()
        except ProviderError as error:
            log.warning("provider does not list", extra={"why": str(error)})

    async def _survey(self) -> None:
        """Compare what we believe with what is there: news that got lost, runs that got lost, places nobody wants."""
        believed = {run: book for book in self.books.values() for run in book.live()}
        listing = await self._provider.list()
        for run, state in listing.runs.items():
            book = self.books.get(run.pod)
            if book is not None and book.runs.get(run) != state:
                await self._look(book, run)
        if not listing.complete:
            return
        self._listing = listing
        for run, book in believed.items():
            last = book.runs.get(run)
            if run in listing.runs or run in book.starting or last is None or isinstance(last, Ended):
                continue
            if await self._provider.state(run) is None:
                book.ended(run, loss(last, self._wall()))
                self._queue.add(book.uid)
        for uid in {*listing.pods, *(run.pod for run in listing.runs)} - self.books.keys():
            await self._provider.release(uid)

    async def _audit_for_ever(self, cache: Cache[Any], reflector: Reflector[Any]) -> None:
        """A watch can lose an event without anybody noticing: from time to time the whole is compared."""
        while True:
            await asyncio.sleep(_AUDIT_SECONDS * self._rng.uniform(0.9, 1.1))
            try:
                finding = await audit(self._client, cache)
            except KubeError as error:
                log.info("cache not audited", extra={"why": str(error)})
                continue
            if finding.differs:
                log.warning("cache differed and is filled anew", extra=msgspec.structs.asdict(finding))
                reflector.relist()

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS * self._rng.uniform(0.9, 1.1))
            for book in list(self.books.values()):
                pod = self.pod(book)
                if pod is not None and not pod.is_over:
                    await guard.survive(self._performer.refresh(book, pod), f"files of pod {book.uid}")
