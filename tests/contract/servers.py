"""The two servers under one contract: the model in this process, and a real control plane."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from skysail.kube.api.resources import CRD, NAMESPACE, SERVICE_ACCOUNT
from skysail.kube.client import kubeconfig
from skysail.kube.client.http_transport import HttpTransport
from tests.contract.api_dsl import GADGET, GROUP, WIDGET, Api, Object
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from skysail.kube.api.resources import Resource

_TIMEOUT_SECONDS = 600.0


class Server(Protocol):
    """Runs one case in an empty namespace of its own."""

    def run(self, case: Callable[[Api], Awaitable[None]]) -> None: ...


class ModelServer:
    """`world` is the class of the world, so that a broken one can be put to the same test."""

    def __init__(self, world: Callable[[], World] = World) -> None:
        self._world = world

    def run(self, case: Callable[[Api], Awaitable[None]]) -> None:
        virtual_time.run(self._run(case))

    async def _run(self, case: Callable[[Api], Awaitable[None]]) -> None:
        world = self._world()

        async def compact() -> None:
            world.compact()

        async with asyncio.timeout(_TIMEOUT_SECONDS):
            api = Api(ApiModel(world), "contract", compact)
            await _prepare(api)
            await case(api)


class Cluster(Protocol):
    """What is wanted of the `cluster` fixture."""

    @property
    def kubeconfig(self) -> Path: ...

    def compact(self) -> None:
        """Make etcd forget its past."""


class PlaneServer:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(self, case: Callable[[Api], Awaitable[None]]) -> None:
        asyncio.run(self._run(case))

    async def _run(self, case: Callable[[Api], Awaitable[None]]) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS), self._connected() as transport:
            api = Api(transport, f"contract-{uuid.uuid4().hex[:12]}", self._compact)
            await _prepare(api)
            # Pods are refused until the controller manager has made the service account of a new namespace.
            await api.until(SERVICE_ACCOUNT, "default", lambda obj: obj is not None)
            await case(api)
            await api.delete(NAMESPACE, api.namespace)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[HttpTransport]:
        transport = HttpTransport(kubeconfig.from_file(self._cluster.kubeconfig))
        try:
            yield transport
        finally:
            await transport.close()

    async def _compact(self) -> None:
        await asyncio.to_thread(self._cluster.compact)


async def _prepare(api: Api) -> None:
    for resource in (WIDGET, GADGET):
        answer = await api.create(CRD, _definition(resource))
        assert answer.status == 201 or answer.body["reason"] == "AlreadyExists", answer.body
        await api.until(CRD, resource.crd_name, _is_established)
        # A moment passes between "Established" and the first answer.
        while (await api.list(resource)).status == 404:  # noqa: ASYNC110 (the server tells nobody)
            await asyncio.sleep(0.05)
    (await api.create(NAMESPACE, {"metadata": {"name": api.namespace}})).ok  # noqa: B018 (asserts)


def _is_established(crd: Object | None) -> bool:
    conditions = crd.get("status", {}).get("conditions") if crd else None
    return any(row["type"] == "Established" and row["status"] == "True" for row in conditions or ())


def _definition(resource: Resource) -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    condition = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
    conditions = {
        "type": "array",
        "items": {**condition, "x-kubernetes-preserve-unknown-fields": True},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    schema = {
        "type": "object",
        "properties": {"spec": free, "status": {**free, "properties": {"conditions": conditions}}},
    }
    version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "metadata": {"name": resource.crd_name},
        "spec": {
            "group": GROUP,
            "names": {"plural": resource.plural, "kind": resource.kind, "singular": resource.kind.lower()},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
