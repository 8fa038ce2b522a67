"""Pods of DaemonSets on a node that is no machine: shown as running, and not run. Pure.

Agents that tolerate every taint (networks, log shippers, monitors) are sent to every node, also to one that stands
for a cloud, where there is nothing for them to look after. Left pending they would hold up their rollout for ever;
failed they would be made again for ever. So they are shown as running, with a mark, and cost nothing.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Annotation
from skysail.cloud.provider import Ended, Running
from skysail.node.config.references import NodeInfo
from skysail.node.pod_types import Pod
from skysail.node.sync import status
from skysail.node.sync.planner import Annotate, Plan, final_steps
from skysail.node.sync.snapshot import RunHistory, Snapshot, is_sidecar, seconds
from skysail.node.sync.unsupported_fields import UnsupportedFields

PLACEHOLDER_ANNOTATION = {Annotation.PLACEHOLDER.value: "true"}


def is_placeholder(pod: Pod, node_info: NodeInfo) -> bool:
    owner = pod.metadata.controller
    return (
        node_info.is_virtual
        and owner is not None
        and owner.kind == "DaemonSet"
        and owner.api_version.startswith("apps/")
    )


def has_placeholder_mark(pod: Pod) -> bool:
    return (pod.metadata.annotations or {}).items() >= PLACEHOLDER_ANNOTATION.items()


def plan(snapshot: Snapshot) -> Plan:
    """Mark it, show it, and let it go when it is deleted. It has no address: nothing would answer there."""
    pod = snapshot.pod
    if pod.is_finished or pod.metadata.is_deleting:
        return Plan(steps=final_steps(snapshot))
    if not has_placeholder_mark(pod):
        return Plan(steps=(Annotate(PLACEHOLDER_ANNOTATION),))
    bare = msgspec.structs.replace(snapshot, runs={}, address="", unsupported=UnsupportedFields(), waiting={})
    return Plan(status=status.build(bare, _histories(pod, snapshot.now)))


def _histories(pod: Pod, now: float) -> dict[str, RunHistory]:
    """As if every init container had done its work, and every other one ran since the pod came here."""
    began = seconds(pod.status.start_time) if pod.status.start_time else now
    running = RunHistory(number=0, state=Running(began))
    done = RunHistory(number=0, state=Ended(code=0, reason="Completed", started=began, ended=began))
    inits = {container.name: running if is_sidecar(container) else done for container in pod.spec.init_containers}
    return {**inits, **{container.name: running for container in pod.spec.containers}}
