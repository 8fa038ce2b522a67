"""Snapshot of one TrainingJob: the input of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from skysail.claims.types import CloudInstance
from skysail.cloud.checkpoint_volumes import VolumeDeletion
from skysail.core.pod_pending import PodEvent
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.progress_endpoint import TrainingConfig
from skysail.kinds.training.objects import Job, Pod
from skysail.kinds.training.scheduling.gang_scheduler import GangState
from skysail.kube.api.objects import Object


class AttemptState(msgspec.Struct, frozen=True):
    """Jobs and pods of one attempt."""

    number: int
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()

    def job(self, name: str) -> Job | None:
        return next((job for job in self.jobs if job.metadata.name == name), None)


class NameHolder(msgspec.Struct, frozen=True):
    """Job of a deleted TrainingJob of the same name, and its unfinished pods."""

    job: str
    pods: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the plan of a TrainingJob. Jobs, pods and Services are those of all attempts.

    `missing_jobs`: Jobs of the current attempt that the API server does not have. `log`: last lines of the pod that
    failed
    the attempt. `create_failure`: event of the Job controller that cannot create pods. `pod_event`: event of a pod that
    does
    not start on its node. Each is None if unknown. `name_held_by`: leftovers of a deleted job of the same name.
    `preflight_error`:
    preflight error of a spec that no attempt has used yet. `gang`: objects of the gang scheduler. `config`: settings
    for
    all TrainingJobs. `progress_flushed`: all reports of finished pods are written. `has_lost_checkpoint`: the newest
    checkpoint was deleted with its PVC. The last two are read only if the next step depends on them. `claims`: claims
    of the current attempt's pods at clouds. `checkpoint_pvc`: the PVC for checkpoints, read only before the first
    attempt and if its retention changes. `volume_deletions`: deletions of the job's volumes at clouds, by cloud; one in
    progress has no result. `started_at`: when this process started.
    """

    object: TrainingJob
    now: datetime
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    services: tuple[Object, ...] = ()
    missing_jobs: frozenset[str] = frozenset()
    log: str | None = None
    create_failure: str | None = None
    pod_event: PodEvent | None = None
    name_held_by: NameHolder | None = None
    preflight_error: str | None = None
    gang: GangState = GangState()
    config: TrainingConfig = TrainingConfig()
    progress_flushed: bool = True
    claims: tuple[CloudInstance, ...] = ()
    has_lost_checkpoint: bool = False
    checkpoint_pvc: Object | None = None
    volume_deletions: Mapping[str, VolumeDeletion | None] = msgspec.field(default_factory=dict)
    started_at: datetime = datetime.min.replace(tzinfo=UTC)

    def run(self, number: int) -> AttemptState:
        return AttemptState(
            number,
            tuple(job for job in self.jobs if job.attempt == number),
            tuple(pod for pod in self.pods if pod.attempt == number),
        )
