"""Whether the API server would take the Jobs of an attempt. It is asked, and nothing is written.

A podTemplate may hold anything, and only the API server knows all that a pod may be. Before good work is ended for
another spec, it is asked what it thinks of that one.
"""

from __future__ import annotations

import re

from skysail.core.actions import Manifest
from skysail.kinds.run.render import children
from skysail.kinds.run.reporting import Reporting
from skysail.kinds.run.types import TrainingJob
from skysail.kube.client import Client
from skysail.kube.errors import ApiError, Forbidden, Invalid, NotFound, Terminating
from skysail.kube.objects import Object
from skysail.kube.resources import JOB

# Who speaks, and of which object: what is left names the field.
_PREFIX = re.compile(r"^failed to [a-z ]+object \([^)]*\)( to proper version)?: |^Job\.batch \"[^\"]*\" is invalid: ")
_TEMPLATE = re.compile(r"(?<![\w.])\.?spec\.template\.(?=spec\.|metadata\.)")
_QUOTA = "exceeded quota"
_NO_TRIALS = "does not support dry run"


async def refusal(client: Client, job: TrainingJob, number: int, reporting: Reporting | None) -> str | None:
    """What the API server has against the Jobs of attempt `number`, as a sentence with the fix."""
    for _, manifest in children(job, number, None, reporting).jobs:
        try:
            await client.apply(JOB, manifest, Object, dry_run=True)
        except Terminating:
            raise
        except (Invalid, Forbidden) as error:
            if not _says_nothing(error) and not await _is_taken(client, manifest):
                return sentence(error.message, has_template=job.spec.pod_template is not None)
    return None


def sentence(said: str, *, has_template: bool) -> str:
    """In the words of the API server, but with the names that fields have in a TrainingJob."""
    said = _PREFIX.sub("", said).strip().removesuffix(".")
    if has_template:
        said = _TEMPLATE.sub("spec.podTemplate.", said)
    return f"The API server refuses the pods of this spec: {said}. Correct that field, or remove it."


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
