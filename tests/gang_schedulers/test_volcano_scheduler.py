"""TrainingJobs placed by the real scheduler of Volcano on a node of this machine, where their pods really run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skysail.local.cluster.supervisor import Unit
from tests.gang_schedulers.programs import VOLCANO
from tests.support.kubectl import apply, claim, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

WAITS = "until test -e /data/go; do sleep 0.1; done"


@pytest.fixture(scope="module")
def node(cluster: Cluster, operator: str) -> Iterator[Cluster]:
    """The node `local`, and beside the operator Volcano: its kinds, its scheduler, and who opens its queues."""
    VOLCANO.define(cluster)
    cluster.start_agent()
    access = cluster.user("volcano", "system:masters", inside=True)
    for program in ("scheduler", "queues"):
        argv = (str(VOLCANO.binary()), program, f"--kubeconfig={access}", "--leader-elect=false")
        cluster.control.start_unit(Unit(name=program, argv=argv, restart=False))
    yield cluster
    for program in ("scheduler", "queues"):
        cluster.stop(program)
    cluster.remove_agent()


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    """With a queue of its name that has room for one CPU."""
    with fresh_namespace(node) as name:
        queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
        apply(node, name, {**queue, "spec": {"weight": 1, "capability": {"cpu": "1"}}}, claim("gate"))
        node.until(
            lambda: get(node, name, "queue", name).get("status", {}).get("state") == "Open", "the queue to be open"
        )
        yield name
        ok(node, "delete", "queue", name, "--wait=false")


def manifest(namespace: str, name: str, cpu: str, script: str) -> dict[str, Any]:
    spec = {
        "framework": "pytorch",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "workers": 2,
        "resources": {"requests": {"cpu": cpu}},
        "dataVolume": {"claimName": "gate"},
        "scheduling": {"gang": "volcano", "queue": namespace},
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 1}},
    }
    metadata = {"name": name}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def until_phase(node: Cluster, namespace: str, name: str, phase: str) -> None:
    node.until(lambda: _status(node, namespace, name).get("phase") == phase, f"{name} to be {phase}")


def until_says(node: Cluster, namespace: str, name: str, words: str) -> None:
    def says() -> bool:
        rows = {row["type"]: row for row in _status(node, namespace, name).get("conditions", [])}
        return words in rows.get("Running", {}).get("message", "")

    node.until(says, f"{name} to say: {words}")


def test_a_gang_is_placed_whole_runs_and_ends(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest(namespace, "mnist", "200m", "echo rank $RANK of $WORLD_SIZE"))
    until_phase(node, namespace, "mnist", "Succeeded")
    node.until(
        lambda: node.kubectl("get", "podgroup", "mnist-gang", "-n", namespace).returncode != 0, "its group to go"
    )


def test_a_gang_waits_in_the_words_of_volcano_until_another_one_has_ended(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest(namespace, "first", "400m", WAITS))
    until_phase(node, namespace, "first", "Running")
    apply(node, namespace, manifest(namespace, "second", "300m", "true"))
    until_says(node, namespace, "second", "Volcano")
    assert _placed(node, namespace, "second") == []
    worker = _placed(node, namespace, "first")[0]
    ok(node, "exec", worker, "-n", namespace, "--", "touch", "/data/go")
    until_phase(node, namespace, "first", "Succeeded")
    until_phase(node, namespace, "second", "Succeeded")


def test_one_pod_too_many_and_none_is_placed(node: Cluster, namespace: str) -> None:
    """Each of them alone would have its place in the queue."""
    apply(node, namespace, manifest(namespace, "large", "700m", "true"))
    until_says(node, namespace, "large", "Volcano")
    assert _placed(node, namespace, "large") == []
    assert _status(node, namespace, "large")["phase"] == "Pending"


def _status(node: Cluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = get(node, namespace, "trainingjob", name).get("status", {})
    return found


def _placed(node: Cluster, namespace: str, name: str) -> list[str]:
    rows = get(node, namespace, "pods", "-l", f"trainingjob.ml.example.com/name={name}")["items"]
    return [row["metadata"]["name"] for row in rows if row["spec"].get("nodeName")]
