"""How the cases talk to an API server: short sentences over `kube.transport`, in one namespace of their own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.kube.api.resources import Resource
from skysail.kube.client.transport import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, Reply, Request, Stream, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

Object = dict[str, Any]

# A server that begins to serve a kind asks for patience until it knows all that is there.
_NOT_NOW = 429
_RETRY_SECONDS = 0.1

GROUP = "contract.skysail.dev"
WIDGET = Resource(GROUP, "v1", "widgets", "Widget")
GADGET = Resource(GROUP, "v1", "gadgets", "Gadget", namespaced=False)


class Answer(msgspec.Struct, frozen=True):
    """What the server said."""

    status: int
    body: Any

    @property
    def ok(self) -> Any:
        assert self.status in range(200, 300), self.body
        return self.body

    def is_refused(self, status: int, reason: str) -> bool:
        return (self.status, self.body.get("reason")) == (status, reason)


class Api:
    """One client. `namespace` is empty at the start and nobody else's."""

    def __init__(self, transport: Transport, namespace: str, compact: Callable[[], Awaitable[None]]) -> None:
        self.transport = transport
        self.namespace = namespace
        self.compact = compact

    async def create(self, resource: Resource, manifest: Object, namespace: str | None = None, **query: str) -> Answer:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        return await self.send("POST", self._path(resource, namespace=namespace), body, query=query)

    async def get(self, resource: Resource, name: str) -> Answer:
        return await self.send("GET", self._path(resource, name))

    async def list(self, resource: Resource, *, accept: str = JSON, **query: str) -> Answer:
        path = self._path(resource)
        return await self.send("GET", path, query=query, headers={"Accept": accept})

    async def put(self, resource: Resource, manifest: Object, subresource: str = "", **query: str) -> Answer:
        path = self._path(resource, manifest["metadata"]["name"], subresource)
        return await self.send("PUT", path, manifest, query=query)

    async def merge(self, resource: Resource, name: str, patch: Object, subresource: str = "", **query: str) -> Answer:
        path = self._path(resource, name, subresource)
        return await self.send("PATCH", path, patch, query=query, content_type=MERGE_PATCH)

    async def edit(self, resource: Resource, name: str, *operations: Object) -> Answer:
        return await self.send("PATCH", self._path(resource, name), operations, content_type=JSON_PATCH)

    async def apply(
        self, resource: Resource, manifest: Object, manager: str, subresource: str = "", **query: str
    ) -> Answer:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        path = self._path(resource, manifest["metadata"]["name"], subresource)
        query = {"fieldManager": manager, **query} if manager else query
        return await self.send("PATCH", path, body, query=query, content_type=APPLY_PATCH)

    async def delete(self, resource: Resource, name: str, options: Object | None = None, **query: str) -> Answer:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **(options or {})}
        return await self.send("DELETE", self._path(resource, name), body, query=query)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        content_type: str = JSON,
    ) -> Answer:
        request = Request(
            method=method,
            path=path,
            query=query or {},
            headers={"Content-Type": content_type, **(headers or {})},
            body=None if body is None else msgspec.json.encode(body),
        )
        while (reply := await self.transport.send(request)).status == _NOT_NOW:  # noqa: ASYNC110 (nobody tells when)
            await asyncio.sleep(_RETRY_SECONDS)
        return _answer(reply)

    @asynccontextmanager
    async def watch(self, resource: Resource, **query: str) -> AsyncIterator[AsyncIterator[Object]]:
        request = Request(method="GET", path=self._path(resource), query={"watch": "true", **query})
        while (stream := await self.transport.open(request)).status == _NOT_NOW:
            async with stream:
                await asyncio.sleep(_RETRY_SECONDS)
        async with stream:
            assert stream.status == 200, b"".join([chunk async for chunk in stream])
            yield _events(stream)

    async def version(self, resource: Resource) -> str:
        """Where a watch starts that shall see everything from now on."""
        version: str = (await self.list(resource)).ok["metadata"]["resourceVersion"]
        return version

    async def until(self, resource: Resource, name: str, reached: Callable[[Object | None], bool]) -> None:
        """Wait for a state of one object; None stands for absent."""
        selector = f"metadata.name={name}"
        while True:
            found = (await self.list(resource, fieldSelector=selector)).ok
            if reached(found["items"][0] if found["items"] else None):
                return
            since = found["metadata"]["resourceVersion"]
            async with self.watch(resource, fieldSelector=selector, resourceVersion=since) as events:
                async for event in events:
                    if reached(None if event["type"] == "DELETED" else event["object"]):
                        return

    async def until_gone(self, resource: Resource, name: str) -> None:
        await self.until(resource, name, lambda obj: obj is None)

    async def until_page(self, path: str, reached: Callable[[Any], bool]) -> Any:
        """Ask until what is there is so; it is written by a part of the server that tells nobody."""
        while not reached(page := (await self.send("GET", path)).body):  # noqa: ASYNC110 (as it says)
            await asyncio.sleep(_RETRY_SECONDS)
        return page

    async def widget(self, name: str = "one", spec: Object | None = None, **metadata: Any) -> Object:
        """Make the object that most cases are about."""
        created: Object = (await self.create(WIDGET, widget(name, spec, **metadata))).ok
        return created

    def _path(self, resource: Resource, name: str = "", subresource: str = "", namespace: str | None = None) -> str:
        return resource.path(self.namespace if namespace is None else namespace, name, subresource)


def widget(name: str = "one", spec: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": {"size": 1} if spec is None else spec}


def config_map(name: str, data: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "data": data or {}}


def owned_by(owner: Object, **more: Any) -> list[Object]:
    row = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return [{**row, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], **more}]


def version_of(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])


def _answer(reply: Reply) -> Answer:
    try:
        return Answer(reply.status, msgspec.json.decode(reply.body))
    except msgspec.DecodeError:
        return Answer(reply.status, {"message": reply.body.decode()})


async def _events(stream: Stream) -> AsyncIterator[Object]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line)
