"""Errors of the API server about a Job, translated to fields of the TrainingJob. Pure."""

from __future__ import annotations

import re

from skysail.core import api_errors
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kube.api.resources import JOB

_TEMPLATE = re.compile(r"(?<![\w.])\.?spec\.template\.(?=spec\.|metadata\.)")


def user_message(job: TrainingJob, message: str) -> str:
    """Return the error as a sentence with the field names of a TrainingJob."""
    message = api_errors.field_errors(message, JOB)
    if job.spec.pod_template is not None:
        message = _TEMPLATE.sub("spec.podTemplate.", message)
    return f"The API server rejects the pods of this spec: {message}. Correct or remove that field."
