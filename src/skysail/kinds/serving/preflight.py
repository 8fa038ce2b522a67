"""Dry run of a revision's Deployment at the API server, before good servers are replaced.

Only the API server can validate all fields of a pod. Nothing is written.
"""

from __future__ import annotations

import re

from skysail.core import api_errors
from skysail.core.preflight import find_rejection
from skysail.kinds.serving.children import manifests, pod_templates
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.resources import DEPLOYMENT
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden

_SERVER = "spec.template.spec.containers[0]."
_VARIABLE = re.compile(rf"{re.escape(_SERVER)}env\[(?P<place>\d+)\]")


def is_needed(snapshot: Snapshot, revision: Revision) -> bool:
    """Return whether the servers of this revision are about to be created for the first time."""
    deployment = snapshot.deployment
    return not revision.outcome and (deployment is None or deployment.revision != revision.hash)


async def check(client: Client, snapshot: Snapshot, revision: Revision) -> str | None:
    """Return why the API server rejects the Deployment, as a sentence with the fix, or None.

    Forbidden is not a rejection: a quota or policy may allow the servers later. The actual write reports and retries
    it.
    """
    manifest = manifests.deployment(snapshot.serving, revision, snapshot.config)
    error = await find_rejection(client, DEPLOYMENT, manifest, updated_by=snapshot.object)
    if error is None or isinstance(error, Forbidden):
        return None
    message = _as_written(api_errors.field_errors(str(error), DEPLOYMENT), snapshot, revision)
    return f"The API server rejects the Deployment of this model: {message}. Fix the named fields."


def _as_written(message: str, snapshot: Snapshot, revision: Revision) -> str:
    """Replace pod template fields by the user's spec fields: our variables precede theirs in the container."""
    ours = len(pod_templates.environment(snapshot.serving, revision.want))

    def variable(found: re.Match[str]) -> str:
        place = int(found["place"]) - ours
        return f"spec.env[{place}]" if place >= 0 else found[0]

    return _VARIABLE.sub(variable, message).replace(f"{_SERVER}resources", "spec.resources")
