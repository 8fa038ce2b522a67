"""Pods of DaemonSets on a node that is no machine: shown as running, and not run. Pure.

Agents that tolerate every taint (networks, log shippers, monitors) are sent to every node, also to one that stands
for a cloud, where there is nothing for them to look after. Left pending they would hold up their rollout for ever;
failed they would be made again for ever. So they are shown as running, with a mark, and cost nothing.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Annotation
from skysail.cloud.provider import Ended, Running
from skysail.node.config.references import Node
from skysail.node.pod_types import Pod
from skysail.node.sync import status
from skysail.node.sync.planner import Mark, Plan, farewell
from skysail.node.sync.snapshot import History, Snapshot, is_sidecar, seconds
from skysail.node.sync.unsupported_fields import Burden

MARK = {Annotation.NOT_RUN.value: "true"}


def is_only_shown(pod: Pod, node: Node) -> bool:
    owner = pod.metadata.controller
    return node.is_virtual and owner is not None and owner.kind == "DaemonSet" and owner.api_version.startswith("apps/")


def is_marked(pod: Pod) -> bool:
    return (pod.metadata.annotations or {}).items() >= MARK.items()


def plan(snapshot: Snapshot) -> Plan:
    """Mark it, show it, and let it go when it is deleted. It has no address: nothing would answer there."""
    pod = snapshot.pod
    if pod.is_over or pod.metadata.is_deleting:
        return Plan(steps=farewell(snapshot))
    if not is_marked(pod):
        return Plan(steps=(Mark(MARK),))
    bare = msgspec.structs.replace(snapshot, runs={}, address="", burden=Burden(), waiting={})
    return Plan(status=status.status(bare, _histories(pod, snapshot.now)))


def _histories(pod: Pod, now: float) -> dict[str, History]:
    """As if every init container had done its work, and every other one ran since the pod came here."""
    began = seconds(pod.status.start_time) if pod.status.start_time else now
    running = History(number=0, state=Running(began))
    done = History(number=0, state=Ended(code=0, reason="Completed", started=began, ended=began))
    inits = {one.name: running if is_sidecar(one) else done for one in pod.spec.init_containers}
    return {**inits, **{one.name: running for one in pod.spec.containers}}
