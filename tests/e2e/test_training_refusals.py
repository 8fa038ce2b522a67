"""What only the real API server knows to be wrong with a podTemplate: it is asked before anything ends or begins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_training import (
    NAME,
    manifest,
    namespace_with_node,
    pods,
    status,
    tell,
    until_phase,
    until_pods,
)
from tests.support.kubectl import apply, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a field that nobody knows": (
        {"nodeSelektor": {"zone": "a"}},
        "spec.podTemplate.spec.nodeSelektor: field not declared in schema",
    ),
    "text for a map": ({"nodeSelector": "a"}, "spec.podTemplate.spec.nodeSelector: expected map"),
    "less than nothing": (
        {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "-1"}}}]},
        "spec.podTemplate.spec.containers[0].resources.limits[cpu]: Invalid value",
    ),
    "no amount": (
        {"containers": [{"name": "trainer", "resources": {"limits": {"cpu": "4GB"}}}]},
        "quantities must match",
    ),
    "a mount of no volume": (
        {"containers": [{"name": "trainer", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]},
        'Not found: "nowhere"',
    ),
}


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with namespace_with_node(cluster) as name:
        yield name


def test_a_bad_template_ends_no_training_that_runs(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, manifest())
    until_pods(cluster, namespace, 2, 0)
    tell(cluster, namespace, "Running")
    until_phase(cluster, namespace, "Running")
    for spec, said in WRONG.values():
        patch(cluster, namespace, spec)
        told = until_told(cluster, namespace, said)
        assert told.startswith("The current attempt continues with its old spec. The API server rejects the pods")
    assert [attempt.get("cause") for attempt in status(cluster, namespace)["attempts"]] == [None]
    assert {pod["metadata"]["labels"]["skysail.dev/attempt"] for pod in pods(cluster, namespace)} == {"0"}
    patch(cluster, namespace, {"nodeSelector": {"zone": "a"}})
    until_pods(cluster, namespace, 2, 1)
    assert status(cluster, namespace)["attempts"][0]["cause"] == "SpecChanged"


def test_a_bad_template_begins_nothing_and_says_why(cluster: Cluster, operator: str, namespace: str) -> None:
    spec, said = WRONG["a field that nobody knows"]
    apply(cluster, namespace, manifest(podTemplate={"spec": spec}))
    told = until_told(cluster, namespace, said)
    events = ("get", "events", "-n", namespace, "-o", "jsonpath={.items[*].message}")
    cluster.until(lambda: told in ok(cluster, *events), "the same words in an event")
    shown = status(cluster, namespace)
    assert (shown["phase"], shown.get("attempts", [])) == ("Pending", [])
    assert ok(cluster, "get", "jobs", "-n", namespace, "-o", "name") == ""
    patch(cluster, namespace, None)
    until_pods(cluster, namespace, 2, 0)


def patch(cluster: Cluster, namespace: str, spec: dict[str, Any] | None) -> None:
    """All of the template: a merge would leave what was wrong before."""
    for template in (None, {"spec": spec}) if spec else (None,):
        wanted = json.dumps({"spec": {"podTemplate": template}})
        ok(cluster, "patch", "trainingjob", NAME, "-n", namespace, "--type", "merge", "-p", wanted)


def until_told(cluster: Cluster, namespace: str, said: str) -> str:
    def accepted() -> str:
        rows = status(cluster, namespace).get("conditions", [])
        return next((row["message"] for row in rows if row["type"] == "Accepted" and row["status"] == "False"), "")

    cluster.until(lambda: said in accepted(), f"to be told {said}")
    return accepted()
