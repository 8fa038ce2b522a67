"""Preflight: a dry run of the Jobs of an attempt at the API server.

A podTemplate may contain anything, and only the API server can validate it completely. A changed spec ends a running
attempt only if its Jobs pass the dry run.
"""

from __future__ import annotations

from skysail.core.preflight import find_rejection
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.job_errors import user_message
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.children.spec_hash import is_new_spec
from skysail.kube.api.resources import JOB
from skysail.kube.client.client import Client


def is_needed(job: TrainingJob) -> bool:
    """Return whether a preflight is due before an attempt starts.

    A first attempt with a single Job needs none: creating the Job validates it. A podTemplate always needs one, because
    the API server drops misspelt fields silently on create.
    """
    spec = job.spec
    is_alone = not job.status.attempts and len(replica_groups(spec)) == 1 and spec.pod_template is None
    return is_new_spec(job) and not is_alone


async def check(
    client: Client, job: TrainingJob, number: int, progress_endpoint: ProgressEndpoint | None
) -> str | None:
    """Return the error of the API server for the Jobs of attempt `number`, as a sentence with the fix, or None."""
    for _, manifest in build_children(job, number, None, progress_endpoint).jobs:
        error = await find_rejection(client, JOB, manifest)
        if error is not None:
            return user_message(job, error.message)
    return None
