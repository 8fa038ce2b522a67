"""Reconcilers of ModalJobs and TrainJobs, which the training engine runs as TrainingJobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Generic, TypeVar

from skysail.claims.types import CloudInstance
from skysail.cloud.gang_limits import GangLimits
from skysail.core.actions import Event, Plan
from skysail.kinds.training.api.modal_job import MODAL_JOB, ModalJob
from skysail.kinds.training.api.train_job import TRAIN_JOB, TrainJob
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.caches import Caches
from skysail.kinds.training.children import modal_job as modal_job_child
from skysail.kinds.training.children import train_job as train_job_child
from skysail.kinds.training.objects import INDEX_LABEL
from skysail.kinds.training.plan import modal_job, train_job
from skysail.kinds.training.translated_snapshot import TranslatedSnapshot
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import Resource
from skysail.kube.cache.cache import Cache

T = TypeVar("T", ModalJob, TrainJob)

POLICY_RULES = (
    PolicyRule(TRAINING_JOB.resource, ("create",)),
    *(
        rule
        for kind in (MODAL_JOB, TRAIN_JOB)
        for rule in (
            read_rule(kind.resource),
            # Removes finalizers of a replaced operator.
            PolicyRule(kind.resource, ("patch",)),
            PolicyRule(kind.resource, ("update",), subresource="status"),
            # OwnerReferencesPermissionEnforcement requires this right to set blockOwnerDeletion.
            PolicyRule(kind.resource, ("update",), subresource="finalizers"),
        )
    ),
)


class _Translated(Generic[T]):
    """Common part: reads the object, its TrainingJob, and the claims of its pods.

    `claims`: claims by UID of a pod. `gang_limits`: limits of the cloud on gangs.
    """

    def __init__(
        self, cache: Cache[T], caches: Caches, now: Callable[[], datetime], child_name: Callable[[str], str]
    ) -> None:
        self._cache: Cache[T] = cache
        self._caches = caches
        self._now = now
        self._child_name = child_name
        self.claims: Callable[[str], Iterable[CloudInstance]] = lambda _: ()
        self.script = ""
        self.gang_limits: GangLimits | None = None

    async def observe(self, key: Key) -> TranslatedSnapshot[T] | None:
        found = self._cache.get(key)
        if found is None:
            return None
        training = self._caches.training.get(Key(key.namespace, self._child_name(key.name)))
        owner = training.metadata.controller if training is not None else None
        if training is None or owner is None or owner.uid != found.metadata.uid:
            return TranslatedSnapshot(object=found, now=self._now(), script=self.script, gang_limits=self.gang_limits)
        return self._with_pods(found, training)

    def _with_pods(self, found: T, training: TrainingJob) -> TranslatedSnapshot[T]:
        pods = sorted(
            self._caches.pods.by("training", training.metadata.identity),
            key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name),
        )
        claims = {claim.metadata.name: claim for pod in pods for claim in self.claims(pod.metadata.uid)}
        return TranslatedSnapshot(
            object=found,
            now=self._now(),
            training=training,
            claims=tuple(claims.values()),
            pod_annotations=_newest_annotations(pods),
            script=self.script,
            gang_limits=self.gang_limits,
        )


class ModalJobReconciler(_Translated[ModalJob]):
    """Reconciler of ModalJobs."""

    resource: Resource = MODAL_JOB.resource

    def __init__(self, cache: Cache[ModalJob], caches: Caches, now: Callable[[], datetime]) -> None:
        super().__init__(cache, caches, now, modal_job_child.child_name)

    def plan(self, snapshot: TranslatedSnapshot[ModalJob]) -> Plan:
        return modal_job.plan(snapshot)

    def on_rejected(self, snapshot: TranslatedSnapshot[ModalJob], event: Event) -> Plan:
        return modal_job.refused(snapshot, event)


class TrainJobReconciler(_Translated[TrainJob]):
    """Reconciler of TrainJobs in a cluster without Kubeflow Trainer."""

    resource: Resource = TRAIN_JOB.resource

    def __init__(self, cache: Cache[TrainJob], caches: Caches, now: Callable[[], datetime]) -> None:
        super().__init__(cache, caches, now, train_job_child.child_name)

    def plan(self, snapshot: TranslatedSnapshot[TrainJob]) -> Plan:
        return train_job.plan(snapshot)

    def on_rejected(self, snapshot: TranslatedSnapshot[TrainJob], event: Event) -> Plan:
        return train_job.refused(snapshot, event)


def _newest_annotations(pods: Sequence[Object]) -> dict[str, str]:
    """Return the annotations of the newest pod of the first rank. `pods` are sorted by age."""
    first = [pod for pod in pods if (pod.metadata.labels or {}).get(INDEX_LABEL, "0") == "0"]
    return (first[-1].metadata.annotations or {}) if first else {}
