"""What the replay server holds: objects as ready-made JSON, a history for watches, one version for all kinds."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from bench import workload
from bench.size import Size
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.resources import CRD, NAMESPACE, POD, Resource

Manifest = dict[str, Any]
Edit = Callable[[Manifest], Manifest]

# How far back a watch may start. An older one is told to list again.
_MAX_HISTORY = 20_000


class Expired(Exception):
    """The watch starts before what is remembered."""


class World:
    """Every kind that is served, and what was asked of the server by verb."""

    def __init__(self) -> None:
        self.version = 1
        self.counts: Counter[str] = Counter()
        self.jobs = Collection(self, TRAINING_JOB.resource)
        self.pods = Collection(self, POD)
        # Kopf does not start without these two kinds; nothing of them is needed.
        self.collections = (self.jobs, self.pods, Collection(self, NAMESPACE), Collection(self, CRD))

    def fill(self, size: Size) -> None:
        self.jobs.add(workload.stored_job(number) for number in range(size.jobs))
        self.pods.add(workload.stored_pod(number, size.jobs) for number in range(size.pods))

    def next_version(self) -> int:
        self.version += 1
        return self.version


class Collection:
    """The objects of one kind. None is ever deleted, so a place in the order is a good continue token."""

    def __init__(self, world: World, resource: Resource) -> None:
        self.resource = resource
        self._world = world
        self._objects: dict[str, bytes] = {}
        self._history: deque[tuple[int, bytes]] = deque(maxlen=_MAX_HISTORY)
        self._watches: set[Watch] = set()

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def names(self) -> list[str]:
        return list(self._objects)

    def add(self, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            manifest["metadata"]["resourceVersion"] = str(self._world.next_version())
            self._objects[manifest["metadata"]["name"]] = msgspec.json.encode(manifest)

    def get(self, name: str) -> bytes | None:
        return self._objects.get(name)

    def page(self, limit: int, token: str) -> bytes:
        """A list, or a part of one. Without a limit: all of it."""
        start, _, version = token.partition("@")
        first = int(start or 0)
        end = min(first + limit, len(self)) if limit else len(self)
        version = version or str(self._world.version)
        items = b",".join(islice(self._objects.values(), first, end))
        metadata = {"resourceVersion": version, "continue": f"{end}@{version}" if end < len(self) else ""}
        head = {"apiVersion": self.resource.api_version, "kind": f"{self.resource.kind}List", "metadata": metadata}
        return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"

    def change(self, name: str, edit: Edit) -> bytes:
        """Store an edited object and tell the watches. An edit without effect is no event, as in a real server."""
        before = self._objects[name]
        manifest = edit(msgspec.json.decode(before))
        if msgspec.json.encode(manifest) == before:
            return before
        version = self._world.next_version()
        manifest["metadata"]["resourceVersion"] = str(version)
        after = self._objects[name] = msgspec.json.encode(manifest)
        line = b'{"type":"MODIFIED","object":' + after + b"}\n"
        self._history.append((version, line))
        for watch in self._watches:
            watch.tell(line)
        return after

    @contextmanager
    def watch(self, since: int) -> Iterator[Watch]:
        if len(self._history) == _MAX_HISTORY and self._history[0][0] > since + 1:
            raise Expired
        watch = Watch([line for version, line in self._history if version > since])
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)

    def bookmark(self) -> bytes:
        metadata = {"resourceVersion": str(self._world.version)}
        object_ = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, "metadata": metadata}
        return msgspec.json.encode({"type": "BOOKMARK", "object": object_}) + b"\n"


class Watch:
    """Lines that one client has yet to be sent."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._wake = asyncio.Event()
        if lines:
            self._wake.set()

    def tell(self, line: bytes) -> None:
        self._lines.append(line)
        self._wake.set()

    async def take(self) -> bytes:
        """All of them, as soon as there is one."""
        await self._wake.wait()
        self._wake.clear()
        lines, self._lines = self._lines, []
        return b"".join(lines)
