"""Live reads of an object and its children, where a lagging cache could cause a wrong decision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from skysail.core.errors import Stale
from skysail.kube.api.objects import Object, resource_version
from skysail.kube.api.resources import Resource
from skysail.kube.client.client import Client

T = TypeVar("T", bound=Object)


async def check_current(client: Client, resource: Resource, cached: Object) -> None:
    """Raise Stale if the cached object is not the current one."""
    metadata = cached.metadata
    live = await client.get(resource, metadata.namespace, metadata.name, Object)
    if live.metadata.resource_version != metadata.resource_version:
        raise Stale(f"{resource.kind} {metadata.key} has changed since it was cached")


async def find_child(client: Client, resource: Resource, owner: Object, name: str, type_: type[T]) -> T | None:
    """Return the child of this name, or None if it does not exist or has another controller."""
    found = await client.find(resource, owner.metadata.namespace, name, type_)
    return found if found is not None and found.metadata.is_controlled_by(owner.metadata) else None


async def list_labelled(
    client: Client, resource: Resource, owner: Object, label: str, type_: type[T], *, more: str = ""
) -> tuple[T, ...]:
    """Return the objects whose label holds the UID of the owner. `more` extends the selector."""
    query = {"labelSelector": f"{label}={owner.metadata.uid}{more}"}
    return await client.list_objects(resource, owner.metadata.namespace, query, type_)


def newest_versions(objects: Iterable[T]) -> tuple[T, ...]:
    """Return each object once, in its newest version: a list may be older than the cache."""
    return tuple({each.metadata.uid: each for each in sorted(objects, key=resource_version)}.values())
