"""TrainingJobs with the real kinds of Volcano, on the real control plane. What its scheduler would say is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_training import manifest, namespace_with_node, pods, status, tell, until_phase, until_pods
from tests.gang_schedulers.programs import VOLCANO
from tests.support.kubectl import apply, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "mnist"
GANG = "mnist-gang"


@pytest.fixture
def namespace(cluster: Cluster, operator: str, volcano: None) -> Iterator[str]:
    with namespace_with_node(cluster) as name:
        yield name


@pytest.fixture(scope="module")
def volcano(cluster: Cluster) -> None:
    VOLCANO.define(cluster)


def grouped(**spec: Any) -> dict[str, Any]:
    return manifest(scheduling={"gang": "volcano", "queue": "team"}, **spec)


def group(cluster: Cluster, namespace: str) -> dict[str, Any]:
    return get(cluster, namespace, "podgroups.scheduling.volcano.sh", GANG)


def is_there(cluster: Cluster, namespace: str) -> bool:
    return cluster.kubectl("get", "podgroups.scheduling.volcano.sh", GANG, "-n", namespace).returncode == 0


def say(cluster: Cluster, namespace: str, phase: str, *conditions: dict[str, str]) -> None:
    patch = json.dumps({"status": {"phase": phase, "conditions": list(conditions)}})
    ok(cluster, "patch", "podgroups.scheduling.volcano.sh", GANG, "-n", namespace, "--type=merge", "-p", patch)


def waits(cluster: Cluster, namespace: str) -> str:
    rows = {row["type"]: row for row in status(cluster, namespace).get("conditions", [])}
    message: str = rows.get("Running", {}).get("message", "")
    return message


def test_pods_wait_for_each_other_and_the_job_says_why_in_the_words_of_volcano(
    cluster: Cluster, namespace: str
) -> None:
    apply(cluster, namespace, grouped(resources={"requests": {"cpu": "500m"}}))
    until_pods(cluster, namespace, 2, 0)
    asked = {"minMember": 2, "queue": "team", "minResources": {"cpu": "1"}}
    assert group(cluster, namespace)["spec"] == asked
    for pod in pods(cluster, namespace):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == GANG
    cluster.until(lambda: "wait in Volcano's queue team" in waits(cluster, namespace), "the job to wait in its queue")
    no_room = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "message": "2 tasks wait"}
    say(cluster, namespace, "Inqueue", {**no_room, "lastTransitionTime": "2026-01-01T00:00:00Z", "transitionID": "1"})
    cluster.until(lambda: "(NotEnoughResources): 2 tasks wait" in waits(cluster, namespace), "the words of Volcano")
    say(cluster, namespace, "Running")
    tell(cluster, namespace, "Running")
    until_phase(cluster, namespace, "Running")
    tell(cluster, namespace, "Succeeded", 0)
    until_phase(cluster, namespace, "Succeeded")
    cluster.until(lambda: not is_there(cluster, namespace), "the PodGroup to go")


def test_a_pod_group_that_somebody_deletes_is_made_again_and_the_pods_stay(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, grouped())
    until_pods(cluster, namespace, 2, 0)
    before = group(cluster, namespace)["metadata"]["uid"]
    ok(cluster, "delete", "podgroups.scheduling.volcano.sh", GANG, "-n", namespace)
    cluster.until(
        lambda: is_there(cluster, namespace) and group(cluster, namespace)["metadata"]["uid"] != before, "another one"
    )
    assert {pod["metadata"]["labels"]["skysail.dev/attempt"] for pod in pods(cluster, namespace)} == {"0"}


def test_another_size_asks_for_another_group(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, grouped())
    until_pods(cluster, namespace, 2, 0)
    ok(cluster, "patch", "trainingjob", NAME, "-n", namespace, "--type=merge", "-p", '{"spec":{"workers":3}}')
    until_pods(cluster, namespace, 3, 1)
    assert group(cluster, namespace)["spec"]["minMember"] == 3
