"""TrainingJobs in the queues of the real Kueue, on the real control plane. No node runs their pods here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from skysail.local.cluster.supervisor import Unit
from tests.e2e.test_training import manifest, namespace_with_node, pods, status, tell, until_phase, until_pods
from tests.gang_schedulers.programs import KUEUE
from tests.support.kubectl import apply, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "mnist"
GANG = "mnist-gang"
API = "kueue.x-k8s.io/v1beta2"
TWO_CPUS = {"requests": {"cpu": "2"}}


@pytest.fixture
def namespace(cluster: Cluster, operator: str) -> Iterator[str]:
    with namespace_with_node(cluster) as name:
        yield name


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[None]:
    """Its kinds, and its controllers as a process beside the operator."""
    install(cluster)
    yield
    cluster.stop("kueue")


def install(cluster: Cluster) -> None:
    KUEUE.define(cluster)
    access = cluster.user("kueue", "system:masters", inside=True)
    argv = (str(KUEUE.binary()), f"--kubeconfig={access}")
    cluster.control.start_unit(Unit(name="kueue", argv=argv, restart=False))


def open_queue(cluster: Cluster, namespace: str, cpus: int = 4) -> None:
    """A queue with room for so many CPUs, for this namespace alone."""
    flavor = {
        "apiVersion": API,
        "kind": "ResourceFlavor",
        "metadata": {"name": namespace},
        "spec": {
            "nodeLabels": {"pool": namespace},
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }
    quota = {"name": "cpu", "nominalQuota": cpus}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": namespace, "resources": [quota]}]}
    cluster_queue = {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": namespace},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceGroups": [group],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        },
    }
    queue = {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": "team"},
        "spec": {"clusterQueue": namespace},
    }
    apply(cluster, namespace, flavor, cluster_queue, queue)


def queued(name: str = NAME, **scheduling: Any) -> dict[str, Any]:
    made = manifest(resources=TWO_CPUS, scheduling={"gang": "kueue", "queue": "team", **scheduling})
    return {**made, "metadata": {"name": name}}


def conditions(shown: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["type"]: row for row in shown.get("conditions", [])}


def workload(cluster: Cluster, namespace: str, name: str = GANG) -> dict[str, dict[str, Any]]:
    return conditions(get(cluster, namespace, "workload", name).get("status", {}))


def until_workload(cluster: Cluster, namespace: str, type_: str, value: str, name: str = GANG) -> None:
    def is_so() -> bool:
        shown = cluster.kubectl("get", "workload", name, "-n", namespace, "-o", "json")
        found = json.loads(shown.stdout).get("status", {}) if shown.returncode == 0 else {}
        return conditions(found).get(type_, {}).get("status") == value

    cluster.until(is_so, f"{type_} of workload {name} to be {value}")


def running(cluster: Cluster, namespace: str, name: str = NAME) -> dict[str, Any]:
    return conditions(get(cluster, namespace, "trainingjob", name).get("status", {})).get("Running", {})


def until_waits(cluster: Cluster, namespace: str, name: str, words: str) -> None:
    cluster.until(lambda: words in running(cluster, namespace, name).get("message", ""), f"{name} to say: {words}")


def test_nothing_runs_without_kueue_and_the_job_goes_on_when_it_is_installed(cluster, namespace, request):
    apply(cluster, namespace, queued())
    cluster.until(
        lambda: running(cluster, namespace).get("reason") == "GangUnavailable", "the job to say what is missing"
    )
    assert conditions(status(cluster, namespace))["GangUnavailable"]["status"] == "True"
    assert pods(cluster, namespace) == []
    request.getfixturevalue("kueue")
    open_queue(cluster, namespace)
    until_pods(cluster, namespace, 2, 0)
    cluster.until(
        lambda: conditions(status(cluster, namespace))["GangUnavailable"]["status"] == "False", "the job to say so"
    )


def test_an_admitted_job_runs_on_its_flavor_and_gives_its_quota_back_at_the_end(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    apply(cluster, namespace, queued())
    until_pods(cluster, namespace, 2, 0)
    for pod in pods(cluster, namespace):
        assert pod["spec"]["nodeSelector"] == {"pool": namespace}
        assert "spot" in {row.get("key") for row in pod["spec"]["tolerations"]}
    tell(cluster, namespace, "Running")
    until_phase(cluster, namespace, "Running")
    until_workload(cluster, namespace, "PodsReady", "True")
    tell(cluster, namespace, "Succeeded", 0)
    until_phase(cluster, namespace, "Succeeded")
    until_workload(cluster, namespace, "Finished", "True")
    assert workload(cluster, namespace)["Finished"]["reason"] == "Succeeded"

    def is_free() -> bool:
        flavors = get(cluster, namespace, "clusterqueue", namespace)["status"]["flavorsReservation"]
        return flavors[0]["resources"][0]["total"] == "0"

    cluster.until(is_free, "the quota to be free")


def test_a_job_waits_for_quota_in_the_words_of_kueue_and_begins_when_there_is_some(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    apply(cluster, namespace, queued("first"))
    until_workload(cluster, namespace, "Admitted", "True", "first-gang")
    apply(cluster, namespace, queued("second"))
    until_waits(cluster, namespace, "second", "insufficient unused quota")
    shown = get(cluster, namespace, "trainingjob", "second")["status"]
    assert (shown["phase"], running(cluster, namespace, "second")["reason"]) == ("Pending", "NotAdmitted")
    ok(cluster, "delete", "trainingjob", "first", "-n", namespace)
    until_workload(cluster, namespace, "Admitted", "True", "second-gang")
    until_pods(cluster, namespace, 2, 0)


def test_a_preempted_job_gives_way_and_comes_back_at_no_cost(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": namespace}}
    apply(cluster, namespace, {**high, "value": 1000})
    apply(cluster, namespace, queued("low"))
    until_workload(cluster, namespace, "Admitted", "True", "low-gang")
    until_pods(cluster, namespace, 2, 0)
    apply(cluster, namespace, queued("high", priorityClass=namespace))
    until_workload(cluster, namespace, "Admitted", "True", "high-gang")
    until_waits(cluster, namespace, "low", "insufficient unused quota")
    names = {pod["metadata"]["labels"]["trainingjob.ml.example.com/name"] for pod in pods(cluster, namespace)}
    assert names <= {"high"}
    ok(cluster, "delete", "trainingjob", "high", "-n", namespace)
    until_pods(cluster, namespace, 2, 1)
    low = ("trainingjob", "low")  # its pods are made before it is told of them
    cluster.until(
        lambda: len(get(cluster, namespace, *low)["status"]["attempts"]) == 2, "the second attempt to be told"
    )
    shown = get(cluster, namespace, *low)["status"]
    assert [attempt.get("cause") for attempt in shown["attempts"]] == ["Evicted", None]
    assert shown.get("retries", 0) == 0


def test_a_deactivated_job_stops_and_goes_on_when_it_is_active_again(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    apply(cluster, namespace, queued())
    until_pods(cluster, namespace, 2, 0)
    activate(cluster, namespace, active=False)
    until_workload(cluster, namespace, "QuotaReserved", "False")
    until_waits(cluster, namespace, NAME, "Set its spec.active to true")
    assert pods(cluster, namespace) == []
    activate(cluster, namespace, active=True)
    until_pods(cluster, namespace, 2, 1)
    assert status(cluster, namespace)["attempts"][0]["cause"] == "Evicted"


def test_a_workload_that_somebody_deletes_is_asked_for_anew(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    apply(cluster, namespace, queued())
    until_pods(cluster, namespace, 2, 0)
    ok(cluster, "delete", "workload", GANG, "-n", namespace)
    until_pods(cluster, namespace, 2, 1)
    assert status(cluster, namespace)["attempts"][0]["cause"] == "Evicted"


def test_a_job_that_is_held_gives_its_quota_back(cluster, namespace, kueue):
    open_queue(cluster, namespace)
    apply(cluster, namespace, queued())
    until_pods(cluster, namespace, 2, 0)
    ok(cluster, "patch", "trainingjob", NAME, "-n", namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    until_phase(cluster, namespace, "Suspended")
    cluster.until(
        lambda: cluster.kubectl("get", "workload", GANG, "-n", namespace).returncode != 0, "the workload to go"
    )


def activate(cluster: Cluster, namespace: str, *, active: bool) -> None:
    patch = json.dumps({"spec": {"active": active}})
    ok(cluster, "patch", "workload", GANG, "-n", namespace, "--type=merge", "-p", patch)
