"""Whether the API server would take the Jobs of an attempt. It is asked, and nothing is written.

A podTemplate may hold anything, and only the API server knows all that a pod may be. Before good work is ended for
another spec, it is asked what it thinks of that one.
"""

from __future__ import annotations

from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.manifests import children
from skysail.kinds.training.children.progress_endpoint import Reporting
from skysail.kinds.training.children.replica_groups import groups
from skysail.kinds.training.plan import api_errors, attempts
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import JOB
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Forbidden, Invalid, NotFound, Terminating

_QUOTA = "exceeded quota"
_NO_TRIALS = "does not support dry run"


def is_due(job: TrainingJob) -> bool:
    """Whether to ask before an attempt begins. The only Job of a first one is made at once: it is taken or refused.

    But not where there is a template: what is misspelt there would be left out of what is made, and nobody told.
    """
    spec = job.spec
    is_alone = not job.status.attempts and len(groups(spec)) == 1 and spec.pod_template is None
    return attempts.is_untried(job) and not is_alone


async def refusal(client: Client, job: TrainingJob, number: int, reporting: Reporting | None) -> str | None:
    """What the API server has against the Jobs of attempt `number`, as a sentence with the fix."""
    for _, manifest in children(job, number, None, reporting).jobs:
        try:
            await client.apply(JOB, manifest, Object, dry_run=True)
        except Terminating:
            raise
        except (Invalid, Forbidden) as error:
            if not _says_nothing(error) and not await _is_taken(client, manifest):
                return api_errors.sentence(error.message, has_template=job.spec.pod_template is not None)
    return None


def _says_nothing(error: ApiError) -> bool:
    """The quota may be what the attempt under way uses up; and who cannot be asked has not said no."""
    return _QUOTA in error.message or _NO_TRIALS in error.message


async def _is_taken(client: Client, manifest: Manifest) -> bool:
    """Whether somebody has a Job of that name: it was that one which the API server would not change."""
    metadata = manifest["metadata"]
    try:
        await client.get(JOB, metadata["namespace"], metadata["name"], Object)
    except NotFound:
        return False
    return True
