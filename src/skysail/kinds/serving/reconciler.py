"""Reconciler of models: builds the snapshot from caches and, before risky decisions, from the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from skysail.base.names import Label
from skysail.core import pod_pending
from skysail.core.actions import Event, Plan
from skysail.core.errors import Stale
from skysail.core.live_reads import check_current, find_child, list_labelled, newest_versions
from skysail.core.pod_pending import PodEvent
from skysail.kinds.serving import preflight, takeover
from skysail.kinds.serving.admission.validation import validate
from skysail.kinds.serving.api.types import KINDS, Download, Model
from skysail.kinds.serving.caches import Caches
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.objects import Deployment, Job, PersistentVolumeClaim, Pod
from skysail.kinds.serving.plan import download_progress, failure, planner, target_revision
from skysail.kinds.serving.plan.failure import RevisionFailure
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri, revisions
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import desired_model
from skysail.kinds.serving.spec.revisions import ControllerRevision, Revision
from skysail.kube import diagnostics
from skysail.kube.api.crd import CustomKind
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
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
from skysail.kube.client.client import Client
from skysail.kube.diagnostics import PodDiagnostics

POLICY_RULES = (
    *(
        right
        for kind in KINDS
        for right in (
            read_rule(kind.resource),
            # Removes the finalizers of the previous operator.
            PolicyRule(kind.resource, ("patch",)),
            PolicyRule(kind.resource, ("update",), subresource="status"),
            # Some clusters require this to set blockOwnerDeletion in an owner reference.
            PolicyRule(kind.resource, ("update",), subresource="finalizers"),
        )
    ),
    *(
        right
        for resource in (JOB, SERVICE, HORIZONTAL_POD_AUTOSCALER, CONTROLLER_REVISION)
        for right in (read_rule(resource), PolicyRule(resource, ("create", "delete", "patch")))
    ),
    *(
        right
        for resource in (DEPLOYMENT, PERSISTENT_VOLUME_CLAIM)
        for right in (read_rule(resource), PolicyRule(resource, ("create", "patch")))
    ),
    *takeover.POLICY_RULES,
    read_rule(POD),
    *diagnostics.POLICY_RULES,
)

# The Job controller creates pods at once; a pod missing for this long has a cause to look up.
_GRACE = timedelta(seconds=10)

T = TypeVar("T", bound=Object)


class ModelReconciler:
    """Reconciler of one of the kinds."""

    def __init__(
        self, kind: CustomKind, client: Client, caches: Caches, now: Callable[[], datetime], config: ServingConfig
    ) -> None:
        self.kind = kind
        self._client = client
        self._diagnostics = PodDiagnostics(client)
        self._caches = caches
        self._now = now
        self._config = config

    @property
    def resource(self) -> Resource:
        return self.kind.resource

    async def observe(self, key: Key) -> Snapshot | None:
        model: Model | None = self._caches.models[self.kind].get(key)
        if model is None:
            return None
        snapshot = self._from_cache(model)
        if model.metadata.is_deleting or validate(model, self._config):
            return snapshot
        target = target_revision.target(snapshot)
        if _needs_live_state(snapshot, target):
            snapshot = await self._with_live_state(snapshot)
            target = target_revision.target(snapshot)
        if target is None:
            return snapshot
        if target.entry is not None or snapshot.job is None or snapshot.job.is_complete:
            previous = await takeover.find_legacy_deployment(self._client, snapshot)
            snapshot = msgspec.structs.replace(snapshot, predecessor=previous)
        if target.entry is None:
            return await self._prepared(await self._with_source(snapshot, target), target)
        return await self._served(snapshot, target, target.entry)

    def plan(self, snapshot: Snapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return planner.refused(snapshot, event)

    def _from_cache(self, model: Model) -> Snapshot:
        identity, caches = model.metadata.identity, self._caches
        desired = desired_model(model, self._config)
        names = desired.names
        return Snapshot(
            object=model,
            serving=desired,
            config=self._config,
            now=self._now(),
            job=_named(caches.jobs.by("owner", identity), names.job),
            pods=tuple(caches.pods.by("model", identity)),
            deployment=_named(caches.deployments.by("owner", identity), names.deployment),
            services=tuple(caches.services.by("owner", identity)),
            autoscaler=_named(caches.autoscalers.by("owner", identity), names.autoscaler),
            claim=_named(caches.claims.by("owner", identity), names.claim),
            **_known(caches.revisions.by("owner", identity)),
        )

    async def _with_live_state(self, snapshot: Snapshot) -> Snapshot:
        """Read model, history and PVC from the API server before a revision is prepared or servers change.

        A stale cache would restore an old revision or download one twice.
        """
        model = snapshot.object
        await check_current(self._client, self.resource, model)
        listed = await list_labelled(self._client, CONTROLLER_REVISION, model, Label.MODEL_UID, ControllerRevision)
        owned = (each for each in listed if each.metadata.is_controlled_by(model.metadata))
        known = newest_versions((*self._caches.revisions.by("owner", model.metadata.identity), *owned))
        names = snapshot.serving.names
        pvc = snapshot.claim or (await self._find(PERSISTENT_VOLUME_CLAIM, model, names.claim, PersistentVolumeClaim))
        snapshot = msgspec.structs.replace(snapshot, claim=pvc, **_known(known))
        target = target_revision.target(snapshot)
        if target is None or target.entry is not None:
            return snapshot
        # A get is never stale, while a list may be.
        controller_revision = await self._find(
            CONTROLLER_REVISION, model, names.revision(target.hash), ControllerRevision
        )
        job = snapshot.job or await self._find(JOB, model, names.job, Job)
        controller_revisions = known if controller_revision is None else newest_versions((*known, controller_revision))
        return msgspec.structs.replace(snapshot, job=job, **_known(controller_revisions))

    async def _find(self, resource: Resource, model: Model, name: str, type_: type[T]) -> T | None:
        """Return an object that the model owns, or None if it does not exist or the kind has no such child."""
        return await find_child(self._client, resource, model, name, type_) if name else None

    async def _with_source(self, snapshot: Snapshot, target: Target) -> Snapshot:
        """Add the user's PVC that the model is copied from, if a pod that mounts it is about to be created."""
        name, job = model_uri.pvc_name(target.want.uri), snapshot.job
        if not name or (job is not None and not job.is_complete):
            return snapshot
        namespace = snapshot.object.metadata.namespace
        pvc = await self._client.find(PERSISTENT_VOLUME_CLAIM, namespace, name, PersistentVolumeClaim)
        return msgspec.structs.replace(snapshot, source=pvc)

    async def _prepared(self, snapshot: Snapshot, target: Target) -> Snapshot:
        """Add what the planner needs to know about the prepare Job."""
        job = snapshot.job
        if job is None or job.revision != target.hash or job.metadata.is_deleting:
            return snapshot
        if job.is_over:
            snapshot = await self._with_pods(snapshot, target)
            previous = snapshot.object.status.failure
            failed = None if job.is_complete else failure.prepare_failure(snapshot, job)
            is_news = failed is not None and not failure.is_recorded(previous, failed.failure)
            return await self._with_log(snapshot, failed) if failed is not None and is_news else snapshot
        pods = snapshot.preparing(target.hash)
        if not pods and _has_waited(snapshot, job):
            return msgspec.structs.replace(snapshot, create_failure=await self._diagnostics.last_create_failure(job))
        loading = next((pod for pod in pods if pod.is_downloading), None)
        if loading is not None and download_progress.is_due(snapshot, loading, target.hash):
            return msgspec.structs.replace(snapshot, download=await self._progress(snapshot, loading))
        return await self._with_pod_event(snapshot, pods)

    async def _served(self, snapshot: Snapshot, target: Target, revision: Revision) -> Snapshot:
        """Add what the planner needs to know about servers that are not ready."""
        if target_revision.rollout_revision(snapshot, target) is not revision:
            return snapshot
        if preflight.is_needed(snapshot, revision):
            return msgspec.structs.replace(
                snapshot, preflight_error=await preflight.check(self._client, snapshot, revision)
            )
        snapshot = await self._with_pod_event(snapshot, snapshot.serving_pods(revision.hash))
        if _is_already_reported(snapshot, target, failure.rollout_failure(snapshot, revision)):
            return snapshot
        # Read live data: this failure may roll a revision back, and caches may be stale.
        snapshot = await self._with_live_deployment(snapshot, target)
        failed = failure.rollout_failure(snapshot, revision)
        return snapshot if failed is None else await self._with_log(snapshot, failed)

    async def _with_live_deployment(self, snapshot: Snapshot, target: Target) -> Snapshot:
        model, name = snapshot.object, snapshot.serving.names.deployment
        deployment = await self._find(DEPLOYMENT, model, name, Deployment)
        if deployment is None or deployment.revision != target.hash:
            raise Stale(f"cached Deployment of {model.metadata.key} is stale")
        return await self._with_pods(msgspec.structs.replace(snapshot, deployment=deployment), target)

    async def _with_pods(self, snapshot: Snapshot, target: Target) -> Snapshot:
        """Add the pods from the API server: they hold the result, and caches may lag. Deleted pods stay as evidence."""
        more = f",{Label.REVISION}={target.hash}"
        pods = await list_labelled(self._client, POD, snapshot.object, Label.MODEL_UID, Pod, more=more)
        return msgspec.structs.replace(snapshot, pods=newest_versions((*snapshot.pods, *pods)))

    async def _with_log(self, snapshot: Snapshot, failed: RevisionFailure) -> Snapshot:
        container_crash = failed.crash
        if container_crash is None:
            return snapshot
        log = await self._diagnostics.log_tail(
            container_crash.pod.metadata.key, container_crash.container, previous=container_crash.is_running
        )
        return msgspec.structs.replace(snapshot, log=log)

    async def _with_pod_event(self, snapshot: Snapshot, pods: tuple[Pod, ...]) -> Snapshot:
        stuck = pod_pending.first_stuck_pod(pods, snapshot.now)
        event = None if stuck is None else await self._diagnostics.latest_event(stuck)
        if stuck is None or event is None:
            return snapshot
        return msgspec.structs.replace(snapshot, pod_event=PodEvent(stuck.metadata.name, event.reason, event.note))

    async def _progress(self, snapshot: Snapshot, pod: Pod) -> Download | None:
        line = await self._diagnostics.log_tail(pod.metadata.key, FETCH, lines=1)
        return None if line is None else download_progress.parse(line, snapshot.now)


def _needs_live_state(snapshot: Snapshot, target: Target | None) -> bool:
    """Return whether a plan from stale data could do harm."""
    if target is None:
        return True
    if target.entry is None:
        job, needs_volume = snapshot.job, snapshot.serving.storage is not None
        if job is None or job.is_over or (needs_volume and snapshot.claim is None):
            return True
        return job.revision != target.hash and not job.metadata.is_deleting
    rollout, deployment = target_revision.rollout_revision(snapshot, target), snapshot.deployment
    return rollout is not None and (deployment is None or deployment.revision != rollout.hash)


def _is_already_reported(snapshot: Snapshot, target: Target, failed: RevisionFailure | None) -> bool:
    """Return whether the failure of the servers is already recorded, or there is none."""
    previous = target_revision.recorded_failure(snapshot, target)
    if failed is None:
        return True
    return previous is not None and (previous.reason, previous.exit_code) == (
        failed.failure.reason,
        failed.failure.exit_code,
    )


def _has_waited(snapshot: Snapshot, job: Job) -> bool:
    made = job.metadata.creation_timestamp
    return made is not None and snapshot.now - datetime.fromisoformat(made) >= _GRACE


def _known(stored: Iterable[ControllerRevision]) -> dict[str, Any]:
    """Return the history in the order of its numbers, and the revisions that cannot be read."""
    read = [(controller_revision, revisions.from_object(controller_revision)) for controller_revision in stored]
    entries = [revision for _, revision in read if revision is not None]
    return {
        "history": tuple(sorted(entries, key=lambda revision: (revision.number, revision.hash))),
        "unlisted_revisions": tuple(controller_revision for controller_revision, revision in read if revision is None),
    }


def _named(objects: list[T], name: str) -> T | None:
    return next((each for each in objects if each.metadata.name == name), None)
