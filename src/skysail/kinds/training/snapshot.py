"""What is known of one TrainingJob at one moment."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.core.pod_pending import Obstacle
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.progress_endpoint import Terms
from skysail.kinds.training.objects import Job, Pod
from skysail.kinds.training.scheduling.gang_scheduler import Known
from skysail.kube.api.objects import Object


class Run(msgspec.Struct, frozen=True):
    """What there is of one attempt."""

    number: int
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()

    def job(self, name: str) -> Job | None:
        return next((job for job in self.jobs if job.metadata.name == name), None)


class Predecessor(msgspec.Struct, frozen=True):
    """A Job of a TrainingJob that had this name and was deleted, and its pods that have not ended."""

    job: str
    pods: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that the plan of a TrainingJob is made from: Jobs, pods and Services are those of all attempts.

    `vanished` names Jobs of the attempt under way that the API server itself does not have. `log` are the last lines
    of the pod that made the attempt fail, `complaint` is what keeps the Job controller from making pods, as it told in
    an event, `obstacle` what keeps a pod from starting on its node; None where nobody knows. `before` is what is left
    of another that had this name. `refusal` is what the API server has against the pods of a spec that no attempt was
    made from yet. `gang` is what the gang scheduler has of the job. `terms` hold for every TrainingJob. `is_settled`:
    nothing is left to write of what ended pods have told; `has_lost_checkpoint`: the newest one has gone with its
    claim. Both are asked only where the next step would build on it.
    """

    object: TrainingJob
    now: datetime
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    services: tuple[Object, ...] = ()
    vanished: frozenset[str] = frozenset()
    log: str | None = None
    complaint: str | None = None
    obstacle: Obstacle | None = None
    before: Predecessor | None = None
    refusal: str | None = None
    gang: Known = Known()
    terms: Terms = Terms()
    is_settled: bool = True
    has_lost_checkpoint: bool = False

    def run(self, number: int) -> Run:
        return Run(
            number,
            tuple(job for job in self.jobs if job.attempt == number),
            tuple(pod for pod in self.pods if pod.attempt == number),
        )
