"""Many claims that live and do not change: what one tick of the operator costs then. Steady state writes nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import msgspec

from bench import clouds_account, process
from bench.at_once import each
from bench.clouds_seen import manifest
from bench.writes import written
from skysail.base.names import Finalizer
from skysail.claims.types import CLOUD_INSTANCE, CloudInstanceSpec, OwnerRef
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.cloud.simulated.vendors import MODAL
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import NAMESPACE, POD
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.cluster.home import Home

_TICKS = 5
# Until everything has been looked at again after the start.
_SETTLE_SECONDS = 10.0


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What one costs: processor seconds, and MB at its end."""

    cpu: float
    memory: float
    listings: float
    writes: float


async def tick(home: Home, pid: int, transport: HttpTransport) -> Tick:
    """The mean of some. Leases are the only writes that a quiet cluster makes, and are left out."""
    await asyncio.sleep(_SETTLE_SECONDS)
    counter = clouds_account.listings(home)
    cpu, listings, writes = process.cpu_of(pid), counter.stat().st_size, await _changes(transport)
    await asyncio.sleep(_TICKS * MODAL.terms.poll_interval)
    if counter.stat().st_size == listings:
        raise RuntimeError("The operator did not ask the cloud at all: it does not lead. Is the machine too busy?")
    return Tick(
        cpu=(process.cpu_of(pid) - cpu) / _TICKS,
        memory=process.memory(pid),
        listings=(counter.stat().st_size - listings) / _TICKS,
        writes=(await _changes(transport) - writes) / _TICKS,
    )


async def claim(client: Client, home: Home, space: str, many: int) -> list[str]:
    """So many pods whose instances run already, with their claims, while neither cloud nor operator are there."""
    cluster = (await client.get(NAMESPACE, "", "kube-system", Object)).metadata.uid
    keys = [Key(space, f"live-{number}") for number in range(many)]
    pods = await each(keys, lambda key: client.create(POD, manifest(key, "run=10h"), Object))
    ids = _begin(home, cluster, [f"{pod.metadata.uid}-0" for pod in pods])
    await each(pods, lambda pod: _claim(client, pod, ids[f"{pod.metadata.uid}-0"]))
    return [pod.metadata.uid for pod in pods]


def _begin(home: Home, cluster: str, names: list[str]) -> dict[str, str]:
    """Instances at the cloud, by claim; without an end of their own."""
    ledger = Ledger.open(clouds_account.ledger(home), mark="live")
    ids = {name: f"{MODAL.name}-live-{number}" for number, name in enumerate(names)}
    now = time.time()
    for name, id_ in ids.items():
        begun = Row(at=now, verb="create", instance=id_, claim=name, cluster=cluster, region=MODAL.region, usd=0.1)
        ledger.write(begun)
        ledger.write(msgspec.structs.replace(begun, verb="started"))
    ledger.close()
    return ids


async def _claim(client: Client, pod: Object, instance: str) -> None:
    meta, resource, now = pod.metadata, CLOUD_INSTANCE.resource, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for_ = OwnerRef(kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid, container="main")
    spec = msgspec.to_builtins(CloudInstanceSpec(provider=MODAL.name, owner=for_))
    metadata = {"name": f"{meta.uid}-0", "finalizers": [Finalizer.CLAIM]}
    made = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    status = {"state": "Running", "instanceId": instance, "usdPerHour": 0.1, "startTime": now, "readyTime": now}
    await client.patch_status(resource, await client.create(resource, made, Object), status, Object)


async def _changes(transport: HttpTransport) -> int:
    return sum(count for write, count in (await written(transport)).items() if write.resource != "leases")
