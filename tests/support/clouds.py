"""Simulated clouds on a real plane: how pods get there, and the ledgers, which say what was paid for."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.app import simulated_clouds
from skysail.base.settings import Settings
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Row
from skysail.cloud.simulated.vendors import VENDORS
from skysail.local import addresses
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials
from skysail.local.errors import Refused
from tests.conformance.account_harness import AccountHarness
from tests.support.kubectl import TIMEOUT, Manifest, get, ok

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from skysail.cloud.simulated.ledger import Verb
    from tests.support.cluster import Cluster

NODES = {"modal": "modal.com", "runpod": "runpod-virtual-node"}
TAINTS = {"modal": "modal-operator.io/virtual", "runpod": "runpod.io/virtual"}


def flags(cluster: Cluster, socket: Path | None = None) -> tuple[str, ...]:
    """What an operator is told so that it has nodes for the simulated clouds of the agent, as `skysail up` tells it."""
    simulated_clouds.token(cluster.home)
    return (*node_flags(cluster), *_account_flags(cluster, socket))


def node_flags(cluster: Cluster) -> tuple[str, ...]:
    """What an operator is told about the servers of its nodes and its data."""
    home = cluster.home
    return (
        f"--node-address={addresses.CLUSTER_IP}",
        f"--node-certificate={home.pki / 'node.crt'}",
        f"--node-key={home.pki / 'node.key'}",
        f"--data-dir={home.root / 'clouds'}",
        f"--bridge-address={addresses.CLUSTER_IP}",
    )


def _account_flags(cluster: Cluster, socket: Path | None = None) -> tuple[str, ...]:
    home = cluster.home
    return (
        f"--simulated-cloud-url={socket or home.simulated_clouds}",
        f"--simulated-cloud-token-file={home.root / 'simulated' / 'token'}",
    )


def start_bridge(
    cluster: Cluster,
    name: str = "bridge",
    *,
    host: str = addresses.CLUSTER_IP,
    env: Mapping[str, str] | None = None,
) -> None:
    """The bridge as `skysail up` starts it, restarted when it is killed. Returns when it is ready.

    `env` points to stand-ins of clouds. Without it, the bridge has the accounts of the simulated clouds.
    """
    login = credentials.inside_path(cluster.home, "bridge")
    options = (f"--kubeconfig={login}", f"--host={host}", "--drain-seconds=0")
    argv = (sys.executable, "-P", "-m", "skysail", "bridge", *options, *(() if env else _account_flags(cluster)))
    cluster.control.start_unit(Unit(name=name, argv=argv, env=env or {}))
    cluster.until(lambda: is_bridge_ready(cluster, host), "the bridge to be ready")


def is_bridge_ready(cluster: Cluster, host: str = addresses.CLUSTER_IP) -> bool:
    try:
        return cluster.get("/readyz", Settings().bridge_health_port, host)[0] == 200
    except (Refused, OSError):
        return False


def start_operator(cluster: Cluster, name: str = "operator", **options: Any) -> None:
    """With nodes for the simulated clouds. Returns when these are ready."""
    cluster.start_operator(name, flags=(*flags(cluster), *options.pop("flags", ())), **options)
    until_nodes_are_ready(cluster, name)


def until_nodes_are_ready(cluster: Cluster, name: str = "operator") -> None:
    for node in NODES.values():
        cluster.until(lambda node=node: _is_ready(cluster, name, node), f"node {node} to be ready")


def _is_ready(cluster: Cluster, operator: str, node: str) -> bool:
    unit = cluster.unit(operator)
    assert unit.state == "running", f"{operator} ended: {unit.crash and unit.crash.log_tail}"
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", node, "-o", ready).stdout == "True"


def at(cloud: str, manifest: Manifest) -> Manifest:
    """The same pod, or the same Job, sent to the node of a cloud."""
    spec = manifest["spec"].get("template", manifest)["spec"]
    spec["nodeSelector"] = {"kubernetes.io/hostname": NODES[cloud]}
    spec["tolerations"] = [{"key": TAINTS[cloud], "operator": "Exists"}]
    return manifest


def claims(cluster: Cluster, namespace: str) -> list[Manifest]:
    """The claims for pods of this namespace."""
    every = get(cluster, "default", "cloudinstances")["items"]
    return [claim for claim in every if claim["spec"]["owner"]["namespace"] == namespace]


def let_go(cluster: Cluster, namespace: str) -> None:
    """Delete what makes pods, and the pods. Quicker than a namespace, which is deleted in rounds of seconds."""
    ok(cluster, "delete", "daemonsets,jobs,pods", "--all", "-n", namespace, TIMEOUT)


class Books:
    """What the accounts have written down about this cluster. A stranger has an instance at each of them, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.id = get(cluster, "default", "namespace", "kube-system")["metadata"]["uid"]
        self._strangers = asyncio.run(self._invite_strangers())

    def rows(self, cloud: str) -> list[Row]:
        """An unfinished last line was never written."""
        path = self._cluster.home.root / "simulated" / f"{cloud}.jsonl"
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return msgspec.json.Decoder(Row).decode_lines(whole)

    def ours(self, cloud: str) -> list[Row]:
        return list(billing.rows_of_cluster(self.rows(cloud), self.id))

    def count(self, cloud: str, verb: Verb) -> int:
        return sum(row.verb == verb for row in self.ours(cloud))

    def launches(self, cloud: str, pod_uid: str) -> int:
        return sum(row.verb == "create" and row.claim.startswith(pod_uid) for row in self.ours(cloud))

    def billed(self, cloud: str) -> set[str]:
        """The claims that are paid for now."""
        return {row.claim for row in billing.billable(self.ours(cloud))}

    def check(self) -> None:
        """What must hold at any time."""
        for cloud in NODES:
            rows = self.rows(cloud)
            assert billing.max_concurrent(rows) <= 1, f"{cloud}: a claim was billed twice at once"
            assert billing.foreign_instances_touched(rows, cluster=self.id) == ()
            strangers = {row.instance for row in billing.billable(rows) if row.cluster != self.id}
            assert self._strangers[cloud] in strangers, f"{cloud}: the stranger's instance has ended"

    def until_let_go(self, namespace: str) -> None:
        """When its pods are gone, the claims go, and leave nothing that is billed."""
        self._cluster.until(lambda: claims(self._cluster, namespace) == [], f"the claims of {namespace} to be gone")
        names = {claim["metadata"]["name"] for claim in get(self._cluster, "default", "cloudinstances")["items"]}
        for cloud in NODES:
            assert billing.orphans(self.rows(cloud), cluster=self.id, claims=names) == ()
        self.check()

    async def _invite_strangers(self) -> Mapping[str, str]:
        return {name: await self._invite_stranger(name) for name in NODES}

    async def _invite_stranger(self, cloud: str) -> str:
        account = simulated_clouds.remote(self._cluster.home, VENDORS[cloud])
        try:
            return (await AccountHarness(account).running(AccountHarness(account).launch_spec(seconds=7200.0))).id
        finally:
            await account.close()
