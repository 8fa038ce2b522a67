"""Snapshot of one model."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.core.pod_pending import Obstacle
from skysail.kinds.serving.api.types import Download, Model
from skysail.kinds.serving.objects import Claim, Deployment, Job, Pod
from skysail.kinds.serving.spec.config import Terms
from skysail.kinds.serving.spec.desired import Serving
from skysail.kinds.serving.spec.revisions import ControllerRevision, Entry
from skysail.kube.api.objects import Object


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a model's plan.

    - `job`: Job that prepares a revision.
    - `history`: prepared revisions in the order of their numbers; `strays`: revisions that cannot be read.
    - `source`: PVC that the target revision is copied from.
    - `predecessor`: Deployment of the previous operator.
    - `log`: last lines of the failed container.
    - `complaint`: why the Job controller creates no pod.
    - `obstacle`: why a pod does not start on its node.
    - `download`: progress of the download; None if unknown.
    - `refusal`: why the API server rejects the servers that are about to be created.
    """

    object: Model
    serving: Serving
    terms: Terms
    now: datetime
    job: Job | None = None
    pods: tuple[Pod, ...] = ()
    deployment: Deployment | None = None
    services: tuple[Object, ...] = ()
    autoscaler: Object | None = None
    claim: Claim | None = None
    source: Claim | None = None
    history: tuple[Entry, ...] = ()
    strays: tuple[ControllerRevision, ...] = ()
    predecessor: Object | None = None
    log: str | None = None
    complaint: str | None = None
    obstacle: Obstacle | None = None
    download: Download | None = None
    refusal: str | None = None

    def preparing(self, revision: str) -> tuple[Pod, ...]:
        """Return the pods that prepare this revision."""
        return tuple(pod for pod in self.pods if pod.prepares and pod.revision == revision)

    def serving_pods(self, revision: str) -> tuple[Pod, ...]:
        """Return the pods that serve this revision, ready or not."""
        return tuple(pod for pod in self.pods if pod.serves and pod.revision == revision)
