"""Whether the API server would take the servers of a revision. It is asked, and nothing is written.

Only the API server knows all that a pod may be. Before good servers are replaced, it is asked what it thinks of others.
"""

from __future__ import annotations

import re

from skysail.kinds.serving.children import manifests, pod_templates
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import DEPLOYMENT
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, Invalid, NotFound

# Who speaks, and of which object; and at the end how it was answered.
_AROUND = re.compile(
    r"^(failed to [a-z ]+object \([^)]*\)|Deployment\.apps \"[^\"]*\" is invalid): | \(HTTP \d+( \w+)?\)$"
)
_SERVER = "spec.template.spec.containers[0]."
_VARIABLE = re.compile(rf"{re.escape(_SERVER)}env\[(?P<place>\d+)\]")


def is_due(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether its servers are about to be made, for the first time."""
    deployment = snapshot.deployment
    return not entry.outcome and (deployment is None or deployment.revision != entry.hash)


async def refusal(client: Client, snapshot: Snapshot, entry: Entry) -> str | None:
    """What the API server has against them, as a sentence with the fix.

    Who forbids them, such as a quota or a policy, may allow them later: that is told when they are asked for, and tried
    again, and is nothing that the revision did wrong.
    """
    try:
        await client.apply(
            DEPLOYMENT, manifests.deployment(snapshot.serving, entry, snapshot.terms), Object, dry_run=True
        )
    except Forbidden:
        return None
    except Invalid as error:
        if snapshot.deployment is None and await _is_taken(client, snapshot):
            return None
        said = _as_written(_AROUND.sub("", str(error)).strip().removesuffix("."), snapshot, entry)
        return f"The API server refuses servers of this spec: {said}. Correct what it names."
    return None


def _as_written(said: str, snapshot: Snapshot, entry: Entry) -> str:
    """By the fields that the user wrote: the container has variables of ours before his."""
    ours = len(pod_templates.environment(snapshot.serving, entry.want))

    def variable(found: re.Match[str]) -> str:
        place = int(found["place"]) - ours
        return f"spec.env[{place}]" if place >= 0 else found[0]

    return _VARIABLE.sub(variable, said).replace(f"{_SERVER}resources", "spec.resources")


async def _is_taken(client: Client, snapshot: Snapshot) -> bool:
    """Whether somebody else has a Deployment of that name: it was that one which the API server would not change."""
    model = snapshot.object.metadata
    try:
        found = await client.get(DEPLOYMENT, model.namespace, snapshot.serving.names.deployment, Object)
    except NotFound:
        return False
    return found.metadata.controller is None or found.metadata.controller.uid != model.uid
