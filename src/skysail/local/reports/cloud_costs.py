"""Instances at clouds and their cost, for `skysail status`.

Computed on demand, because a running cost is not written to any object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from skysail.base.names import ACCOUNT_REAL, ACCOUNT_SIMULATED, ACCOUNT_STAND_IN, Condition, Label
from skysail.claims.plan.status import accrued_cost
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NODE
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport


class NodeInfo(msgspec.Struct, frozen=True, rename="camel"):
    """`container_runtime_version` is `<cloud>://<account>` on the node of a cloud."""

    container_runtime_version: str = ""


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    node_info: NodeInfo = NodeInfo()
    conditions: tuple[dict[str, Any], ...] = ()


class CloudNode(Object, frozen=True):
    status: NodeStatus = NodeStatus()


_ACCOUNTS = {ACCOUNT_REAL: "real", "": "unknown"}


class CloudCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Instances and costs at one cloud, from its claims.

    `account` is `simulated`, `stand-in` or `real`; at a real account alone something is paid.
    `outage` is a sentence, empty if the cloud is reachable.
    `orphans` is a sentence about instances without a claim, which no sum contains.
    `unknown` counts launches with an unknown outcome: their instances may run, and cost.
    """

    cloud: str
    node: str
    account: str
    outage: str
    orphans: str
    live: int
    unknown: int
    usd_per_hour: float
    usd: float

    @property
    def is_free(self) -> bool:
        return self.account in {ACCOUNT_SIMULATED, ACCOUNT_STAND_IN}


class _Nodes(msgspec.Struct):
    items: list[CloudNode]


class _Claims(msgspec.Struct):
    items: list[CloudInstance]


async def read(path: Path, now: float) -> list[CloudCosts]:
    """Return the costs by cloud, from the cluster's current objects."""
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


def of(node: CloudNode, claims: Iterable[CloudInstance], now: float) -> CloudCosts:
    cloud, _, account = node.status.node_info.container_runtime_version.partition("://")
    ours = [claim.status for claim in claims if claim.spec.provider == cloud]
    live = [status for status in ours if status.instance_id and status.state != "Terminated"]
    return CloudCosts(
        cloud=cloud,
        node=node.metadata.name,
        account=_ACCOUNTS.get(account, account),
        outage=_outage(node),
        orphans=_orphans(node),
        live=len(live),
        unknown=sum(status.state in {"Launching", "Unknown"} for status in ours),
        usd_per_hour=sum(status.usd_per_hour or 0.0 for status in live),
        usd=sum(accrued_cost(status, now) if status.usd_total is None else status.usd_total for status in ours),
    )


def _outage(node: CloudNode) -> str:
    condition = next((row for row in node.status.conditions if row["type"] == Condition.CLOUD_REACHABLE), None)
    if condition is None:
        return "No status reported yet."
    return "" if condition["status"] == "True" else condition["message"]


def _orphans(node: CloudNode) -> str:
    condition = next((row for row in node.status.conditions if row["type"] == Condition.NO_ORPHANED_INSTANCES), None)
    return condition["message"] if condition is not None and condition["status"] == "False" else ""
