"""What we know of the cluster: one typed store per kind, with indexes, fed by a reflector and by our own writes.

It never goes back in time: an event older than what is held, or of an object whose end was seen, is ignored. So a
controller that just wrote an object never plans on the state before that write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from skysail.kube.objects import Key, Object, version
from skysail.kube.resources import Resource
from skysail.kube.transport import NO_MAPPING

# UIDs of objects whose end was seen, so that a late event cannot bring one back. Bounded; a relist empties it.
_MOST_GRAVES = 10_000

T = TypeVar("T", bound=Object)
Index = Callable[[T], Iterable[str]]
Listener = Callable[[T | None, T | None], None]


def owner_uids(object_: Object) -> Iterable[str]:
    """Index by the UID of the controlling owner. Never by its name: names come back with another owner behind them."""
    owner = object_.metadata.controller
    return (owner.uid,) if owner else ()


def label_values(label: str) -> Index[Object]:
    """Index by the value of one label."""

    def values(object_: Object) -> Iterable[str]:
        value = (object_.metadata.labels or {}).get(label)
        return (value,) if value is not None else ()

    return values


class Cache(Generic[T]):
    """All objects of one kind that we were allowed and asked to see.

    `feeds` names the namespaces that are listed one by one; the empty name stands for all at once. `selector` is the
    query (`labelSelector`, `fieldSelector`) that keeps foreign objects out.
    """

    def __init__(
        self,
        resource: Resource,
        type_: type[T],
        indexes: Mapping[str, Index[T]] | None = None,
        selector: Mapping[str, str] = NO_MAPPING,
    ) -> None:
        self.resource = resource
        self.type = type_
        self.selector = selector
        self.feeds: tuple[str, ...] = ("",)
        self.synced = asyncio.Event()
        self._listed: set[str] = set()
        self._objects: dict[Key, T] = {}
        self._indexes = dict(indexes or {})
        self._entries: dict[str, dict[str, dict[Key, T]]] = {name: {} for name in self._indexes}
        self._listeners: list[Listener[T]] = []
        self._own: dict[Key, int] = {}
        self._graves: dict[str, None] = {}

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def all(self) -> list[T]:
        return list(self._objects.values())

    def by(self, index: str, value: str) -> list[T]:
        """Objects whose index function gave this value, in the order of their keys so that plans are stable."""
        found = self._entries[index].get(value, {})
        return [found[key] for key in sorted(found)]

    def __len__(self) -> int:
        return len(self._objects)

    def subscribe(self, listener: Listener[T]) -> None:
        """Be called with (old, new) at every change; None stands for absent. Must not block."""
        self._listeners.append(listener)

    def put(self, new: T) -> None:
        """An object as a watch told it."""
        metadata = new.metadata
        key = metadata.key
        old = self._objects.get(key)
        if metadata.uid in self._graves or (old is not None and version(old) >= version(new)):
            return
        if self._own.get(key, 0) <= version(new):
            self._own.pop(key, None)
        self._store(key, old, new)

    def remove(self, last: Object) -> None:
        """The end of an object as a watch told it. A newer object of that name stays."""
        key = last.metadata.key
        self._bury(last.metadata.uid)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid == last.metadata.uid:
            self._drop(key, old)

    def replace(self, objects: Iterable[T], resource_version: int, namespace: str = "") -> None:
        """The whole truth of a namespace (or of all), from a list.

        What it does not name is gone, whether or not anybody saw it go.
        """
        self._graves.clear()
        seen = set()
        for new in objects:
            key = new.metadata.key
            seen.add(key)
            old = self._objects.get(key)
            if self._own.get(key, 0) > resource_version:
                continue
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                self._store(key, old, new)
        for key in [key for key in self._objects if key not in seen and namespace in {"", key.namespace}]:
            if self._own.get(key, 0) <= resource_version:
                self._drop(key, self._objects[key])
        self._listed.add(namespace)
        if self._listed.issuperset(self.feeds):
            self.synced.set()

    def wrote(self, new: T) -> None:
        """The server's answer to a write of ours, so that the next plan builds on it."""
        self.put(new)
        if self._objects.get(new.metadata.key) is new:
            self._own[new.metadata.key] = version(new)

    def clear(self) -> None:
        """The kind is no longer served: nothing of it exists."""
        for key, old in list(self._objects.items()):
            self._drop(key, old)
        self._graves.clear()
        self._listed.clear()
        self.synced.clear()

    def _store(self, key: Key, old: T | None, new: T) -> None:
        self._objects[key] = new
        self._reindex(key, old, new)
        self._tell(old, new)

    def _drop(self, key: Key, old: T) -> None:
        del self._objects[key]
        self._own.pop(key, None)
        self._reindex(key, old, None)
        self._tell(old, None)

    def _bury(self, uid: str) -> None:
        self._graves[uid] = None
        if len(self._graves) > _MOST_GRAVES:
            del self._graves[next(iter(self._graves))]

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            listener(old, new)

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, function in self._indexes.items():
            entries = self._entries[name]
            before = tuple(function(old)) if old is not None else ()
            after = tuple(function(new)) if new is not None else ()
            for value in before:
                if value not in after:
                    entries[value].pop(key, None)
                    if not entries[value]:
                        del entries[value]
            if new is not None:
                for value in after:
                    entries.setdefault(value, {})[key] = new
