"""Nodes that only pretend: KWOK's controller says of every pod that is bound to one of them that it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.peers import login
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NODE
from skysail.kube.client.client import Client
from skysail.local.cluster.control_client import Control
from skysail.local.cluster.home import Home
from skysail.local.cluster.supervisor import Unit
from tests.support.programs import GoProgram

PROGRAM = GoProgram(Path(__file__).parent / "kwok", "sigs.k8s.io/kwok/cmd/kwok")
_MODULE = "sigs.k8s.io/kwok"
# Its own, without the one by which a Job's pod is done as soon as it runs.
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml")
_NODES = 10
# Outside the local cluster's own network, and large enough for all pods.
_ADDRESSES = "10.64.0.0/16"


async def start(home: Home, client: Client) -> None:
    """The controller, and its nodes. They are ready soon afterwards."""
    unit = await asyncio.to_thread(_unit, home)
    await asyncio.to_thread(Control(home.control).start_unit, unit)
    for number in range(_NODES):
        await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"kwok-{number}"}}, Object)


def _unit(home: Home) -> Unit:
    stages = PROGRAM.sources(_MODULE) / "kustomize" / "stage"
    flags = (
        f"--kubeconfig={login.write(home, 'kwok')}",
        "--manage-all-nodes",
        "--v=WARN",
        "--node-lease-duration-seconds=40",
        f"--cidr={_ADDRESSES}",
        *(f"--config={stages / stage}" for stage in _STAGES),
    )
    return Unit(name="kwok", argv=(str(PROGRAM.binary()), *flags))
