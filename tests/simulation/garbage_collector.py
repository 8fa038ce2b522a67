"""The controllers that clean up in every cluster: garbage collection by owner, and the end of namespaces.

Level-triggered like the real ones, and as late: children outlive their owner for a moment, and tests should see that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from skysail.kube.api.resources import NAMESPACE
from tests.simulation.ownership import Manager, Object
from tests.simulation.writes import DeleteOptions, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.kinds import Kind
    from tests.simulation.world import World

_DELAY_SECONDS = 0.1
_WRITE = Write(Manager("kube-controller-manager", "Update"))


class GarbageCollector:
    """Sweeps a moment after something that could concern it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pending = False

    def noticed(self, obj: Object, *, gone: bool) -> None:
        metadata = obj["metadata"]
        if self._pending or not (gone or "deletionTimestamp" in metadata or "ownerReferences" in metadata):
            return
        self._pending = True
        asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._pending = False
        for kind, obj in list(self._everything()):
            if self._is_current(kind, obj):
                self._collect(kind, obj)
        for kind, obj in list(self._everything()):
            if self._is_current(kind, obj) and "deletionTimestamp" in obj["metadata"]:
                self._finish(kind, obj)

    def _collect(self, kind: Kind, obj: Object) -> None:
        """Delete what no living owner holds any more; forget the dead owners of what is still held."""
        references = obj["metadata"].get("ownerReferences", [])
        living = [reference for reference in references if self._lives(obj, reference)]
        if not references or len(living) == len(references):
            return
        if living:
            self._edit(kind, obj, ownerReferences=living)
        elif "deletionTimestamp" not in obj["metadata"]:
            self._delete(kind, obj)

    def _lives(self, obj: Object, reference: Object) -> bool:
        """An owner that cannot be looked up is taken for alive: the collector deletes nothing that it cannot judge."""
        kind = self._kind(reference)
        namespace = obj["metadata"].get("namespace", "")
        if kind is None or (kind.resource.namespaced and not namespace):
            return True
        place = (namespace if kind.resource.namespaced else "", reference["name"])
        owner = self._world.objects[kind.resource].get(place)
        return owner is not None and owner["metadata"]["uid"] == reference["uid"]

    def _finish(self, kind: Kind, obj: Object) -> None:
        if kind.resource == NAMESPACE:
            self._empty(kind, obj)
            return
        finalizers = obj["metadata"].get("finalizers", [])
        if "orphan" in finalizers:
            self._orphan(obj)
            self._edit(kind, obj, finalizers=[name for name in finalizers if name != "orphan"])
        elif "foregroundDeletion" in finalizers and not self._delete_blocking(obj):
            self._edit(kind, obj, finalizers=[name for name in finalizers if name != "foregroundDeletion"])

    def _empty(self, kind: Kind, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        inside = [(k, o) for k, o in self._everything() if o["metadata"].get("namespace") == name]
        for child_kind, child in inside:
            if "deletionTimestamp" not in child["metadata"]:
                self._delete(child_kind, child)
        if not any(o["metadata"].get("namespace") == name for _, o in self._everything()):
            self._world.commit(kind, namespace, None, _WRITE.manager.name)

    def _orphan(self, owner: Object) -> None:
        for kind, child in self._children(owner):
            others = [row for row in child["metadata"]["ownerReferences"] if row["uid"] != owner["metadata"]["uid"]]
            self._edit(kind, child, ownerReferences=others)

    def _delete_blocking(self, owner: Object) -> bool:
        """Whether some child still has to go before its owner may."""
        blocking = [(kind, child) for kind, child in self._children(owner) if _blocks(child, owner)]
        for kind, child in blocking:
            if "deletionTimestamp" not in child["metadata"]:
                self._delete(kind, child)
        return any(_blocks(child, owner) for _, child in self._children(owner))

    def _children(self, owner: Object) -> list[tuple[Kind, Object]]:
        uid = owner["metadata"]["uid"]
        return [
            (kind, obj)
            for kind, obj in self._everything()
            if any(row["uid"] == uid for row in obj["metadata"].get("ownerReferences", ()))
        ]

    def _everything(self) -> Iterator[tuple[Kind, Object]]:
        for resource, objects in list(self._world.objects.items()):
            for obj in list(objects.values()):
                yield self._world.kinds[resource], obj

    def _is_current(self, kind: Kind, obj: Object) -> bool:
        place = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        return self._world.objects.get(kind.resource, {}).get(place) is obj

    def _kind(self, reference: Object) -> Kind | None:
        wanted = (reference["apiVersion"], reference["kind"])
        kinds = self._world.kinds.values()
        return next((kind for kind in kinds if (kind.resource.api_version, kind.resource.kind) == wanted), None)

    def _edit(self, kind: Kind, obj: Object, **metadata: Any) -> None:
        wanted = {**obj, "metadata": {**obj["metadata"], **metadata}}
        self._world.replace(kind, obj, wanted, _WRITE)

    def _delete(self, kind: Kind, obj: Object) -> None:
        self._world.delete(kind, obj, DeleteOptions(propagation_policy="Background"), _WRITE)


def _blocks(child: Object, owner: Object) -> bool:
    uid = owner["metadata"]["uid"]
    return any(row["uid"] == uid and row.get("blockOwnerDeletion") for row in child["metadata"]["ownerReferences"])
