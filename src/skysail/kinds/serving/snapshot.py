"""What is known of one model at one moment."""

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
    """All that the plan of a model is made from.

    `job` makes a revision ready, `history` are the revisions that were found good, in the order of their numbers, and
    `strays` those that nobody here can read. `source` is the claim that the wanted revision is copied from.
    `predecessor` is the Deployment by which an operator before us served the model. `log` are the last lines of the
    container that failed, `complaint` is what keeps the Job controller from making a pod, `obstacle` what keeps a pod
    from starting on its node, `download` how far it is; None where nobody knows. `refusal` is what the API server has
    against servers that are about to be made.
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
        """The pods that make this revision ready."""
        return tuple(pod for pod in self.pods if pod.prepares and pod.revision == revision)

    def serving_pods(self, revision: str) -> tuple[Pod, ...]:
        """The pods that are there to answer for this revision."""
        return tuple(pod for pod in self.pods if pod.serves and pod.revision == revision)
