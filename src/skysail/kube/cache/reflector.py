"""Reflector: lists once, then watches for ever, to keep one cache equal to the API server.

Errors are never fatal: the reflector retries with backoff. Events that a watch missed, including deletions, are found
by the list that follows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Generic, TypeVar

import msgspec

from skysail.base.backoff import Backoff
from skysail.kube.api.objects import Key, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client import errors
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Expired, Forbidden, KubeError, NotFound, NotServed, ServerFault, Throttled
from skysail.kube.client.transport import Stream

_CHUNK = "500"
# Timeout of a silent watch. The server sends a bookmark about every minute, so a longer silence means a dead
# connection, for example one that a load balancer dropped.
_SILENCE_SECONDS = 75.0
_WATCH_SECONDS = (300, 600)

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Object)


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Raw(msgspec.Struct):
    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class _Bookmark(msgspec.Struct, tag="BOOKMARK", tag_field="type"):
    object: Object


class _Failed(msgspec.Struct, tag="ERROR", tag_field="type"):
    object: errors.Status


class _Deleted(msgspec.Struct, tag="DELETED", tag_field="type"):
    object: Object


class ListObserver:
    """Hooks at the start and end of a list, to pause the garbage collector in between."""

    def began(self) -> None: ...

    def ended(self, objects: int) -> None:
        """Handle the end of a list, also of a failed one. `objects` is the number of listed objects."""


class Reflector(Generic[T]):
    """Keeps `cache` current. One reflector per kind and namespace."""

    def __init__(
        self,
        client: Client,
        cache: Cache[T],
        *,
        namespace: str = "",
        list_observer: ListObserver | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._namespace = namespace
        self._list_observer = list_observer or ListObserver()
        self._rng = rng or random.Random()  # noqa: S311 (jitter, no secret)
        self._backoff = Backoff(first=0.5, longest=30.0, rng=self._rng)
        self._stale = asyncio.Event()
        self._deadline: asyncio.Timeout | None = None
        self._is_idle = True
        self.lists = 0
        self.watches = 0
        self._page_decoder = msgspec.json.Decoder(_page_type(cache.type))
        self._event_decoder = msgspec.json.Decoder(_event_type(cache.type))

    async def run(self) -> None:
        """List and watch until cancelled."""
        resource_version = ""
        while True:
            try:
                if not resource_version or self._stale.is_set():
                    resource_version = ""
                    resource_version = await self._list()
                resource_version = await self._watch(resource_version)
                if self._is_idle:
                    # Back off after a stream without events: the server is shutting down, or a proxy answers instead.
                    await self._pause()
            except Expired:
                resource_version = ""
                await self._pause()
            except (KubeError, TimeoutError, msgspec.MsgspecError) as error:
                if self._stale.is_set():
                    continue
                self._log_error(error)
                if isinstance(error, (Forbidden, NotFound, NotServed, msgspec.MsgspecError)):
                    resource_version = ""
                await self._pause(error.retry_after if isinstance(error, Throttled) else None)

    def relist(self) -> None:
        """Stop the watch and list again, because an audit found a difference."""
        self._stale.set()
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _pause(self, at_least: float | None = None) -> None:
        await asyncio.sleep(max(at_least or 0.0, self._backoff.next()))

    def _log_error(self, error: Exception) -> None:
        kind = self._cache.resource.crd_name
        level = logging.WARNING if self._backoff.failures else logging.INFO
        log.log(level, "watch failed, retried", extra={"kind": kind, "why": str(error) or type(error).__name__})

    async def _list(self) -> str:
        self.lists += 1
        self._stale.clear()
        begun = self._cache.begin_list()
        objects: list[T] = []
        self._list_observer.began()
        try:
            query = {"limit": _CHUNK, **self._cache.selector}
            while True:
                body = await self._client.list_page(self._cache.resource, self._namespace, query)
                metadata, items = self._read_page(body)
                objects += items
                if not metadata.continue_:
                    break
                query = {**query, "continue": metadata.continue_}
            version = _number(metadata.resource_version)
            self._cache.replace(objects, version, begun=begun, namespace=self._namespace)
        finally:
            self._list_observer.ended(len(objects))
        return metadata.resource_version

    def _read_page(self, body: bytes) -> tuple[ListMeta, list[T]]:
        try:
            page = self._page_decoder.decode(body)
        except msgspec.ValidationError:
            return self._read_page_one_by_one(body)
        return page.metadata, page.items or []

    def _read_page_one_by_one(self, body: bytes) -> tuple[ListMeta, list[T]]:
        """Decode objects one by one, so that an undecodable object does not hide the others."""
        page = msgspec.json.decode(body, type=_Raw)
        items = []
        for raw in page.items or ():
            try:
                items.append(msgspec.json.decode(raw, type=self._cache.type))
            except msgspec.ValidationError as error:
                self._ignored(msgspec.json.decode(raw, type=Object).metadata.key, error)
        return page.metadata, items

    async def _watch(self, resource_version: str) -> str:
        """Follow one stream to its end. Returns the resourceVersion where the next one starts."""
        self.watches += 1
        self._is_idle = True
        query = {
            **self._cache.selector,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(*_WATCH_SECONDS)),
        }
        try:
            async with asyncio.timeout(_SILENCE_SECONDS) as self._deadline:
                async with await self._client.watch(self._cache.resource, self._namespace, query) as stream:
                    return await self._follow(stream, self._deadline, resource_version)
        finally:
            self._deadline = None

    async def _follow(self, stream: Stream, deadline: asyncio.Timeout, resource_version: str) -> str:
        loop = asyncio.get_running_loop()
        rest = b""
        async for chunk in stream:
            deadline.reschedule(loop.time() + _SILENCE_SECONDS)
            *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
            for line in lines:
                resource_version = self._handle_event(line) or resource_version
                if self._is_idle:
                    self._is_idle = False
                    self._backoff.reset()
        return resource_version

    def _handle_event(self, line: bytes) -> str:
        if not line:
            return ""
        try:
            event = self._event_decoder.decode(line)
        except msgspec.ValidationError as error:
            return self._skip_undecodable(line, error)
        if isinstance(event, _Failed):
            raise errors.from_status(event.object)
        if isinstance(event, _Deleted):
            self._cache.remove(event.object)
        elif not isinstance(event, _Bookmark):
            self._cache.put(event.object)
        return str(event.object.metadata.resource_version)

    def _skip_undecodable(self, line: bytes, error: msgspec.ValidationError) -> str:
        metadata = msgspec.json.decode(line, type=_AnyEvent).object.metadata
        self._ignored(metadata.key, error)
        return metadata.resource_version

    def _ignored(self, key: Key, error: msgspec.ValidationError) -> None:
        self._cache.mark_undecodable(key)
        kind = self._cache.resource.crd_name
        log.warning("object undecodable, ignored", extra={"kind": kind, "object": str(key), "why": str(error)})


class _AnyEvent(msgspec.Struct):
    object: Object


def _number(resource_version: str) -> int:
    if not resource_version.isdigit():
        raise ServerFault(
            200, errors.UNREADABLE, f"The list has resourceVersion {resource_version!r}, which is not a number."
        )
    return int(resource_version)


def _page_type(type_: type[T]) -> type[Any]:
    return msgspec.defstruct("Page", [("metadata", ListMeta), ("items", list[type_] | None, None)])  # type: ignore[valid-type]


def _event_type(type_: type[T]) -> Any:
    """Return the five watch events as one tagged union, so that a line is decoded in one pass."""
    fields = [("object", type_)]
    added, modified = (msgspec.defstruct(tag, fields, tag=tag, tag_field="type") for tag in ("ADDED", "MODIFIED"))
    return added | modified | _Deleted | _Bookmark | _Failed
