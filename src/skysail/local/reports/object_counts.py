"""Number of objects of every custom kind in the cluster, for `skysail status`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport


class _Names(msgspec.Struct):
    kind: str
    plural: str


class _Version(msgspec.Struct):
    name: str
    served: bool


class _Spec(msgspec.Struct):
    group: str
    names: _Names
    versions: list[_Version]

    @property
    def served(self) -> str | None:
        """Return a served version, with which objects can be counted. Returns None if there is none."""
        return next((version.name for version in self.versions if version.served), None)


class _Definition(msgspec.Struct):
    spec: _Spec


class _Definitions(msgspec.Struct):
    items: list[_Definition]


class _PageMetadata(msgspec.Struct):
    remainingItemCount: int = 0  # noqa: N815 (wire name)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: _PageMetadata


async def count_objects(path: Path) -> dict[str, int]:
    """Return the number of objects by kind. One short request per kind, independent of the number of objects."""
    transport = HttpTransport(kubeconfig.from_file(path))
    try:
        client = Client(transport)
        defined = await client.read("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _Definitions)
        specs = [definition.spec for definition in defined.items if definition.spec.served]
        counts = await asyncio.gather(*(_count(client, spec) for spec in specs))
    finally:
        await transport.close()
    return {f"{spec.names.kind}.{spec.group}": count for spec, count in zip(specs, counts, strict=True)}


async def _count(client: Client, spec: _Spec) -> int:
    page = await client.read(f"/apis/{spec.group}/{spec.served}/{spec.names.plural}?limit=1", _Page)
    return len(page.items) + page.metadata.remainingItemCount
