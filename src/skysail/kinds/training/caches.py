"""Caches of TrainingJobs and their children."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.names import Label
from skysail.core.controller import Controller
from skysail.kinds.training import scheduling
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.objects import Job, Pod
from skysail.kinds.training.snapshot import Snapshot
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import JOB, POD, SERVICE
from skysail.kube.cache.cache import Cache, index_by_label, index_by_owner, index_by_uid
from skysail.kube.cache.discovery import Discovery

_LABEL_SELECTOR = {"labelSelector": Label.TRAINING_JOB_UID}
# Pods are owned by Jobs: a label leads to their TrainingJob.
training_jobs = index_by_label(Label.TRAINING_JOB_UID)


class Caches(msgspec.Struct, frozen=True):
    """Caches of TrainingJobs and their children. Other objects of the cluster are not cached."""

    training: Cache[TrainingJob]
    jobs: Cache[Job]
    pods: Cache[Pod]
    services: Cache[Object]
    # Kinds of gang schedulers, in the order of the registry. The cluster may not serve them.
    gangs: tuple[Cache[Any], ...] = ()

    @classmethod
    def create(cls) -> Caches:
        return cls(
            training=Cache(TRAINING_JOB.resource, TrainingJob, {"uid": index_by_uid}),
            jobs=Cache(JOB, Job, {"owner": index_by_owner}, _LABEL_SELECTOR),
            pods=Cache(POD, Pod, {"training": training_jobs}, _LABEL_SELECTOR),
            services=Cache(SERVICE, Object, {"owner": index_by_owner}, _LABEL_SELECTOR),
            gangs=tuple(
                Cache(scheduler.resource, scheduler.type, {"owner": index_by_owner}, _LABEL_SELECTOR)
                for scheduler in scheduling.SCHEDULERS.values()
            ),
        )

    @property
    def children(self) -> tuple[Cache[Job], Cache[Pod], Cache[Object]]:
        return self.jobs, self.pods, self.services

    def connect(self, controller: Controller[Snapshot], discovery: Discovery) -> None:
        """Enqueue a TrainingJob when one of its children changes.

        Pods are owned by a Job, so their label names the TrainingJob.
        """
        controller.watch_owned(self.jobs, self.training)
        for cache in (self.services, *self.gangs):
            controller.watch_owned(cache, self.training)
        controller.watch_owned(self.pods, self.training, training_jobs)
        for cache in self.gangs:
            discovery.follow(cache.resource, lambda _: self._look_at_gangs(controller))

    def _look_at_gangs(self, controller: Controller[Snapshot]) -> None:
        """Enqueue all jobs with a gang scheduler, because one was installed or removed."""
        for job in self.training.all():
            if scheduling.for_spec(job.spec) is not None:
                controller.queue.add(job.metadata.key)
