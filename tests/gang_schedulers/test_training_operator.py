"""A PyTorchJob of the real Kubeflow training operator is offloaded whole to the simulated Modal."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from skysail.local.cluster.supervisor import Unit
from tests.gang_schedulers.programs import TRAINING_OPERATOR
from tests.support.clouds import NODES, Books, claims, start_operator
from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "training-operator"
JOB = "mnist"
MASTER = """
import os, socket
server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
peer, _ = server.accept()
peer.sendall(b"{nonce}")
peer.close()
"""
WORKER = """
import os, socket, time
for _ in range(600):
    try:
        peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        break
    except OSError:
        time.sleep(0.05)
print(os.environ["RANK"], os.environ["WORLD_SIZE"], peer.recv(64).decode())
"""


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    TRAINING_OPERATOR.define(cluster)
    access = cluster.user(NAME, "system:masters", inside=True)
    argv = (str(TRAINING_OPERATOR.binary()), f"--kubeconfig={access}")
    cluster.control.start_unit(Unit(name=NAME, argv=argv, restart=False))
    cluster.start_agent()
    start_operator(cluster)
    cluster.until_asking()
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    cluster.stop(NAME)
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


def replica(script: str, count: int = 1) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "python:3", "command": ["python3", "-c", script]}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}


@pytest.mark.on_demand
def test_a_pytorch_job_is_offloaded_whole(node: Cluster) -> None:
    nonce = secrets.token_hex(8)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": JOB, "annotations": {"modal-operator.io/offload": "true"}},
        "spec": {"pytorchReplicaSpecs": {"Master": replica(MASTER.format(nonce=nonce)), "Worker": replica(WORKER)}},
    }
    books = Books(node)
    with fresh_namespace(node) as namespace:
        apply(node, namespace, job)

        def has_succeeded() -> bool:
            rows = get(node, namespace, "pytorchjob", JOB).get("status", {}).get("conditions") or ()
            return any((row["type"], row["status"]) == ("Succeeded", "True") for row in rows)

        node.until(has_succeeded, "the PyTorchJob to succeed")
        uid = get(node, namespace, "pytorchjob", JOB)["metadata"]["uid"]
        pods = {pod["metadata"]["name"]: pod for pod in get(node, namespace, "pods")["items"]}
        assert {pod["spec"]["nodeName"] for pod in pods.values()} == {NODES["modal"]}
        assert ok(node, "logs", f"{JOB}-worker-0", "-n", namespace).split() == ["1", "2", nonce]
        (claim,) = claims(node, namespace)
        assert (claim["metadata"]["name"], claim["spec"]["owner"]["kind"]) == (f"{uid}-0", "PyTorchJob")
        assert [member["name"] for member in claim["spec"]["memberPods"]] == [f"{JOB}-master-0", f"{JOB}-worker-0"]
        assert books.launches("modal", uid) == 1
        ok(node, "delete", "pytorchjob", JOB, "-n", namespace)
