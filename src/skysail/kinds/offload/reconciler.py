"""Reconcilers of pods without a node, of pods at Modal, and of Jobs whose pods run at RunPod."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from skysail.claims.requirements.types import RUNPOD
from skysail.claims.types import CloudInstance
from skysail.core.actions import Event, Plan
from skysail.core.controller import Controller
from skysail.kinds.offload import owners
from skysail.kinds.offload.caches import Caches
from skysail.kinds.offload.config import OffloadConfig
from skysail.kinds.offload.objects import Job, NodeObject, Pod
from skysail.kinds.offload.observer import PlacementObserver
from skysail.kinds.offload.plan import job_annotations, planner, pod_annotations
from skysail.kinds.offload.plan.snapshot import CloudPodSnapshot, JobSnapshot, PodSnapshot
from skysail.kube.api.objects import IndexKey, Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import EVENT, JOB, NAMESPACE, NODE, POD
from skysail.kube.cache.cache import Cache

POLICY_RULES = (
    read_rule(POD),
    PolicyRule(POD, ("patch",)),
    PolicyRule(POD, ("create",), subresource="binding"),
    PolicyRule(POD, ("patch",), subresource="status"),
    read_rule(JOB),
    PolicyRule(JOB, ("patch",)),
    read_rule(NAMESPACE),
    read_rule(NODE),
    PolicyRule(EVENT, ("list",)),
    *owners.POLICY_RULES,
)


class PodReconciler:
    """Reconciler of pods without a node: binds those for a cloud that the scheduler does not bind."""

    resource = POD

    def __init__(
        self, caches: Caches, observer: PlacementObserver, config: OffloadConfig, now: Callable[[], datetime]
    ) -> None:
        self._caches = caches
        self._observer = observer
        self._config = config
        self._now = now
        self._enqueue: Callable[[Key], None] = lambda _: None

    async def observe(self, key: Key) -> PodSnapshot | None:
        pod = self._caches.pods.get(key)
        if pod is None or key.namespace in self._config.excluded_namespaces:
            return None
        facts = await self._observer.observe(pod, "overflow")
        return PodSnapshot(object=pod, facts=facts, now=self._now())

    def plan(self, snapshot: PodSnapshot) -> Plan:
        return planner.plan(snapshot)

    def on_rejected(self, snapshot: PodSnapshot, event: Event) -> Plan:  # noqa: ARG002 (the protocol's)
        return planner.on_rejected(event)

    def connect(self, controller: Controller[PodSnapshot]) -> None:
        """Enqueue pods when a fact changes that their placement depends on."""
        self._enqueue = controller.queue.add
        self._caches.pods.subscribe(controller.enqueue_object)
        self._caches.policies.subscribe(lambda _old, _new: self.enqueue_all())
        self._caches.nodes.subscribe(self._node_changed)
        self._caches.jobs.subscribe(self._job_changed)
        self._caches.namespaces.subscribe(self._namespace_changed)

    def enqueue_all(self) -> None:
        """Enqueue all pods without a node, because policies, offers or nodes have changed."""
        self._enqueue_pods(self._caches.pods.all())

    def _node_changed(self, old: NodeObject | None, new: NodeObject | None) -> None:
        if (old is not None and old.is_ready) != (new is not None and new.is_ready):
            self.enqueue_all()

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None or (old and new and (old.annotations, old.labels) == (new.annotations, new.labels)):
            return
        self._observer.owners.forget(job)
        self._enqueue_pods(self._caches.pods.by("owner", job.metadata.identity))

    def _namespace_changed(self, old: Object | None, new: Object | None) -> None:
        namespace = new or old
        if namespace is None or (old and new and old.metadata.labels == new.metadata.labels):
            return
        self._enqueue_pods(self._caches.pods.by("namespace", IndexKey(namespace.metadata.name, "")))

    def _enqueue_pods(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self._enqueue(pod.metadata.key)


class CloudPodReconciler:
    """Reconciler of the pods on the node of a cloud: annotates deadlines, and at Modal ids of sandboxes."""

    resource = POD

    def __init__(self, pods: Cache[Any], claims: Cache[CloudInstance], *, is_at_modal: bool) -> None:
        self._pods = pods
        self._claims = claims
        self._is_at_modal = is_at_modal

    async def observe(self, key: Key) -> CloudPodSnapshot | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        claims = tuple(self._claims.by("owner", pod.metadata.identity))
        return CloudPodSnapshot(object=pod, claims=claims, is_at_modal=self._is_at_modal)

    def plan(self, snapshot: CloudPodSnapshot) -> Plan:
        return pod_annotations.plan(snapshot)

    def on_rejected(self, snapshot: CloudPodSnapshot, event: Event) -> Plan:  # noqa: ARG002 (the protocol's)
        return planner.on_rejected(event)

    def connect(self, controller: Controller[CloudPodSnapshot]) -> None:
        """Enqueue the pod of a claim that gets another instance."""

        def claim_changed(old: CloudInstance | None, new: CloudInstance | None) -> None:
            if new is None or (old is not None and old.status.instance_id == new.status.instance_id):
                return
            controller.queue.add(Key(new.spec.owner.namespace, new.spec.owner.name))

        self._claims.subscribe(claim_changed)


class JobReconciler:
    """Reconciler of Jobs with pods at RunPod: writes ids and prices of their instances as annotations."""

    resource = JOB

    def __init__(self, jobs: Cache[Job], claims: Cache[CloudInstance]) -> None:
        self._jobs = jobs
        self._claims = claims

    async def observe(self, key: Key) -> JobSnapshot | None:
        job = self._jobs.get(key)
        if job is None or job.metadata.is_deleting:
            return None
        claims = self._claims.by("job", job.metadata.identity)
        return JobSnapshot(object=job, claims=tuple(claim for claim in claims if claim.spec.provider == RUNPOD))

    def plan(self, snapshot: JobSnapshot) -> Plan:
        return job_annotations.plan(snapshot)

    def on_rejected(self, snapshot: JobSnapshot, event: Event) -> Plan:  # noqa: ARG002 (the protocol's)
        return planner.on_rejected(event)

    def connect(self, controller: Controller[JobSnapshot]) -> None:
        """Enqueue the Job of a changed claim, and a Job that appears after its claims."""

        def claim_changed(old: CloudInstance | None, new: CloudInstance | None) -> None:
            claim = new or old
            if claim is None or claim.spec.provider != RUNPOD or not claim.spec.owner.job_uid:
                return
            for job in self._jobs.by("uid", IndexKey(claim.spec.owner.namespace, claim.spec.owner.job_uid)):
                controller.queue.add(job.metadata.key)

        def job_changed(_: Job | None, new: Job | None) -> None:
            if new is not None and self._claims.by("job", new.metadata.identity):
                controller.queue.add(new.metadata.key)

        self._claims.subscribe(claim_changed)
        self._jobs.subscribe(job_changed)
