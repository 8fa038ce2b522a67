"""DaemonSet pods on a virtual node: shown as running, but not run. Pure.

Agents that tolerate every taint (network plugins, log shippers, monitors) are also scheduled to a node that stands for
a cloud, where they have no machine to serve. A pending pod would block the DaemonSet's rollout, and a failed pod would
be recreated without end. So such pods are shown as running, with an annotation, and cost nothing.
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


def has_placeholder_annotation(pod: Pod) -> bool:
    return (pod.metadata.annotations or {}).items() >= PLACEHOLDER_ANNOTATION.items()


def plan(snapshot: Snapshot) -> Plan:
    """Annotate the pod, show it as running, and delete it on request. It gets no address, because no server runs."""
    pod = snapshot.pod
    if pod.is_finished or pod.metadata.is_deleting:
        return Plan(steps=final_steps(snapshot))
    if not has_placeholder_annotation(pod):
        return Plan(steps=(Annotate(PLACEHOLDER_ANNOTATION),))
    bare = msgspec.structs.replace(snapshot, runs={}, address="", unsupported=UnsupportedFields(), waiting={})
    return Plan(status=status.build(bare, _histories(pod, snapshot.now)))


def _histories(pod: Pod, now: float) -> dict[str, RunHistory]:
    """Return histories as if each init container had completed and the others ran since the pod's start."""
    began = seconds(pod.status.start_time) if pod.status.start_time else now
    running = RunHistory(number=0, state=Running(began))
    done = RunHistory(number=0, state=Ended(code=0, reason="Completed", started=began, ended=began))
    inits = {container.name: running if is_sidecar(container) else done for container in pod.spec.init_containers}
    return {**inits, **{container.name: running for container in pod.spec.containers}}
