"""Addresses of the bridge's own pods."""

from __future__ import annotations

import asyncio
import random

from skysail.claims.bridging.bridge_addresses import BridgeAddresses
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE, POD
from skysail.kube.cache.gc_tuning import GcTuner
from skysail.kube.cache.informers import Informers
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

LABELS = {"app.kubernetes.io/component": "bridge"}


def test_pods_of_the_bridge_are_found_if_the_operator_watches_other_namespaces() -> None:
    virtual_time.run(_watch_other_namespaces())


async def _watch_other_namespaces() -> None:
    client = Client(ApiModel(World(), "user"))
    for number, namespace in enumerate(("skysail-system", "team"), 1):
        await client.create(NAMESPACE, {"metadata": {"name": namespace}}, Object)
        status = {"podIP": f"10.0.0.{number}", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": "bridge", "namespace": namespace, "labels": LABELS}
        await client.patch_status(POD, await client.create(POD, {"metadata": metadata}, Object), status, Object)
    addresses = BridgeAddresses(None, "skysail-system")
    informers = Informers(client, namespaces=("team",), list_observer=GcTuner(), rng=random.Random(0))
    for cache in addresses.caches:
        informers.add_built_in(cache)
    running = asyncio.get_running_loop().create_task(informers.run())
    await addresses.pods.synced.wait()
    assert [pod.metadata.namespace for pod in addresses.pods.all()] == ["skysail-system"]
    assert addresses.current == ("10.0.0.1",)
    running.cancel()


def test_configured_addresses_may_be_several() -> None:
    addresses = BridgeAddresses("10.0.0.2, 10.0.0.1", "skysail-system")
    assert addresses.current == ("10.0.0.1", "10.0.0.2")
    assert addresses.caches == ()
