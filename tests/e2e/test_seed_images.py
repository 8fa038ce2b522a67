"""The annotated pods and the Job that people have, applied as they are written, at every kind of cloud.

Their images are in a registry of the test, which is a mirror of Docker Hub for the operator. The ENTRYPOINT of each
image prints a value of the test.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.app import manifests, stand_ins
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Row
from skysail.local import addresses
from skysail.local.images.environments import open_environments
from skysail.local.images.rules import Rule
from tests.support import registry as registry_server
from tests.support.clouds import NODES, claims, flags, let_go, node_flags, until_nodes_are_ready
from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster
    from tests.support.kubectl import Manifest
    from tests.support.registry import Registry

SAMPLES = Path(__file__).parents[2] / "config" / "samples"
MIRROR = f"docker.io=http://{addresses.CLUSTER_IP}:{registry_server.INSIDE_PORT}"
# Containers get the machine's own programs: a shell is all that these ENTRYPOINTs need.
PATTERNS = ("pytorch/pytorch:*", "my-gpu-image:*")


@pytest.fixture(scope="module", params=["simulated", "stand-ins"])
def clouds(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def node(cluster: Cluster, clouds: str) -> Iterator[Cluster]:
    rules, _ = open_environments(cluster.home.root, os.environ)
    for pattern in PATTERNS:
        rules.add(Rule(pattern=pattern, packages=None))
    cluster.start_agent()
    env = {"SKYSAIL_REGISTRY_MIRRORS": MIRROR, "SKYSAIL_LAUNCHES_PER_NAMESPACE": "1000"}
    told = flags(cluster)
    if clouds == "stand-ins":
        env |= {**stand_ins.environment(cluster.home, "modal"), **stand_ins.environment(cluster.home, "runpod")}
        told = node_flags(cluster)
    cluster.start_operator(flags=told, env=env, restart=True)
    until_nodes_are_ready(cluster)
    cluster.until_asking()
    apply(cluster, "default", manifests.default_policy())
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    for pattern in PATTERNS:
        rules.remove(pattern)
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


@pytest.fixture
def mirror(node: Cluster) -> Iterator[Registry]:
    with registry_server.running() as registry, registry_server.inside(node, registry):
        yield registry


@pytest.fixture
def namespace(node: Cluster, clouds: str) -> Iterator[str]:
    """After the test the ledgers are clean: nothing was paid twice at once, nothing is left, nothing foreign ended."""
    cluster_id = get(node, "default", "namespace", "kube-system")["metadata"]["uid"]
    with fresh_namespace(node) as name:
        yield name
        let_go(node, name)
        node.until(lambda: claims(node, name) == [], f"the claims of {name} to be gone")
        for cloud in NODES:
            written = rows(node, clouds, cloud)
            assert billing.max_concurrent(written) <= 1
            assert billing.orphans(written, cluster=cluster_id, claims=frozenset()) == ()
            assert billing.foreign_instances_touched(written, cluster=cluster_id) == ()


def rows(node: Cluster, clouds: str, cloud: str) -> list[Row]:
    simulated = node.home.root / "simulated" / f"{cloud}.jsonl"
    path = simulated if clouds == "simulated" else stand_ins.ledger_file(node.home, cloud)
    whole, _, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    return msgspec.json.Decoder(Row).decode_lines(whole)


def launches(written: list[Row], pod: Manifest) -> int:
    return sum(row.verb == "create" and row.claim.startswith(pod["metadata"]["uid"]) for row in written)


def printing(nonce: str, code: int) -> registry_server.Image:
    program = registry_server.layer({"bin/sh": b"not run: the local node has a shell"})
    return registry_server.image({"Entrypoint": ["sh", "-c"], "Cmd": [f"echo {nonce}; exit {code}"]}, program)


def test_gpu_pod_as_written_prints_the_value_of_its_entrypoint(node, namespace, mirror, clouds):
    nonce = secrets.token_hex(8)
    mirror.push("pytorch/pytorch", "latest", printing(nonce, 37))
    ok(node, "apply", "--validate=strict", "-n", namespace, "-f", str(SAMPLES / "v1_pod_gpu-training.yaml"))
    # The pod has the restart policy Always, so an end is its last state as soon as it is launched again.
    ends: list[Manifest] = []

    def has_ended() -> bool:
        for status in get(node, namespace, "pod", "gpu-training")["status"].get("containerStatuses", ()):
            ends.extend(
                status[state]["terminated"] for state in ("state", "lastState") if "terminated" in status[state]
            )
        return bool(ends)

    node.until(has_ended, "the program to end")
    assert {end["exitCode"] for end in ends} == {37}
    lines = f"{nonce}\n"
    node.until(lambda: lines in node.kubectl("logs", "gpu-training", "-n", namespace).stdout, "its line")
    shown = get(node, namespace, "pod", "gpu-training")
    assert shown["spec"]["nodeName"] == NODES["modal"]
    assert shown["spec"]["containers"][0]["image"] == "pytorch/pytorch:latest"
    assert launches(rows(node, clouds, "modal"), shown) >= 1


def test_container_mode_pod_as_written_prints_its_line(node, namespace, clouds):
    ok(node, "apply", "--validate=strict", "-n", namespace, "-f", str(SAMPLES / "v1_pod_modal-container.yaml"))
    node.until(
        lambda: "Hello from Modal!\n" in node.kubectl("logs", "modal-container", "-n", namespace).stdout, "its line"
    )
    shown = get(node, namespace, "pod", "modal-container")
    assert shown["spec"]["nodeName"] == NODES["modal"]
    # As a Pod without restartPolicy it runs, and is paid for, again and again.
    node.until(
        lambda: "RestartPolicyAlways" in {row["reason"] for row in get(node, namespace, "events")["items"]},
        "the event about its restarts",
    )
    assert launches(rows(node, clouds, "modal"), shown) >= 1


def test_gpu_job_as_written_prints_the_value_of_its_entrypoint(node, namespace, mirror, clouds):
    nonce = secrets.token_hex(8)
    mirror.push("library/my-gpu-image", "latest", printing(nonce, 0))
    ok(node, "apply", "--validate=strict", "-n", namespace, "-f", str(SAMPLES / "batch_v1_job.yaml"))
    node.until(lambda: get(node, namespace, "job", "my-gpu-job")["status"].get("succeeded") == 1, "the Job to succeed")
    (made,) = get(node, namespace, "pods", "-l", "job-name=my-gpu-job")["items"]
    assert made["spec"]["nodeName"] == NODES["runpod"]
    assert made["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert ok(node, "logs", made["metadata"]["name"], "-n", namespace) == f"{nonce}\n"
    assert launches(rows(node, clouds, "runpod"), made) == 1
