"""Read what a report contains from the cluster. A part that cannot be read becomes a sentence in the report."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from skysail import __version__
from skysail.app.kinds import ALL_KINDS
from skysail.base.names import Label
from skysail.cli.report import contents
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, EVENT, NODE, POD, Resource
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound, NotServed

_LOG_LINES = "5000"
_PODS = {"labelSelector": f"{Label.COMPONENT.value} in (vgpu-controllers,bridge)"}
_SETTINGS = "settings.yaml"

Files = dict[str, str]


class _ConfigMap(Object, frozen=True, gc=False):
    data: dict[str, str] = msgspec.field(default_factory=dict)


async def collect(client: Client, namespace: str) -> Files:
    """Return the files of the report by name."""
    collector = _Collector(client, namespace)
    await collector.run()
    return collector.files


class _Collector:
    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.files: Files = {}

    async def run(self) -> None:
        await self._try("versions.json", self._versions)
        for kind in ALL_KINDS:
            await self._try(f"objects/{kind.resource.crd_name}.json", self._reader(kind.resource))
        await self._try("objects/nodes.json", self._reader(NODE))
        await self._try("events.json", self._events)
        await self._try("settings.yaml", self._settings)
        await self._try("pods.json", self._pods)

    async def _try(self, name: str, read: Callable[[], Awaitable[str]]) -> None:
        try:
            self.files[name] = await read()
        except (NotFound, NotServed):
            self.files[name] = "Not found.\n"
        except KubeError as error:
            self.files[name] = f"Not readable: {error}.\n"

    async def _versions(self) -> str:
        version = await self._client.read("/version", dict[str, Any])
        return _text({"skysail": __version__, "python": platform.python_version(), "kubernetes": version})

    def _reader(self, resource: Resource) -> Callable[[], Awaitable[str]]:
        async def read() -> str:
            return _text([contents.object_row(row) for row in await self._list(resource, "", {})])

        return read

    async def _events(self) -> str:
        return _text([contents.event_row(row) for row in await self._list(EVENT, "", {})])

    async def _settings(self) -> str:
        maps = await self._client.list_objects(CONFIG_MAP, self._namespace, {}, _ConfigMap)
        return "\n".join(row.data[_SETTINGS] for row in maps if _SETTINGS in row.data)

    async def _pods(self) -> str:
        pods = await self._list(POD, self._namespace, _PODS)
        for pod in pods:
            name = pod["metadata"]["name"]
            await self._try(f"logs/{name}.log", self._log_reader(name, {}))
            if any(row.get("restartCount") for row in (pod.get("status") or {}).get("containerStatuses") or ()):
                await self._try(f"logs/{name}.previous.log", self._log_reader(name, {"previous": "true"}))
        return _text([contents.object_row(row) for row in pods])

    def _log_reader(self, name: str, query: Mapping[str, str]) -> Callable[[], Awaitable[str]]:
        path = POD.path(self._namespace, name, "log")

        async def read() -> str:
            return await self._client.read_text(path, {"tailLines": _LOG_LINES, **query})

        return read

    async def _list(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        return list(await self._client.list_objects(resource, namespace, query, dict[str, Any]))


def _text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"
