"""Snapshot of a ModalJob or TrainJob that the training engine runs: the object, its TrainingJob and its claims."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from skysail.claims.types import CloudInstance
from skysail.cloud.gang_limits import GangLimits
from skysail.kinds.training.api.modal_job import ModalJob
from skysail.kinds.training.api.train_job import TrainJob
from skysail.kinds.training.api.training_job import TrainingJob

T = TypeVar("T", ModalJob, TrainJob)


class TranslatedSnapshot(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Input of the plan. `training` is None while the TrainingJob does not exist.

    `claims`: claims of its pods, oldest first. `pod_annotations`: annotations of its newest pod, of the first rank.
    `script`: training program of the shipped runtime. `gang_limits`: limits of the cloud on gangs, None without any.
    """

    object: T
    now: datetime
    training: TrainingJob | None = None
    claims: tuple[CloudInstance, ...] = ()
    pod_annotations: dict[str, str] = {}
    script: str = ""
    gang_limits: GangLimits | None = None
