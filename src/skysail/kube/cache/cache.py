"""What we know of the cluster: one typed store per kind, with indexes, fed by a reflector and by our own writes.

It never goes back in time: an event older than what is held, or of an object whose end was seen, is ignored. So a
controller that just wrote an object never plans on the state before that write. Only a list that was begun later than
what we know is believed against it: it is the server's word, even where a restored backup made that word older.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from skysail.kube.api.objects import IndexKey, Key, Object, version
from skysail.kube.api.resources import Resource
from skysail.kube.client.transport import NO_MAPPING

# How many ended objects are remembered, so that a late event cannot bring one back.
_MOST_GRAVES = 10_000

T = TypeVar("T", bound=Object)
Index = Callable[[T], Iterable[IndexKey]]
Listener = Callable[[T | None, T | None], None]


def owner_uids(object_: Object) -> Iterable[IndexKey]:
    """Index by namespace and UID of the controlling owner.

    Never by its name: names come back with another owner behind them. Never by the UID alone: anybody can name the
    UID of an object in another namespace as the owner.
    """
    owner = object_.metadata.controller
    return (IndexKey(object_.metadata.namespace, owner.uid),) if owner else ()


def uids(object_: Object) -> Iterable[IndexKey]:
    """Index by the object's own namespace and UID: this is how a child finds its owner."""
    return (object_.metadata.identity,)


def label_values(label: str) -> Index[Object]:
    """Index by namespace and the value of one label."""

    def values(object_: Object) -> Iterable[IndexKey]:
        value = (object_.metadata.labels or {}).get(label)
        return (IndexKey(object_.metadata.namespace, value),) if value is not None else ()

    return values


class _Since(NamedTuple):
    """What we know better than an older list: the version, the namespace, and how many lists had begun by then."""

    version: float
    namespace: str
    lists: int


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
        self._entries: dict[str, dict[IndexKey, dict[Key, T]]] = {name: {} for name in self._indexes}
        self._listeners: list[Listener[T]] = []
        self._own: dict[Key, _Since] = {}
        self._graves: dict[str, _Since] = {}
        self._lists = 0
        self.unreadable: set[Key] = set()

    def get(self, key: Key) -> T | None:
        return self._objects.get(key)

    def all(self) -> list[T]:
        return list(self._objects.values())

    def by(self, index: str, value: IndexKey) -> list[T]:
        """Objects whose index function gave this value, in the order of their keys so that plans are stable."""
        found = self._entries[index].get(value, {})
        return [found[key] for key in sorted(found)]

    def __len__(self) -> int:
        return len(self._objects)

    def subscribe(self, listener: Listener[T]) -> None:
        """Be called with (old, new) at every change; None stands for absent. Must not block."""
        self._listeners.append(listener)

    def takes(self, object_: Object) -> bool:
        """Whether an object that was read outside the watch surely belongs here: the watch will tell its end, too."""
        return not self.selector and (self.feeds == ("",) or object_.metadata.namespace in self.feeds)

    def put(self, new: T) -> None:
        """An object as a watch told it."""
        metadata = new.metadata
        key = metadata.key
        self.unreadable.discard(key)
        own = self._own.get(key)
        if own is not None and version(new) >= own.version:
            del self._own[key]
        old = self._objects.get(key)
        if not self._is_buried(new) and (old is None or version(old) < version(new)):
            self._store(key, old, new)

    def remove(self, last: Object) -> None:
        """The end of an object as a watch told it. A newer object of that name stays."""
        self._end(last, version(last))

    def ended(self, last: Object) -> None:
        """The server said that exactly this object is gone: nothing of its UID can come any more."""
        self._end(last, math.inf)

    def cannot_read(self, key: Key) -> None:
        """There is an object that our type does not fit. It is neither old nor gone: nobody plans on it."""
        self.unreadable.add(key)
        old = self._objects.get(key)
        if old is not None:
            self._drop(key, old)

    def begin_list(self) -> int:
        """To be called before a list is asked for, and given to `replace` with its answer."""
        self._lists += 1
        return self._lists

    def replace(self, objects: Iterable[T], resource_version: int, *, begun: int, namespace: str = "") -> None:
        """The whole truth of a namespace (or of all), from a list.

        What it does not name is gone, whether or not anybody saw it go.
        """
        self._forget_before(begun, namespace)
        seen = set()
        for new in objects:
            key = new.metadata.key
            seen.add(key)
            old = self._objects.get(key)
            if self._is_buried(new) or self._is_newer(key, resource_version):
                continue
            if old is None or old.metadata.resource_version != new.metadata.resource_version:
                self._store(key, old, new)
        for key in [key for key in self._objects if key not in seen and namespace in {"", key.namespace}]:
            if not self._is_newer(key, resource_version):
                self._drop(key, self._objects[key])
        self._listed.add(namespace)
        if self._listed.issuperset(self.feeds):
            self.synced.set()

    def wrote(self, new: T) -> None:
        """The server's answer to a write of ours, so that the next plan builds on it."""
        key = new.metadata.key
        self.put(new)
        if self._objects.get(key) is new:
            self._own[key] = _Since(version(new), key.namespace, self._lists)

    def clear(self) -> None:
        """The kind is no longer served: nothing of it exists."""
        for key, old in list(self._objects.items()):
            self._drop(key, old)
        self._graves.clear()
        self.unreadable.clear()
        self._listed.clear()
        self.synced.clear()

    def _end(self, last: Object, at: float) -> None:
        metadata = last.metadata
        self.unreadable.discard(metadata.key)
        self._graves[metadata.uid] = _Since(at, metadata.namespace, self._lists)
        if len(self._graves) > _MOST_GRAVES:
            del self._graves[next(iter(self._graves))]
        old = self._objects.get(metadata.key)
        if old is not None and old.metadata.uid == metadata.uid:
            self._drop(metadata.key, old)

    def _is_buried(self, object_: Object) -> bool:
        grave = self._graves.get(object_.metadata.uid)
        return grave is not None and version(object_) <= grave.version

    def _is_newer(self, key: Key, resource_version: int) -> bool:
        own = self._own.get(key)
        return own is not None and own.version > resource_version

    def _forget_before(self, begun: int, namespace: str) -> None:
        """A list that was begun after we learnt something knows it, too: its word counts."""
        stores: tuple[dict[Any, _Since], ...] = (self._own, self._graves)
        for known in stores:
            for name in [name for name, since in known.items() if since.lists < begun]:
                if namespace in {"", known[name].namespace}:
                    del known[name]

    def _store(self, key: Key, old: T | None, new: T) -> None:
        self._objects[key] = new
        self._reindex(key, old, new)
        self._tell(old, new)

    def _drop(self, key: Key, old: T) -> None:
        del self._objects[key]
        self._own.pop(key, None)
        self._reindex(key, old, None)
        self._tell(old, None)

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
