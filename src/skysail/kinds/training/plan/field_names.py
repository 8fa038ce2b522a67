"""Names of the fields that messages about a TrainingJob name: those of the object that the user wrote. Pure."""

from __future__ import annotations

import msgspec

from skysail.kinds.training.api.training_job import TrainingJob


class FieldNames(msgspec.Struct, frozen=True):
    """Fields of the kind that the user wrote. `never_retried`: why a job without retries is not retried, and the fix.

    `log_hint`: where the log of the last failure is.
    """

    memory: str = "resources.limits.memory"
    retries: str = "runPolicy.backoffLimit"
    deadline: str = "runPolicy.activeDeadlineSeconds"
    never_retried: str = "because restartPolicy is Never; set OnFailure to retry"
    log_hint: str = "read the log in status.failure"


TRAINING_JOB_FIELDS = FieldNames()
# Fields by kind of the controller, for kinds that Skysail runs as a TrainingJob.
_OF_CONTROLLERS = {
    "ModalJob": FieldNames(
        memory="spec.memory",
        retries="spec.retries",
        never_retried="because spec.retries is 0; raise spec.retries to retry",
        log_hint="`skysail why` shows the log",
    ),
    "TrainJob": FieldNames(
        memory="spec.trainer.resourcesPerNode.limits.memory",
        deadline="spec.activeDeadlineSeconds",
        never_retried="because a TrainJob has no retries; delete it and create it again to run it again",
        log_hint="`skysail why` shows the log",
    ),
}


def field_names(job: TrainingJob) -> FieldNames:
    """Return the names for a TrainingJob, or for the object that it was made from."""
    controller = job.metadata.controller
    return TRAINING_JOB_FIELDS if controller is None else _OF_CONTROLLERS.get(controller.kind, TRAINING_JOB_FIELDS)
