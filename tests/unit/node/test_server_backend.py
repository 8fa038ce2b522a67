"""What the server of the node says about its pods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from skysail.cloud.provider import Pending, RunId, Running
from skysail.node.pod_state import PodState
from skysail.node.pod_types import Pod
from skysail.node.server_backend import KubeletBackend

if TYPE_CHECKING:
    from skysail.cloud.provider import State


def pod(name: str, state: State | None) -> tuple[Pod, PodState]:
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    made = msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, Pod)
    runs = {} if state is None else {RunId(name, "main", 0): state}
    return made, PodState(made, runs, "10.0.0.1", began=0.0)


def test_only_pods_with_a_running_container_are_running_pods() -> None:
    waiting = pod("waits-for-a-config-map", None)
    rows = [waiting, pod("starts", Pending("Starting")), pod("runs", Running(started=1.0))]
    states = {state.uid: state for _, state in rows}
    pods = {made.metadata.uid: made for made, _ in rows}
    kubelet = SimpleNamespace(pod_states=states, effective_pod=lambda state: pods[state.uid])
    backend = KubeletBackend(cast("Any", kubelet), cast("Any", None), cast("Any", None), cast("Any", None))
    assert [each["metadata"]["name"] for each in backend.running_pods()] == ["runs"]
