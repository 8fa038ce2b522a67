"""What many launches at once cost before an operator does anything: a bare client that sends their requests."""

from __future__ import annotations

import asyncio
import time

import msgspec

from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceSpec, OwnerRef
from skysail.kube.api.objects import Object
from skysail.kube.client.client import Client

_RESOURCE = CLOUD_INSTANCE.resource


async def launches(client: Client, many: int) -> list[float]:
    """Seconds of each, all at once: the claim, and the mark that somebody calls."""
    made = await asyncio.gather(*(_launch(client, number) for number in range(many)))
    await asyncio.gather(*(client.delete(_RESOURCE, claim, Object) for claim, _ in made))
    return [seconds for _, seconds in made]


async def _launch(client: Client, number: int) -> tuple[Object, float]:
    began = time.perf_counter()
    for_ = OwnerRef(kind="Pod", namespace="none", name=f"floor-{number}", uid=f"floor-{number}")
    # No cloud has this name, so that nobody launches it.
    spec = msgspec.to_builtins(CloudInstanceSpec(provider="none", owner=for_))
    metadata = {"name": f"floor-{number}"}
    manifest = {"apiVersion": _RESOURCE.api_version, "kind": _RESOURCE.kind, "metadata": metadata, "spec": spec}
    claim = await client.create(_RESOURCE, manifest, Object)
    claim = await client.patch_status(_RESOURCE, claim, {"state": "Launching"}, Object)
    return claim, time.perf_counter() - began
