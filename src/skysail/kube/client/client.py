"""Typed API client. HTTP errors become exceptions that tell the caller how to react.

A throttled read (429, or 503 with Retry-After) is retried after the requested time. A write is never retried: the
caller was allowed to write now, not a minute later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import Resource
from skysail.kube.client import errors
from skysail.kube.client.errors import NotFound, ReplyLost, ServerFault, Throttled
from skysail.kube.client.transport import APPLY_PATCH, JSON, MERGE_PATCH, NO_MAPPING, Reply, Request, Stream, Transport

FIELD_MANAGER = "skysail"

_MAX_THROTTLE_WAIT = 4
_MAX_RETRY_AFTER = 30.0
_OK = range(200, 300)
_READ = 200

Manifest = dict[str, Any]
T = TypeVar("T")


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]


class _Left(msgspec.Struct):
    """Reply to a delete: the remaining object, or a Status."""

    metadata: Meta = Meta()


class Client:
    """API client without state of its own, so that many tasks can share it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, resource: Resource, namespace: str, name: str, type_: type[T]) -> T:
        reply = await self._read(Request(method="GET", path=resource.path(namespace, name)))
        return decode_reply(reply.body, type_)

    async def find(self, resource: Resource, namespace: str, name: str, type_: type[T]) -> T | None:
        """Return the object, or None if it does not exist."""
        try:
            return await self.get(resource, namespace, name, type_)
        except NotFound:
            return None

    async def list_objects(
        self, resource: Resource, namespace: str, query: Mapping[str, str], type_: type[T]
    ) -> tuple[T, ...]:
        """Return all objects of a query, in one request. An empty namespace means all namespaces."""
        list_type: Any = _List
        objects: tuple[T, ...] = decode_reply(await self.list_page(resource, namespace, query), list_type[type_]).items
        return objects

    async def list_page(
        self, resource: Resource, namespace: str, query: Mapping[str, str], headers: Mapping[str, str] = NO_MAPPING
    ) -> bytes:
        """Return one undecoded page. The reflector decodes it with a prepared decoder."""
        request = Request(method="GET", path=resource.path(namespace), query=query, headers=headers)
        return (await self._read(request)).body

    async def watch(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> Stream:
        """Open a stream of watch events. Raises the server's error if the server does not open the stream."""
        return await self.stream(resource.path(namespace), {**query, "watch": "true"})

    async def stream(self, path: str, query: Mapping[str, str]) -> Stream:
        """Open a stream, such as a log. Raises the server's error if the server does not open the stream."""
        stream = await self._transport.open(Request(method="GET", path=path, query=query))
        if stream.status in _OK:
            return stream
        async with stream:
            body = b"".join([chunk async for chunk in stream])
        raise errors.from_reply(stream.status, body)

    async def create(self, resource: Resource, manifest: Manifest, type_: type[T], *, subresource: str = "") -> T:
        """Create an object or, with a subresource, a part of the object in the manifest, such as a token."""
        metadata = manifest.get("metadata", {})
        path = resource.path(
            metadata.get("namespace", ""), metadata.get("name", "") if subresource else "", subresource
        )
        return await self._write("POST", path, manifest, type_, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, resource: Resource, manifest: Manifest, type_: type[T], *, dry_run: bool = False) -> T:
        """Apply server-side: set the fields in the manifest, remove fields that we applied before, keep all others.

        With `dry_run` the server replies as if it applied the manifest, but writes nothing.
        """
        query = {"fieldManager": FIELD_MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return await self._write(
            "PATCH", resource.path_of(manifest), manifest, type_, query=query, content_type=APPLY_PATCH
        )

    async def replace(self, resource: Resource, manifest: Manifest, type_: type[T], *, subresource: str = "") -> T:
        """Replace an object at the resourceVersion in the manifest. Raises Conflict if the object has changed."""
        metadata = manifest["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        return await self._write("PUT", path, manifest, type_, query={"fieldManager": FIELD_MANAGER})

    async def merge_patch(self, resource: Resource, namespace: str, name: str, patch: Manifest, type_: type[T]) -> T:
        """Merge a patch. Raises Conflict if `metadata.uid` or `metadata.resourceVersion` in the patch do not match."""
        query = {"fieldManager": FIELD_MANAGER}
        path = resource.path(namespace, name)
        return await self._write("PATCH", path, patch, type_, query=query, content_type=MERGE_PATCH)

    async def patch_status(self, resource: Resource, object_: Object, status: Manifest, type_: type[T]) -> T:
        """Merge fields into the status; None removes a field. Raises Conflict if the object has changed."""
        metadata = object_.metadata
        precondition = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        patch = {"metadata": precondition, "status": status}
        query = {"fieldManager": FIELD_MANAGER}
        path = resource.path(metadata.namespace, metadata.name, "status")
        return await self._write("PATCH", path, patch, type_, query=query, content_type=MERGE_PATCH)

    async def delete(
        self, resource: Resource, object_: Object, type_: type[T], options: Mapping[str, Any] = NO_MAPPING
    ) -> T | None:
        """Delete exactly this object, by its UID. A newer object of the same name is not deleted.

        Returns the object if it remains for a while (finalizers, grace period), and None if it is gone.
        """
        metadata = object_.metadata
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata.uid},
            **options,
        }
        left = await self._write("DELETE", resource.path(metadata.namespace, metadata.name), body, msgspec.Raw)
        # Check deletionTimestamp: for some kinds the server replies with the last state of a deleted object.
        if not msgspec.json.decode(left, type=_Left).metadata.is_deleting:
            return None
        return msgspec.json.decode(left, type=type_)

    async def read(self, path: str, type_: type[T]) -> T:
        """Read a path that is not a resource, such as the version."""
        return decode_reply((await self._read(Request(method="GET", path=path))).body, type_)

    async def read_text(self, path: str, query: Mapping[str, str]) -> str:
        """Read text, such as a log. Bytes that are not UTF-8 are replaced."""
        return (await self._read(Request(method="GET", path=path, query=query))).body.decode(errors="replace")

    async def proxy(self, path: str, body: bytes | None = None) -> Reply:
        """Send a request through the API server's proxy. Returns any reply; without a body the request is a GET."""
        headers = NO_MAPPING if body is None else {"Content-Type": JSON}
        method = "GET" if body is None else "POST"
        return await self._transport.send(Request(method=method, path=path, headers=headers, body=body))

    async def _write(
        self,
        method: str,
        path: str,
        body: Any,
        type_: type[T],
        *,
        query: Mapping[str, str] = NO_MAPPING,
        content_type: str = JSON,
    ) -> T:
        headers = {"Content-Type": content_type}
        request = Request(method=method, path=path, query=query, headers=headers, body=msgspec.json.encode(body))
        try:
            return decode_reply((await self._send(request)).body, type_)
        except ServerFault as error:
            if error.is_timeout or error.status in _OK:
                raise ReplyLost(f"{method} {path}: {error}") from error
            raise

    async def _read(self, request: Request) -> Reply:
        for attempt in range(1, _MAX_THROTTLE_WAIT):
            try:
                return await self._send(request)
            except Throttled as error:
                await asyncio.sleep(min(error.retry_after or float(attempt), _MAX_RETRY_AFTER))
        return await self._send(request)

    async def _send(self, request: Request) -> Reply:
        reply = await self._transport.send(request)
        if reply.status in _OK:
            return reply
        raise errors.from_reply(reply.status, reply.body, _retry_after(reply))


def decode_reply(body: bytes, type_: type[T]) -> T:
    """Decode the body of a reply. Raises ServerFault if it cannot be decoded, such as the page of a proxy."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise ServerFault(_READ, errors.UNREADABLE, f"The reply cannot be decoded: {error}") from error


def _retry_after(reply: Reply) -> float | None:
    value = reply.headers.get("retry-after", "")
    return float(value) if value.isdigit() else None
