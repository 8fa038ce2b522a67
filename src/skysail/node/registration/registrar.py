"""Keeps the Node object current, as a kubelet does, so that the scheduler binds pods to it and none is evicted.

Only the process that serves the node uses this module, because it writes the node's address and readiness. Other
processes only renew the Lease (`node_lease`).

Only an InternalIP is published: a host name could resolve to another server, to which the API server would present its
client certificate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from skysail.base.names import Condition, Label, Reason
from skysail.base.timestamps import timestamp
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule, read_rule
from skysail.kube.api.resources import NODE
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.client.errors import AlreadyExists, Conflict, KubeError
from skysail.node.registration.node_lease import NodeLease

# Short, because users wait for the state of a cloud; a check without a difference costs no request.
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 1.0
# Makes the API server forward WebSockets: with them an interrupted command is an error, not a success.
_FEATURES = ("ExtendWebSocketsToKubelet",)
VIRTUAL_LABELS = {Label.TYPE.value: "virtual-kubelet", Label.NO_LOAD_BALANCER.value: "true"}
_HEALTHY = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "The node has sufficient memory available."),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "The node has no disk pressure."),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "The node has sufficient PIDs available."),
    "NetworkUnavailable": ("False", "NetworkIsUp", "Pods have addresses."),
    "Ready": ("True", "KubeletReady", "Skysail's agent is running."),
}
_DISK_PRESSURE = {
    "DiskPressure": ("True", "KubeletHasDiskPressure", "The disk is nearly full: pods that use most of it are evicted.")
}
_REACHED = ("True", Reason.CLOUD_LISTS.value, "The cloud lists its instances.")
_CLAIMED = ("True", Reason.ALL_CLAIMED.value, "Each of our instances there has a claim.")
_UNKNOWN = ("Unknown", Reason.CLOUD_UNREACHABLE.value, "The cloud has not been polled yet.")
_CLOUD_CONDITIONS = (Condition.CLOUD_REACHABLE, Condition.NO_ORPHANED_INSTANCES)

# By type: status, reason, message.
Conditions = Mapping[str, tuple[str, str, str]]

POLICY_RULES = (
    read_rule(NODE),
    PolicyRule(NODE, ("create", "patch")),
    PolicyRule(NODE, ("patch",), subresource="status"),
)

log = logging.getLogger(__name__)


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Desired content of a Node object. A virtual node stands for a cloud; its labels keep load balancers away.

    `os_image` and `kernel_version` describe the machine of a node that is not virtual.
    `runtime` names the container runtime, as `name://version`. `conditions` are added to those of every node.
    """

    name: str
    address: str
    port: int
    provider_id: str
    kubelet_version: str
    capacity: Mapping[str, str]
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    is_virtual: bool = False
    runtime: str = "skysail://1"
    os_image: str = "skysail"
    kernel_version: str = ""
    conditions: Mapping[str, tuple[str, str, str]] = msgspec.field(default_factory=dict)


class NodeStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    capacity: dict[str, Any] | None = None
    addresses: tuple[dict[str, str], ...] = ()
    conditions: tuple[dict[str, Any], ...] = ()
    daemon_endpoints: dict[str, Any] | None = None
    declared_features: tuple[str, ...] = ()
    node_info: dict[str, Any] = {}


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    taints: tuple[dict[str, Any], ...] = ()


class NodeObject(Object, frozen=True, gc=False):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class CloudHealth(msgspec.Struct, frozen=True):
    """State of a node's cloud, as messages: the outage, and instances without a claim. Empty without a problem."""

    outage: str = ""
    orphans: str = ""


class NodeRegistrar:
    """Keeps one Node object current. `registered` is set when the node was current for the first time.

    `cloud` returns the state of a virtual node's cloud, or None before the first poll. During an outage of the cloud
    the node stays ready: pods of a node that is not ready are evicted, although their instances still run.
    """

    def __init__(
        self,
        client: Client,
        described: NodeDescription,
        *,
        now: Callable[[], datetime],
        rng: random.Random,
        cloud: Callable[[], CloudHealth | None] | None = None,
        has_disk_pressure: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._described = described
        self._cloud = cloud
        self._has_disk_pressure = has_disk_pressure
        self._now = now
        self._rng = rng
        self._node_lease = NodeLease(client, described.name, now)
        self._changed = asyncio.Event()
        self._nodes: Cache[NodeObject] = Cache(
            NODE, NodeObject, selector={"fieldSelector": f"metadata.name={described.name}"}
        )
        self._nodes.subscribe(lambda _old, _new: self._changed.set())
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """Keep the node current until cancelled. A change triggers a check, so a deleted node is recreated at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reflector(self._client, self._nodes, rng=self._rng).run())
            await self._nodes.synced.wait()
            tasks.create_task(self._renew_lease())
            while True:
                self._changed.clear()
                is_updated = await self._try(self._update)
                try:
                    async with asyncio.timeout(_POLL_SECONDS if is_updated else _RETRY_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _renew_lease(self) -> None:
        await self.registered.wait()
        await self._node_lease.renew_forever()

    async def _try(self, do: Callable[[], Any]) -> bool:
        try:
            await do()
        except (Conflict, AlreadyExists) as error:
            log.debug("node changed during its update, retried", extra={"why": str(error)})
        except KubeError as error:
            log.warning("node not updated, retried", extra={"node": self._described.name, "why": str(error)})
        else:
            return True
        return False

    async def _update(self) -> None:
        """Create or correct the node, if it differs from its description."""
        node = self._node()
        if node is None:
            node = await self._client.create(NODE, manifest(self._described), NodeObject)
            self._nodes.record_write(node)
        if patch := label_patch(node, self._described):
            node = await self._client.merge_patch(NODE, "", self._described.name, patch, NodeObject)
            self._nodes.record_write(node)
        pressure = _DISK_PRESSURE if self._has_disk_pressure() else {}
        conditions = {**_HEALTHY, **self._described.conditions, **pressure, **self._cloud_conditions(node)}
        if not is_current(node, self._described, conditions):
            new_status = status(self._described, timestamp(self._now()), conditions, node.status.conditions)
            self._nodes.record_write(await self._client.patch_status(NODE, node, new_status, NodeObject))
        self.registered.set()

    def _cloud_conditions(self, node: NodeObject) -> Conditions:
        """Return the conditions about the cloud. The old ones stay until the first poll, so a restart changes none."""
        if self._cloud is None:
            return {}
        state = self._cloud()
        previous = {row["type"]: (row["status"], row["reason"], row["message"]) for row in node.status.conditions}
        old = {name.value: previous.get(name, _UNKNOWN) for name in _CLOUD_CONDITIONS}
        if state is None:
            return old
        if state.outage:
            return {**old, Condition.CLOUD_REACHABLE: ("False", Reason.CLOUD_UNREACHABLE, state.outage)}
        orphans = ("False", Reason.ORPHANED_INSTANCES, state.orphans) if state.orphans else _CLAIMED
        return {Condition.CLOUD_REACHABLE: _REACHED, Condition.NO_ORPHANED_INSTANCES: orphans}

    def _node(self) -> NodeObject | None:
        return next(iter(self._nodes.all()), None)


def manifest(described: NodeDescription) -> dict[str, Any]:
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.kind,
        "metadata": {"name": described.name, "labels": _labels(described)},
        "spec": {"providerID": described.provider_id, "taints": [dict(taint) for taint in described.taints]},
    }


def label_patch(node: NodeObject, described: NodeDescription) -> dict[str, Any]:
    """Return a patch that restores labels and taints: without its taint, a cloud node would run and bill any pod.

    Labels and taints of others (a cordon, the node controller) stay.
    """
    patch: dict[str, Any] = {}
    taints = [{key: taint.get(key, "") for key in ("key", "value", "effect")} for taint in node.spec.taints]
    if missing := [dict(taint) for taint in described.taints if taint not in taints]:
        ours = {(taint["key"], taint["effect"]) for taint in missing}
        others = [taint for taint in node.spec.taints if (taint["key"], taint["effect"]) not in ours]
        patch["spec"] = {"taints": [*others, *missing]}
    current = node.metadata.labels or {}
    labels = {name: value for name, value in _labels(described).items() if current.get(name) != value}
    if not patch and not labels:
        return {}
    # With resourceVersion, because taints are one list that others write as well.
    precondition = {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}
    return {**patch, "metadata": {**precondition, "labels": labels}}


def _labels(described: NodeDescription) -> dict[str, str]:
    own = {"kubernetes.io/hostname": described.name, "kubernetes.io/os": "linux"}
    return {**own, **(VIRTUAL_LABELS if described.is_virtual else {}), **described.labels}


def status(
    described: NodeDescription, now: str, conditions: Conditions = _HEALTHY, previous: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    since = {(row["type"], row["status"]): row.get("lastTransitionTime") for row in previous}
    return {
        "capacity": dict(described.capacity),
        "allocatable": dict(described.capacity),
        "addresses": [{"type": "InternalIP", "address": described.address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": described.port}},
        "nodeInfo": _info(described),
        "declaredFeatures": list(_FEATURES),
        "conditions": [
            {
                "type": name,
                "status": value,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since.get((name, value)) or now,
            }
            for name, (value, reason, message) in conditions.items()
        ],
    }


def is_current(node: NodeObject, described: NodeDescription, conditions: Conditions = _HEALTHY) -> bool:
    """Return whether the status is current. Times are not compared: the Lease shows that the node is alive."""
    seen = node.status
    reported = {row["type"]: (row["status"], row.get("reason"), row.get("message")) for row in seen.conditions}
    desired = status(described, "")
    return (
        reported == conditions
        and list(seen.addresses) == desired["addresses"]
        and seen.daemon_endpoints == desired["daemonEndpoints"]
        and seen.capacity == desired["capacity"]
        and seen.declared_features == _FEATURES
        and seen.node_info.get("containerRuntimeVersion") == described.runtime
        and seen.node_info.get("osImage") == described.os_image
        and seen.node_info.get("kernelVersion") == described.kernel_version
    )


def _info(described: NodeDescription) -> dict[str, str]:
    unknown = dict.fromkeys(("bootID", "machineID", "systemUUID", "kubeProxyVersion"), "")
    return {
        **unknown,
        "kubeletVersion": described.kubelet_version,
        "containerRuntimeVersion": described.runtime,
        "operatingSystem": "linux",
        "osImage": described.os_image,
        "kernelVersion": described.kernel_version,
        "architecture": described.labels.get("kubernetes.io/arch", "amd64"),
    }
