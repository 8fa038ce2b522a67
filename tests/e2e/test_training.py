"""The life of a TrainingJob on the real API server and under the real Job controller. No node runs its pods here.

What a kubelet would tell of them is written into their status.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

NAME = "mnist"
WORKERS = "trainingjob.ml.example.com/worker"


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with namespace_with_node(cluster) as name:
        yield name


@contextlib.contextmanager
def namespace_with_node(cluster: Cluster) -> Iterator[str]:
    """The node has its name: pods on a node that is not there would be collected while a test looks at them."""
    with fresh_namespace(cluster) as name:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": True}}
        ok(cluster, "create", "-f", "-", stdin=json.dumps(node))
        yield name
        ok(cluster, "delete", "node", name)


def manifest(**spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "trainer:1", "command": ["train"], "workers": 2, **spec}
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": NAME},
        "spec": wanted,
    }


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ok(cluster, "get", "pods", "-n", namespace, "-l", WORKERS, "-o", "json"))[
        "items"
    ]
    return found


def status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = get(cluster, namespace, "trainingjob", NAME).get("status", {})
    return found


def until_pods(cluster: Cluster, namespace: str, number: int, attempt: int) -> None:
    def there() -> bool:
        found = pods(cluster, namespace)
        bury(cluster, namespace, [pod for pod in found if "deletionTimestamp" in pod["metadata"]])
        numbers = {pod["metadata"]["labels"]["skysail.dev/attempt"] for pod in found}
        return len(found) == number and numbers == {str(attempt)}

    cluster.until(there, f"{number} pods of attempt {attempt}")


def bury(cluster: Cluster, namespace: str, leaving: list[dict[str, Any]]) -> None:
    """As a kubelet ends a pod that was deleted: its last status, then the pod. It may be gone by then."""
    for pod in leaving:
        name = pod["metadata"]["name"]
        patch = json.dumps({"status": {"phase": "Failed"}})
        cluster.kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch)
        cluster.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force", "--wait=false")


def until_phase(cluster: Cluster, namespace: str, phase: str) -> dict[str, Any]:
    cluster.until(lambda: status(cluster, namespace).get("phase") == phase, f"the phase {phase}")
    return status(cluster, namespace)


def until_settled(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Until the status speaks of the spec as it is now: what follows from it is made before it is told."""

    def is_so() -> bool:
        shown = get(cluster, namespace, "trainingjob", NAME)
        return bool(shown.get("status", {}).get("observedGeneration") == shown["metadata"]["generation"])

    cluster.until(is_so, "the spec to be seen")
    return status(cluster, namespace)


def tell(cluster: Cluster, namespace: str, phase: str, code: int | None = None, ranks: int = 2) -> None:
    """What the kubelets of the first pods would say. A pod needs a node before it can have run."""
    for pod in pods(cluster, namespace)[:ranks]:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": namespace}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
            done = cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
            assert done.returncode == 0, done.stderr
        at = {"startedAt": "2026-01-01T00:00:00Z"}
        state = {"running": at}
        if code is not None:
            state = {"terminated": {**at, "exitCode": code, "finishedAt": "2026-01-01T00:01:00Z", "message": "the end"}}
        container = {"name": "trainer", "state": state, "image": "trainer:1", "imageID": "", "restartCount": 0}
        patch = json.dumps({"status": {"phase": phase, "containerStatuses": [{**container, "ready": code is None}]}})
        ok(cluster, "patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch)


def test_a_job_waits_runs_and_succeeds(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    until_pods(cluster, namespace, 2, 0)
    cluster.until(lambda: "fits on no node" in _running(status(cluster, namespace)), "the pending reason")
    tell(cluster, namespace, "Running")
    assert until_phase(cluster, namespace, "Running")["startTime"] == "2026-01-01T00:00:00Z"
    tell(cluster, namespace, "Succeeded", 0)
    shown = until_phase(cluster, namespace, "Succeeded")
    assert [attempt["cause"] for attempt in shown["attempts"]] == ["Succeeded"]
    cluster.until(lambda: _phases(cluster, namespace) == ["Succeeded", "Succeeded"], "the workers' last words")
    for event in ("Created 2 worker pods", "Training job completed successfully"):
        cluster.until(lambda event=event: event in _events(cluster, namespace), f"to hear: {event}")  # type: ignore[misc]


def test_a_failed_worker_is_told_and_the_gang_begins_anew(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, manifest(runPolicy={"backoffLimit": 1}))
    until_pods(cluster, namespace, 2, 0)
    tell(cluster, namespace, "Running")
    tell(cluster, namespace, "Failed", 37, ranks=1)
    until_pods(cluster, namespace, 2, 1)
    failure = status(cluster, namespace)["failure"]
    assert (failure["role"], failure["exitCode"], failure["node"]) == ("worker", 37, namespace)
    assert failure["message"] == "the end", "its node does not answer, so it is what the pod said"
    tell(cluster, namespace, "Failed", 37, ranks=1)
    shown = until_phase(cluster, namespace, "Failed")
    assert shown["retries"] == 2
    assert "runPolicy.backoffLimit: 1" in _running(shown)


def test_workers_are_scaled_by_a_patch_and_nothing_is_left_after_a_deletion(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    apply(cluster, namespace, manifest())
    until_pods(cluster, namespace, 2, 0)
    patch = '[{"op": "replace", "path": "/spec/workers", "value": %d}]'
    for attempt, workers in ((1, 4), (2, 1)):
        ok(cluster, "patch", "trainingjob", NAME, "-n", namespace, "--type=json", "-p", patch % workers)
        until_pods(cluster, namespace, workers, attempt)
    services = ok(cluster, "get", "services", "-n", namespace, "-o", "name")
    assert services == ""
    ok(cluster, "delete", "trainingjob", NAME, "-n", namespace)
    left = ("get", "jobs,pods", "-n", namespace, "-o", "name")
    cluster.until(lambda: ok(cluster, *left) == "", "neither job nor pod to be left")


def test_elastic_workers_scale_in_place_after_change_of_render_inputs(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    """The API server refuses to change the template of a Job that is there."""
    apply(cluster, namespace, manifest(elastic={"min": 1, "max": 4}))
    until_pods(cluster, namespace, 2, 0)
    for spec in ({"runPolicy": {"backoffLimit": 9}}, {"workers": 3}):
        ok(cluster, "patch", "trainingjob", NAME, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))
    until_pods(cluster, namespace, 3, 0)
    shown = until_settled(cluster, namespace)
    assert [attempt.get("cause") for attempt in shown["attempts"]] == [None]
    assert {"Accepted": "True"}.items() <= {row["type"]: row["status"] for row in shown["conditions"]}.items()


def test_a_pod_that_somebody_deletes_begins_a_new_attempt_at_no_cost(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    apply(cluster, namespace, manifest(runPolicy={"backoffLimit": 0}))
    until_pods(cluster, namespace, 2, 0)
    tell(cluster, namespace, "Running")
    until_phase(cluster, namespace, "Running")
    name = pods(cluster, namespace)[1]["metadata"]["name"]
    ok(cluster, "delete", "pod", name, "-n", namespace, "--wait=false")
    until_pods(cluster, namespace, 2, 1)
    shown = status(cluster, namespace)
    assert (shown["attempts"][0]["cause"], shown.get("retries", 0)) == ("Deleted", 0)
    assert (shown["failure"]["pod"], shown["failure"]["node"]) == (name, namespace)


def test_pods_that_were_left_without_their_job_are_ended(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    until_pods(cluster, namespace, 2, 0)
    ok(cluster, "delete", "job", f"{NAME}-worker-0", "-n", namespace, "--cascade=orphan")
    until_pods(cluster, namespace, 2, 1)
    assert status(cluster, namespace)["attempts"][0]["cause"] == "Deleted"


def test_a_held_job_has_no_pods_and_goes_on_when_it_may(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    until_pods(cluster, namespace, 2, 0)
    for held, phase in (("true", "Suspended"), ("false", "Pending")):
        ok(
            cluster,
            "patch",
            "trainingjob",
            NAME,
            "-n",
            namespace,
            "--type=merge",
            "-p",
            f'{{"spec":{{"suspend":{held}}}}}',
        )
        until_phase(cluster, namespace, phase)
        if held == "true":
            cluster.until(lambda: pods(cluster, namespace) == [], "no pods while it is held")
    until_pods(cluster, namespace, 2, 1)


def test_a_quota_is_named_while_it_keeps_pods_away(cluster: Cluster, operator: str, namespace: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    apply(cluster, namespace, quota)
    cluster.until(lambda: get(cluster, namespace, "quota", "few").get("status", {}).get("hard"), "the quota to count")
    apply(cluster, namespace, manifest())
    cluster.until(lambda: "exceeded quota: few" in _running(status(cluster, namespace)), "the quota to be named")


def _running(shown: dict[str, Any]) -> str:
    return next((row["message"] for row in shown.get("conditions", []) if row["type"] == "Running"), "")


def _phases(cluster: Cluster, namespace: str) -> list[str]:
    return [worker["phase"] for worker in status(cluster, namespace)["workerStatuses"]]


def _events(cluster: Cluster, namespace: str) -> str:
    return ok(cluster, "get", "events", "-n", namespace, "-o", "jsonpath={.items[*].message}")
