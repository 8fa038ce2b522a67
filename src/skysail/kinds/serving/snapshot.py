"""Snapshot of one model."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.core.pod_pending import PodEvent
from skysail.kinds.serving.api.types import Download, Model
from skysail.kinds.serving.objects import Deployment, Job, PersistentVolumeClaim, Pod
from skysail.kinds.serving.spec.config import ServingConfig
from skysail.kinds.serving.spec.desired import DesiredModel
from skysail.kinds.serving.spec.revisions import ControllerRevision, Revision
from skysail.kube.api.objects import Object


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a model's plan.

    - `job`: Job that prepares a revision.
    - `history`: prepared revisions in the order of their numbers; `unlisted_revisions`: revisions that cannot be read.
    - `source`: PVC that the target revision is copied from.
    - `predecessor`: Deployment of the previous operator.
    - `log`: last lines of the failed container.
    - `create_failure`: why the Job controller creates no pod.
    - `pod_event`: why a pod does not start on its node.
    - `download`: progress of the download; None if unknown.
    - `preflight_error`: why the API server rejects the servers that are about to be created.
    """

    object: Model
    serving: DesiredModel
    config: ServingConfig
    now: datetime
    job: Job | None = None
    pods: tuple[Pod, ...] = ()
    deployment: Deployment | None = None
    services: tuple[Object, ...] = ()
    autoscaler: Object | None = None
    claim: PersistentVolumeClaim | None = None
    source: PersistentVolumeClaim | None = None
    history: tuple[Revision, ...] = ()
    unlisted_revisions: tuple[ControllerRevision, ...] = ()
    predecessor: Object | None = None
    log: str | None = None
    create_failure: str | None = None
    pod_event: PodEvent | None = None
    download: Download | None = None
    preflight_error: str | None = None

    @property
    def has_cloud_revision(self) -> bool:
        """Return whether servers of a revision of the history may be at a cloud."""
        return any(revision.want.offload for revision in self.history)

    def preparing(self, revision: str) -> tuple[Pod, ...]:
        """Return the pods that prepare this revision."""
        return tuple(pod for pod in self.pods if pod.prepares and pod.revision == revision)

    def serving_pods(self, revision: str) -> tuple[Pod, ...]:
        """Return the pods that serve this revision, ready or not."""
        return tuple(pod for pod in self.pods if pod.serves and pod.revision == revision)
