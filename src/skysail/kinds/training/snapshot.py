"""Snapshot of one TrainingJob: the input of its plan."""

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
    """Jobs and pods of one attempt."""

    number: int
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()

    def job(self, name: str) -> Job | None:
        return next((job for job in self.jobs if job.metadata.name == name), None)


class Predecessor(msgspec.Struct, frozen=True):
    """Job of a deleted TrainingJob of the same name, and its unfinished pods."""

    job: str
    pods: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the plan of a TrainingJob. Jobs, pods and Services are those of all attempts.

    `vanished`: Jobs of the current attempt that the API server does not have. `log`: last lines of the pod that failed
    the attempt. `complaint`: event of the Job controller that cannot create pods. `obstacle`: event of a pod that does
    not start on its node. Each is None if unknown. `before`: leftovers of a deleted job of the same name. `refusal`:
    preflight error of a spec that no attempt has used yet. `gang`: objects of the gang scheduler. `terms`: settings for
    all TrainingJobs. `is_settled`: all reports of finished pods are written. `has_lost_checkpoint`: the newest
    checkpoint was deleted with its PVC. The last two are read only if the next step depends on them.
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
