"""Cache of one kind: a typed store with indexes, fed by a reflector and by our own writes.

The cache never goes back in time: it ignores events that are older than the stored object, and events of deleted
objects. So a controller never plans on the state before its own write. Only a list that started after our last
knowledge overrides it: the server is right, even if a restored backup made its state older.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from skysail.kube.api.objects import IndexKey, Key, Object, resource_version
from skysail.kube.api.resources import Resource
from skysail.kube.client.transport import NO_MAPPING

# Maximum number of tombstones, which keep a late event from restoring a deleted object.
_MAX_TOMBSTONES = 10_000

T = TypeVar("T", bound=Object)
Index = Callable[[T], Iterable[IndexKey]]
Listener = Callable[[T | None, T | None], None]


def index_by_owner(object_: Object) -> Iterable[IndexKey]:
    """Index by namespace and UID of the controlling owner.

    Never by its name: a name can be reused by another owner. Never by the UID alone: every tenant can name the UID of
    an object in another namespace as the owner.
    """
    owner = object_.metadata.controller
    return (IndexKey(object_.metadata.namespace, owner.uid),) if owner else ()


def index_by_uid(object_: Object) -> Iterable[IndexKey]:
    """Index by the object's own namespace and UID, so that a child finds its owner."""
    return (object_.metadata.identity,)


def index_by_label(label: str) -> Index[Object]:
    """Index by namespace and the value of one label."""

    def values(object_: Object) -> Iterable[IndexKey]:
        value = (object_.metadata.labels or {}).get(label)
        return (IndexKey(object_.metadata.namespace, value),) if value is not None else ()

    return values


class _Watermark(NamedTuple):
    """Watermark of a write or deletion: its version, its namespace, and the number of lists started before it."""

    version: float
    namespace: str
    lists: int


class Cache(Generic[T]):
    """All objects of one kind in the watched namespaces.

    `feeds` are the namespaces that are listed one by one; an empty name means all namespaces at once. `selector` is the
    query (`labelSelector`, `fieldSelector`) that filters objects.
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
        self._entries: dict[str, dict[IndexKey, dict[Key, T]]] = {name: {} for name in self._indexes}
        self._listeners: list[Listener[T]] = []
        self._own: dict[Key, _Watermark] = {}
        self._graves: dict[str, _Watermark] = {}
        self._lists = 0
        self.undecodable: set[Key] = set()

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def all(self) -> list[T]:
        return list(self._objects.values())

    def by(self, index: str, value: IndexKey) -> list[T]:
        """Return objects with this index value, sorted by key so that plans are stable."""
        found = self._entries[index].get(value, {})
        return [found[key] for key in sorted(found)]

    def __len__(self) -> int:
        return len(self._objects)

    def subscribe(self, listener: Listener[T]) -> None:
        """Call the listener with (old, new) at every change; None means absent. The listener must not block."""
        self._listeners.append(listener)

    def accepts(self, object_: Object) -> bool:
        """Return whether the watch covers this object, so that the cache will also see its deletion."""
        return not self.selector and (self.feeds == ("",) or object_.metadata.namespace in self.feeds)

    def put(self, new: T) -> None:
        """Store an object from a watch event."""
        metadata = new.metadata
        key = metadata.key
        self.undecodable.discard(key)
        own = self._own.get(key)
        if own is not None and resource_version(new) >= own.version:
            del self._own[key]
        old = self._objects.get(key)
        if not self._is_tombstoned(new) and (old is None or resource_version(old) < resource_version(new)):
            self._store(key, old, new)

    def remove(self, last: Object) -> None:
        """Remove an object after a watch event. A newer object of the same name stays."""
        self._end(last, resource_version(last))

    def mark_deleted(self, last: Object) -> None:
        """Remove an object that the server confirmed as deleted. All later events of its UID are ignored."""
        self._end(last, math.inf)

    def mark_undecodable(self, key: Key) -> None:
        """Mark an object that our type cannot decode. Its old version is removed, so that no plan uses it."""
        self.undecodable.add(key)
        old = self._objects.get(key)
        if old is not None:
            self._drop(key, old)

    def begin_list(self) -> int:
        """Start a list: call this before the request, and pass the result to `replace`."""
        self._lists += 1
        return self._lists

    def replace(self, objects: Iterable[T], resource_version: int, *, begun: int, namespace: str = "") -> None:
        """Replace the content of a namespace (or of all) by a complete list.

        Objects that are not in the list are removed.
        """
        self._forget_before(begun, namespace)
        seen = set()
        for new in objects:
            key = new.metadata.key
            seen.add(key)
            old = self._objects.get(key)
            if self._is_tombstoned(new) or self._is_newer(key, resource_version):
                continue
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                self._store(key, old, new)
        for key in [key for key in self._objects if key not in seen and namespace in {"", key.namespace}]:
            if not self._is_newer(key, resource_version):
                self._drop(key, self._objects[key])
        self._listed.add(namespace)
        if self._listed.issuperset(self.feeds):
            self.synced.set()

    def record_write(self, new: T) -> None:
        """Store the server's reply to our own write, so that the next plan builds on it."""
        key = new.metadata.key
        self.put(new)
        if self._objects.get(key) is new:
            self._own[key] = _Watermark(resource_version(new), key.namespace, self._lists)

    def clear(self) -> None:
        """Remove everything, because the kind is no longer served."""
        for key, old in list(self._objects.items()):
            self._drop(key, old)
        self._graves.clear()
        self.undecodable.clear()
        self._listed.clear()
        self.synced.clear()

    def _end(self, last: Object, at: float) -> None:
        metadata = last.metadata
        self.undecodable.discard(metadata.key)
        self._graves[metadata.uid] = _Watermark(at, metadata.namespace, self._lists)
        if len(self._graves) > _MAX_TOMBSTONES:
            del self._graves[next(iter(self._graves))]
        old = self._objects.get(metadata.key)
        if old is not None and old.metadata.uid == metadata.uid:
            self._drop(metadata.key, old)

    def _is_tombstoned(self, object_: Object) -> bool:
        grave = self._graves.get(object_.metadata.uid)
        return grave is not None and resource_version(object_) <= grave.version

    def _is_newer(self, key: Key, resource_version: int) -> bool:
        own = self._own.get(key)
        return own is not None and own.version > resource_version

    def _forget_before(self, begun: int, namespace: str) -> None:
        """Drop watermarks older than this list: a list that started after our write already contains it."""
        stores: tuple[dict[Any, _Watermark], ...] = (self._own, self._graves)
        for known in stores:
            for name in [name for name, watermark in known.items() if watermark.lists < begun]:
                if namespace in {"", known[name].namespace}:
                    del known[name]

    def _store(self, key: Key, old: T | None, new: T) -> None:
        self._objects[key] = new
        self._reindex(key, old, new)
        self._notify(old, new)

    def _drop(self, key: Key, old: T) -> None:
        del self._objects[key]
        self._own.pop(key, None)
        self._reindex(key, old, None)
        self._notify(old, None)

    def _notify(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            listener(old, new)

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, function in self._indexes.items():
            entries = self._entries[name]
            previous = tuple(function(old)) if old is not None else ()
            after = tuple(function(new)) if new is not None else ()
            for value in previous:
                if value not in after:
                    entries[value].pop(key, None)
                    if not entries[value]:
                        del entries[value]
            if new is not None:
                for value in after:
                    entries.setdefault(value, {})[key] = new
