"""Reconciler of models: builds the snapshot from caches and, before risky decisions, from the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from skysail.base.names import Label
from skysail.core import pod_pending
from skysail.core.actions import Note, Plan
from skysail.core.errors import Stale
from skysail.core.pod_pending import Obstacle
from skysail.kinds.serving import preflight, takeover
from skysail.kinds.serving.admission.validation import objections
from skysail.kinds.serving.api.types import KINDS, Download, Model
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.objects import Claim, Deployment, Job, Pod
from skysail.kinds.serving.plan import download_progress, failure, planner, target_revision
from skysail.kinds.serving.plan.failure import Mishap
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri, revisions
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import serving
from skysail.kinds.serving.spec.revisions import ControllerRevision, Entry
from skysail.kube import diagnostics
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Key, Object, version
from skysail.kube.api.rbac import Right, reading
from skysail.kube.api.resources import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
    Resource,
)
from skysail.kube.client.client import Client, decoded
from skysail.kube.client.errors import NotFound
from skysail.kube.diagnostics import Evidence

RIGHTS = (
    *(
        right
        for kind in KINDS
        for right in (
            reading(kind.resource),
            # Removes the finalizers of the previous operator.
            Right(kind.resource, ("patch",)),
            Right(kind.resource, ("update",), subresource="status"),
            # Some clusters require this to set blockOwnerDeletion in an owner reference.
            Right(kind.resource, ("update",), subresource="finalizers"),
        )
    ),
    *(
        right
        for resource in (JOB, SERVICE, HORIZONTAL_POD_AUTOSCALER, CONTROLLER_REVISION)
        for right in (reading(resource), Right(resource, ("create", "delete", "patch")))
    ),
    *(
        right
        for resource in (DEPLOYMENT, PERSISTENT_VOLUME_CLAIM)
        for right in (reading(resource), Right(resource, ("create", "patch")))
    ),
    *takeover.RIGHTS,
    reading(POD),
    *diagnostics.RIGHTS,
)

# The Job controller creates pods at once; a pod missing for this long has a cause to look up.
_PATIENCE = timedelta(seconds=10)

T = TypeVar("T", bound=Object)


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]


class Models:
    """Reconciler of one of the kinds."""

    def __init__(
        self, kind: CustomKind, client: Client, caches: Caches, now: Callable[[], datetime], terms: Terms
    ) -> None:
        self.kind = kind
        self._client = client
        self._evidence = Evidence(client)
        self._caches = caches
        self._now = now
        self._terms = terms

    @property
    def resource(self) -> Resource:
        return self.kind.resource

    async def observe(self, key: Key) -> Snapshot | None:
        model: Model | None = self._caches.models[self.kind].get(key)
        if model is None:
            return None
        snapshot = self._cached(model)
        if model.metadata.is_deleting or objections(model, self._terms):
            return snapshot
        wanted = target_revision.target(snapshot)
        if _is_decisive(snapshot, wanted):
            snapshot = await self._sure(snapshot)
            wanted = target_revision.target(snapshot)
        if wanted is None:
            return snapshot
        if wanted.entry is not None or snapshot.job is None or snapshot.job.is_complete:
            before = await takeover.find(self._client, snapshot)
            snapshot = msgspec.structs.replace(snapshot, predecessor=before)
        if wanted.entry is None:
            return await self._prepared(await self._with_source(snapshot, wanted), wanted)
        return await self._served(snapshot, wanted, wanted.entry)

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def refused(self, snapshot: Snapshot, why: Note) -> Plan:
        return planner.refused(snapshot, why)

    def _cached(self, model: Model) -> Snapshot:
        identity, caches, wanted = model.metadata.identity, self._caches, serving(model, self._terms)
        names = wanted.names
        return Snapshot(
            object=model,
            serving=wanted,
            terms=self._terms,
            now=self._now(),
            job=_named(caches.jobs.by("owner", identity), names.job),
            pods=tuple(caches.pods.by("model", identity)),
            deployment=_named(caches.deployments.by("owner", identity), names.deployment),
            services=tuple(caches.services.by("owner", identity)),
            autoscaler=_named(caches.autoscalers.by("owner", identity), names.autoscaler),
            claim=_named(caches.claims.by("owner", identity), names.claim),
            **_known(caches.revisions.by("owner", identity)),
        )

    async def _sure(self, snapshot: Snapshot) -> Snapshot:
        """Read model, history and PVC from the API server before a revision is prepared or servers change.

        A stale cache would restore an old revision or download one twice.
        """
        model, namespace = snapshot.object, snapshot.object.metadata.namespace
        live = await self._client.get(self.resource, namespace, model.metadata.name, Object)
        if live.metadata.resource_version != model.metadata.resource_version:
            raise Stale(f"cached {model.metadata.key} is stale")
        listed = await self._list(CONTROLLER_REVISION, model, _List[ControllerRevision])
        known = _newest((*self._caches.revisions.by("owner", model.metadata.identity), *_owned(listed.items, model)))
        names = snapshot.serving.names
        claim = snapshot.claim or (await self._find(PERSISTENT_VOLUME_CLAIM, model, names.claim, Claim))
        snapshot = msgspec.structs.replace(snapshot, claim=claim, **_known(known))
        wanted = target_revision.target(snapshot)
        if wanted is None or wanted.entry is not None:
            return snapshot
        # A get is never stale, while a list may be.
        found = await self._find(CONTROLLER_REVISION, model, names.revision(wanted.hash), ControllerRevision)
        job = snapshot.job or await self._find(JOB, model, names.job, Job)
        there = known if found is None else _newest((*known, found))
        return msgspec.structs.replace(snapshot, job=job, **_known(there))

    async def _find(self, resource: Resource, model: Model, name: str, type_: type[T]) -> T | None:
        """Return an object that the model owns, or None if it does not exist or the kind has no such child."""
        if not name:
            return None
        try:
            found = await self._client.get(resource, model.metadata.namespace, name, type_)
        except NotFound:
            return None
        return next(iter(_owned((found,), model)), None)

    async def _with_source(self, snapshot: Snapshot, wanted: Target) -> Snapshot:
        """Add the user's PVC that the model is copied from, if a pod that mounts it is about to be created."""
        name, job = model_uri.claim(wanted.want.uri), snapshot.job
        if not name or (job is not None and not job.is_complete):
            return snapshot
        try:
            found = await self._client.get(PERSISTENT_VOLUME_CLAIM, snapshot.object.metadata.namespace, name, Claim)
        except NotFound:
            return snapshot
        return msgspec.structs.replace(snapshot, source=found)

    async def _prepared(self, snapshot: Snapshot, wanted: Target) -> Snapshot:
        """Add what the planner needs to know about the prepare Job."""
        job = snapshot.job
        if job is None or job.revision != wanted.hash or job.metadata.is_deleting:
            return snapshot
        if job.is_over:
            snapshot = await self._with_pods(snapshot, wanted)
            known = snapshot.object.status.failure
            mishap = None if job.is_complete else failure.of_preparation(snapshot, job)
            is_news = mishap is not None and not failure.is_known(known, mishap.failure)
            return await self._with_log(snapshot, mishap) if mishap is not None and is_news else snapshot
        pods = snapshot.preparing(wanted.hash)
        if not pods and _has_waited(snapshot, job):
            return msgspec.structs.replace(snapshot, complaint=await self._evidence.complaint(job))
        loading = next((pod for pod in pods if pod.is_downloading), None)
        if loading is not None and download_progress.is_due(snapshot, loading, wanted.hash):
            return msgspec.structs.replace(snapshot, download=await self._progress(snapshot, loading))
        return await self._with_obstacle(snapshot, pods)

    async def _served(self, snapshot: Snapshot, wanted: Target, entry: Entry) -> Snapshot:
        """Add what the planner needs to know about servers that are not ready."""
        if target_revision.aim(snapshot, wanted) is not entry:
            return snapshot
        if preflight.is_due(snapshot, entry):
            return msgspec.structs.replace(snapshot, refusal=await preflight.refusal(self._client, snapshot, entry))
        snapshot = await self._with_obstacle(snapshot, snapshot.serving_pods(entry.hash))
        if _is_told(snapshot, wanted, failure.of_servers(snapshot, entry)):
            return snapshot
        # Read live data: this failure may roll a revision back, and caches may be stale.
        snapshot = await self._with_servers(snapshot, wanted)
        mishap = failure.of_servers(snapshot, entry)
        return snapshot if mishap is None else await self._with_log(snapshot, mishap)

    async def _with_servers(self, snapshot: Snapshot, wanted: Target) -> Snapshot:
        model, name = snapshot.object, snapshot.serving.names.deployment
        deployment = await self._find(DEPLOYMENT, model, name, Deployment)
        if deployment is None or deployment.revision != wanted.hash:
            raise Stale(f"cached Deployment of {model.metadata.key} is stale")
        return await self._with_pods(msgspec.structs.replace(snapshot, deployment=deployment), wanted)

    async def _with_pods(self, snapshot: Snapshot, wanted: Target) -> Snapshot:
        """Add the pods from the API server: they hold the result, and caches may lag. Deleted pods stay as evidence."""
        found = await self._list(POD, snapshot.object, _List[Pod], f",{Label.REVISION}={wanted.hash}")
        return msgspec.structs.replace(snapshot, pods=_newest((*snapshot.pods, *found.items)))

    async def _with_log(self, snapshot: Snapshot, mishap: Mishap) -> Snapshot:
        crash = mishap.crash
        if crash is None:
            return snapshot
        log = await self._evidence.log(crash.pod.metadata.key, crash.container, before=crash.is_running)
        return msgspec.structs.replace(snapshot, log=log)

    async def _with_obstacle(self, snapshot: Snapshot, pods: tuple[Pod, ...]) -> Snapshot:
        stuck = pod_pending.stuck(pods, snapshot.now)
        told = None if stuck is None else await self._evidence.newest(stuck)
        if stuck is None or told is None:
            return snapshot
        return msgspec.structs.replace(snapshot, obstacle=Obstacle(stuck.metadata.name, told.reason, told.note))

    async def _progress(self, snapshot: Snapshot, pod: Pod) -> Download | None:
        line = await self._evidence.log(pod.metadata.key, FETCH, lines=1)
        return None if line is None else download_progress.download(line, snapshot.now)

    async def _list(self, resource: Resource, model: Model, type_: type[_List[T]], more: str = "") -> _List[T]:
        query = {"labelSelector": f"{Label.MODEL_UID}={model.metadata.uid}{more}"}
        return decoded(await self._client.list_page(resource, model.metadata.namespace, query), type_)


def _is_decisive(snapshot: Snapshot, wanted: Target | None) -> bool:
    """Return whether a plan from stale data could do harm."""
    if wanted is None:
        return True
    if wanted.entry is None:
        job, needs_volume = snapshot.job, snapshot.serving.storage is not None
        if job is None or job.is_over or (needs_volume and snapshot.claim is None):
            return True
        return job.revision != wanted.hash and not job.metadata.is_deleting
    aim, deployment = target_revision.aim(snapshot, wanted), snapshot.deployment
    return aim is not None and (deployment is None or deployment.revision != aim.hash)


def _is_told(snapshot: Snapshot, wanted: Target, mishap: Mishap | None) -> bool:
    """Return whether the failure of the servers is already recorded, or there is none."""
    known = target_revision.verdict(snapshot, wanted)
    if mishap is None:
        return True
    return known is not None and (known.reason, known.exit_code) == (mishap.failure.reason, mishap.failure.exit_code)


def _has_waited(snapshot: Snapshot, job: Job) -> bool:
    made = job.metadata.creation_timestamp
    return made is not None and snapshot.now - datetime.fromisoformat(made) >= _PATIENCE


def _known(stored: Iterable[ControllerRevision]) -> dict[str, Any]:
    """Return the history in the order of its numbers, and the revisions that cannot be read."""
    read = [(each, revisions.entry(each)) for each in stored]
    entries = [entry for _, entry in read if entry is not None]
    return {
        "history": tuple(sorted(entries, key=lambda entry: (entry.number, entry.hash))),
        "strays": tuple(each for each, entry in read if entry is None),
    }


def _newest(objects: tuple[T, ...]) -> tuple[T, ...]:
    """Return each object once, in its newest version: a list may be older than the cache."""
    return tuple({each.metadata.uid: each for each in sorted(objects, key=version)}.values())


def _owned(objects: tuple[T, ...], model: Model) -> tuple[T, ...]:
    return tuple(each for each in objects if each.metadata.is_controlled_by(model.metadata))


def _named(objects: list[T], name: str) -> T | None:
    return next((each for each in objects if each.metadata.name == name), None)
