from __future__ import annotations

import asyncio
from typing import Any

from skysail.cli.report import collector
from skysail.kube.api.resources import POD
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World


def pod(name: str, component: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app.kubernetes.io/component": component}}
    spec = {"containers": [{"name": "c", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_collect_reads_logs_of_operator_and_bridge_and_of_no_other_pod():
    async def files() -> dict[str, str]:
        client = Client(ApiModel(World([POD])))
        for name, component in (("operator", "vgpu-controllers"), ("bridge", "bridge"), ("other", "app")):
            manifest = pod(name, component)
            manifest["metadata"]["namespace"] = "default"
            await client.create(POD, manifest, dict)
        collecting = collector._Collector(client, "default")
        await collecting._pods()
        return collecting.files

    found = asyncio.run(files())
    assert {name for name in found if name.startswith("logs/")} == {"logs/bridge.log", "logs/operator.log"}
