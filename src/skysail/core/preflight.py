"""Preflight: a dry run of a child at the API server, before a running child is replaced.

Only the API server can validate all fields of a pod. Nothing is written.
"""

from __future__ import annotations

from skysail.core.actions import Manifest
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import ApiError, Forbidden, Invalid, Terminating

# Errors that say nothing about the manifest: running children may use up the quota, and a webhook may not support dry
# runs.
_UNRELATED = ("exceeded quota", "does not support dry run")


async def find_rejection(
    client: Client, resource: Resource, manifest: Manifest, *, updated_by: Object | None = None
) -> ApiError | None:
    """Return the error of the API server about the manifest, or None.

    Returns None too if another object has the name, because the error is about changing that object. Only an object
    that `updated_by` controls may be changed.
    """
    try:
        await client.apply(resource, manifest, Object, dry_run=True)
    except Terminating:
        raise
    except (Invalid, Forbidden) as error:
        if any(text in error.message for text in _UNRELATED):
            return None
        metadata = manifest["metadata"]
        found = await client.find(resource, metadata["namespace"], metadata["name"], Object)
        is_updated = (
            updated_by is not None and found is not None and found.metadata.is_controlled_by(updated_by.metadata)
        )
        return error if found is None or is_updated else None
    return None
