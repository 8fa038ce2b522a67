"""What runs at clouds and what it costs, for `skysail status`. Computed here: nobody writes a cost while it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.names import SIMULATED, Condition, Label
from skysail.claims.plan.status import cost
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NODE
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport


class NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """`container_runtime_version` is `<cloud>://<account>` on a node that stands for a cloud."""

    container_runtime_version: str = ""


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    node_info: NodeInfo = NodeInfo()
    conditions: tuple[dict[str, Any], ...] = ()


class CloudNode(Object, frozen=True):
    status: NodeStatus = NodeStatus()


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """At one cloud, by the claims that are there. `outage` is a sentence, empty where the cloud can be reached.

    `strays` is one, too: what runs there without a claim, and so is in none of the sums.
    `unknown` are launches whose answer is awaited or lost: they may run, and cost.
    """

    cloud: str
    node: str
    is_simulated: bool
    outage: str
    strays: str
    live: int
    unknown: int
    usd_per_hour: float
    usd: float


class _Nodes(msgspec.Struct):
    items: list[CloudNode]


class _Claims(msgspec.Struct):
    items: list[CloudInstance]


async def read(path: Path, now: float) -> list[Spending]:
    """As the cluster tells it now."""
    transport = HttpTransport(kubeconfig.from_file(path))
    try:
        client = Client(transport)
        virtual = f"{NODE.path()}?labelSelector={Label.TYPE.value}%3Dvirtual-kubelet"
        nodes, claims = await asyncio.gather(
            client.read(virtual, _Nodes), client.read(CLOUD_INSTANCE.resource.path(), _Claims)
        )
    finally:
        await transport.close()
    return [of(node, claims.items, now) for node in nodes.items]


def of(node: CloudNode, claims: Iterable[CloudInstance], now: float) -> Spending:
    cloud, _, account = node.status.node_info.container_runtime_version.partition("://")
    ours = [claim.status for claim in claims if claim.spec.provider == cloud]
    live = [status for status in ours if status.instance_id and status.state != "Terminated"]
    return Spending(
        cloud=cloud,
        node=node.metadata.name,
        is_simulated=account == SIMULATED,
        outage=_outage(node),
        strays=_strays(node),
        live=len(live),
        unknown=sum(status.state in {"Launching", "Unknown"} for status in ours),
        usd_per_hour=sum(status.usd_per_hour or 0.0 for status in live),
        usd=sum(cost(status, now) if status.usd_total is None else status.usd_total for status in ours),
    )


def _outage(node: CloudNode) -> str:
    told = next((row for row in node.status.conditions if row["type"] == Condition.CLOUD_REACHABLE), None)
    if told is None:
        return "Nothing is known of it yet."
    return "" if told["status"] == "True" else told["message"]


def _strays(node: CloudNode) -> str:
    told = next((row for row in node.status.conditions if row["type"] == Condition.INSTANCES_CLAIMED), None)
    return told["message"] if told is not None and told["status"] == "False" else ""
