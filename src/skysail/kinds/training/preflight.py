"""Preflight: a dry run of the Jobs of an attempt at the API server.

A podTemplate may contain anything, and only the API server can validate it completely. A changed spec ends a running
attempt only if its Jobs pass the dry run.
"""

from __future__ import annotations

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.plan import api_errors, attempts
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import JOB
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Forbidden, Invalid, Terminating

_QUOTA = "exceeded quota"
_NO_TRIALS = "does not support dry run"


def is_needed(job: TrainingJob) -> bool:
    """Return whether a preflight is due before an attempt starts.

    A first attempt with a single Job needs none: creating the Job validates it. A podTemplate always needs one, because
    the API server drops misspelt fields silently on create.
    """
    spec = job.spec
    is_alone = not job.status.attempts and len(replica_groups(spec)) == 1 and spec.pod_template is None
    return attempts.is_new_spec(job) and not is_alone


async def check(
    client: Client, job: TrainingJob, number: int, progress_endpoint: ProgressEndpoint | None
) -> str | None:
    """Return the error of the API server for the Jobs of attempt `number`, as a sentence with the fix, or None."""
    for _, manifest in build_children(job, number, None, progress_endpoint).jobs:
        try:
            await client.apply(JOB, manifest, Object, dry_run=True)
        except Terminating:
            raise
        except (Invalid, Forbidden) as error:
            if not _says_nothing(error) and not await _is_taken(client, manifest):
                return api_errors.user_message(error.message, has_template=job.spec.pod_template is not None)
    return None


def _says_nothing(error: ApiError) -> bool:
    """Return whether the error says nothing about the spec.

    The running attempt may use up the quota, and a webhook may not support dry runs.
    """
    return _QUOTA in error.message or _NO_TRIALS in error.message


async def _is_taken(client: Client, manifest: Manifest) -> bool:
    """Return whether a Job of that name exists: the error is then about changing that Job."""
    metadata = manifest["metadata"]
    return await client.find(JOB, metadata["namespace"], metadata["name"], Object) is not None
