"""The verbs of one kind: list in pages, watch, get, and writes of the status."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from bench.replay.world import Collection, Edit, Expired, Manifest, World
from skysail.kube.client.transport import JSON, MERGE_PATCH

_BOOKMARK_SECONDS = 30.0


class _Conflict(Exception):
    """The writer saw an older object."""


class Door:
    """Counts what it is asked, because the number of requests is a figure, too."""

    def __init__(self, world: World, collection: Collection) -> None:
        self._world = world
        self._collection = collection

    async def list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") in {"true", "1"}:
            return await self._watch(request)
        self._world.counts["list"] += 1
        page = self._collection.page(int(request.query.get("limit", 0)), request.query.get("continue", ""))
        return web.Response(body=page, content_type=JSON)

    async def get(self, request: web.Request) -> web.Response:
        self._world.counts["get"] += 1
        body = self._collection.get(request.match_info["name"])
        return _failure(404, "NotFound") if body is None else web.Response(body=body, content_type=JSON)

    async def update_status(self, request: web.Request) -> web.Response:
        self._world.counts["update status"] += 1
        sent = msgspec.json.decode(await request.read())

        def edit(manifest: Manifest) -> Manifest:
            if sent["metadata"].get("resourceVersion") != manifest["metadata"]["resourceVersion"]:
                raise _Conflict
            return {**manifest, "status": sent.get("status", {})}

        return self._change(request.match_info["name"], edit)

    async def patch_status(self, request: web.Request) -> web.Response:
        self._world.counts["patch status"] += 1
        if request.content_type != MERGE_PATCH:
            return _failure(415, "UnsupportedMediaType")
        status = msgspec.json.decode(await request.read()).get("status", {})
        return self._change(
            request.match_info["name"],
            lambda manifest: {**manifest, "status": _merged(manifest.get("status", {}), status)},
        )

    def _change(self, name: str, edit: Edit) -> web.Response:
        if self._collection.get(name) is None:
            return _failure(404, "NotFound")
        try:
            return web.Response(body=self._collection.change(name, edit), content_type=JSON)
        except _Conflict:
            return _failure(409, "Conflict")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self._world.counts["watch"] += 1
        try:
            with self._collection.watch(int(request.query.get("resourceVersion") or 0)) as watch:
                response = web.StreamResponse(headers={"Content-Type": JSON})
                await response.prepare(request)
                while True:
                    try:
                        lines = await asyncio.wait_for(watch.take(), _BOOKMARK_SECONDS)
                    except TimeoutError:
                        lines = self._collection.bookmark()
                    await response.write(lines)
        except Expired:
            return _failure(410, "Expired")


def _failure(code: int, reason: str) -> web.Response:
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return web.Response(status=code, body=msgspec.json.encode(status), content_type=JSON)


def _merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch: None removes, objects are merged, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
