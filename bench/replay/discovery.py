"""Which kinds the replay server has, told as an API server tells it. Kopf asks before it watches."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from bench.replay.world import World
from skysail.kube.api.resources import Resource
from skysail.kube.client.transport import JSON

_VERBS = ["get", "list", "watch", "update", "patch"]


class Discovery:
    def __init__(self, world: World) -> None:
        self._by_root: dict[str, list[Resource]] = {}
        for collection in world.collections:
            self._by_root.setdefault(collection.resource.path().rpartition("/")[0], []).append(collection.resource)

    @property
    def roots(self) -> list[str]:
        """The path of each group and version."""
        return list(self._by_root)

    async def versions(self, _: web.Request) -> web.Response:
        return _reply({"kind": "APIVersions", "versions": ["v1"]})

    async def groups(self, _: web.Request) -> web.Response:
        groups = []
        for first, *_others in self._by_root.values():
            if first.group:
                version = {"groupVersion": first.api_version, "version": first.version}
                groups.append({"name": first.group, "versions": [version], "preferredVersion": version})
        return _reply({"kind": "APIGroupList", "groups": groups})

    async def resources(self, request: web.Request) -> web.Response:
        served = self._by_root[request.path]
        rows = [row for resource in served for row in (_row(resource, ""), _row(resource, "/status"))]
        return _reply({"kind": "APIResourceList", "groupVersion": served[0].api_version, "resources": rows})


def _row(resource: Resource, part: str) -> dict[str, Any]:
    return {
        "name": resource.plural + part,
        "singularName": resource.kind.lower(),
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "verbs": _VERBS,
    }


def _reply(body: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode({"apiVersion": "v1", **body}), content_type=JSON)
