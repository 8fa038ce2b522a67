"""What happened, in order, and the streams that tell it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tests.simulation.statuses import failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from skysail.kube.api.resources import Resource
    from tests.simulation.selectors import Selector
    from tests.simulation.world import World

Object = dict[str, Any]

_BOOKMARK_SECONDS = 60.0
_LAST_BOOKMARK_SECONDS = 2.0
_WATCH_SECONDS = 1800.0


class Change(msgspec.Struct, frozen=True):
    """One version of the world, since a moment `at`. `after` of a deleted object is the object as it went."""

    resource: Resource
    before: Object | None
    after: Object
    gone: bool
    by: str
    at: float

    @property
    def version(self) -> int:
        return int(self.after["metadata"]["resourceVersion"])

    @property
    def verb(self) -> str:
        if self.gone:
            return "delete"
        return "update" if self.before else "create"

    def as_seen_by(self, selector: Selector) -> Object | None:
        """The event for a watch that is narrowed: an object that leaves the selection is deleted from it."""
        was = self.before is not None and selector.matches(self.before)
        now = not self.gone and selector.matches(self.after)
        if not was and not now:
            return None
        return event("MODIFIED" if was and now else "ADDED" if now else "DELETED", self.after)


class History:
    """All changes for the tests (`journal`), and the recent ones for watches."""

    def __init__(self, world: World) -> None:
        self.journal: list[Change] = []
        self._world = world
        self._recent: dict[Resource, list[Change]] = {}
        self._oldest: dict[Resource, int] = {}
        self._watches: dict[Resource, list[Watch]] = {}

    def begin(self, resource: Resource) -> None:
        self._recent[resource] = []
        self._oldest[resource] = self._world.version
        self._watches[resource] = []

    def end(self, resource: Resource) -> None:
        for watch in self._watches[resource]:
            watch.finish()

    def compact(self) -> None:
        """Forget what was. Watches that are open live on."""
        for resource in self._recent:
            self._recent[resource].clear()
            self._oldest[resource] = self._world.version

    def add(self, resource: Resource, before: Object | None, after: Object, *, gone: bool, by: str) -> None:
        change = Change(resource, before, after, gone, by, asyncio.get_running_loop().time())
        self.journal.append(change)
        self._recent[resource].append(change)
        self.tell(resource, change)

    def tell(self, resource: Resource, change: Change) -> None:
        for watch in self._watches[resource]:
            watch.tell(change)

    def since(self, resource: Resource, version: int) -> list[Change] | None:
        """None: that is too long ago."""
        if version < self._oldest[resource]:
            return None
        return [change for change in self._recent[resource] if change.version > version]

    def watch(self, watch: Watch) -> None:
        self._watches[watch.resource].append(watch)

    def unwatch(self, watch: Watch) -> None:
        self._watches[watch.resource].remove(watch)


class Watch:
    """One open stream; a `kube.transport.Stream`. What happens after `open` is not missed, even before it is read."""

    status = 200

    def __init__(self, world: World, resource: Resource, selector: Selector, query: Mapping[str, str]) -> None:
        self.resource = resource
        self._world = world
        self._selector = selector
        self._bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}
        self._seconds = float(query.get("timeoutSeconds") or _WATCH_SECONDS)
        self._lines: asyncio.Queue[Object | None] = asyncio.Queue()
        self._begin(query.get("resourceVersion", ""))
        world.history.watch(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.history.unwatch(self)

    def tell(self, change: Change) -> None:
        if line := change.as_seen_by(self._selector):
            self._lines.put_nowait(line)

    def finish(self) -> None:
        self._lines.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        now = asyncio.get_running_loop().time
        end = now() + self._seconds
        bookmark = self._next_bookmark(now(), end)
        while now() < end:
            try:
                async with asyncio.timeout_at(min(bookmark, end)):
                    line = await self._lines.get()
            except TimeoutError:
                if now() >= end:
                    return
                bookmark = self._next_bookmark(now(), end)
                line = self._bookmark()
            if line is None:
                return
            yield msgspec.json.encode(line) + b"\n"

    def _begin(self, version: str) -> None:
        if version in {"", "0"}:
            for _, obj in sorted(self._world.objects[self.resource].items()):
                if self._selector.matches(obj):
                    self._lines.put_nowait(event("ADDED", obj))
            return
        changes = self._world.history.since(self.resource, int(version))
        if changes is None:
            message = f"too old resource version: {version} ({self._world.version})"
            self._lines.put_nowait(event("ERROR", failure(410, "Expired", message)))
            self.finish()
            return
        for change in changes:
            self.tell(change)

    def _next_bookmark(self, now: float, end: float) -> float:
        if not self._bookmarks:
            return end
        last = end - _LAST_BOOKMARK_SECONDS
        return min(now + _BOOKMARK_SECONDS, last) if now < last else end

    def _bookmark(self) -> Object:
        metadata = {"resourceVersion": str(self._world.version), "creationTimestamp": None}
        return event(
            "BOOKMARK",
            {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": metadata},
        )


class Refused:
    """A watch that was not opened: the Status is its body."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


def event(kind: str, obj: Object) -> Object:
    return {"type": kind, "object": obj}
