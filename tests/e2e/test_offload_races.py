"""Overflow against the real scheduler: both want to bind the same pods, and each pod is bound once and runs once.

`SKYSAIL_RACES` is the number of pods; `make test-races` takes 1,000.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clouds import NODES, Books, let_go, start_operator
from tests.support.kubectl import apply, fresh_namespace, get, ok, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

PODS = int(os.environ.get("SKYSAIL_RACES", "100"))
POLICY = {
    "apiVersion": "skysail.dev/v1alpha1",
    "kind": "OffloadPolicy",
    "metadata": {"name": "races"},
    "spec": {"namespaceSelector": {}, "providers": ["modal"], "maxInstances": 100_000},
}
UNLIMITED = {"SKYSAIL_LAUNCHES_PER_NAMESPACE": "100000", "SKYSAIL_LAUNCHES_PER_CLOUD": "100000"}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster, env=UNLIMITED, flags=("--no-webhooks",))
    apply(cluster, "default", POLICY)
    yield cluster
    ok(cluster, "delete", "offloadpolicy", "races")
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


def test_overflow_and_scheduler_race_no_pod_is_lost_or_doubled(node):
    books = Books(node)
    with fresh_namespace(node) as namespace:
        since = node.audited
        create(node, namespace)
        node.until(lambda: finished(node, namespace) == PODS, f"{PODS} pods to succeed")
        found = get(node, namespace, "pods")["items"]
        bindings = bound(node, namespace, since)
        assert {item["metadata"]["name"] for item in found} == {f"race-{number}" for number in range(PODS)}
        assert set(bindings.values()) == {1}
        assert len(bindings) == PODS
        for item in found:
            launches = books.launches("modal", item["metadata"]["uid"])
            assert launches == (item["spec"]["nodeName"] == NODES["modal"])
        books.check()
        let_go(node, namespace)
        books.until_let_go(namespace)


def create(node: Cluster, namespace: str) -> None:
    """Create all pods with one request after the other, as fast as kubectl does."""
    items = []
    for number in range(PODS):
        manifest = pod(f"race-{number}", "true")
        manifest["metadata"]["annotations"] = {"modal-operator.io/offload": "true"}
        items.append(manifest)
    ok(
        node,
        "create",
        "-n",
        namespace,
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )


def finished(node: Cluster, namespace: str) -> int:
    items: list[dict[str, Any]] = get(node, namespace, "pods")["items"]
    phases = Counter(item["status"]["phase"] for item in items)
    assert not phases["Failed"], phases
    return phases["Succeeded"]


def bound(node: Cluster, namespace: str, since: int) -> Counter[str]:
    """Return how often each pod was bound, by the audit log."""
    found: Counter[str] = Counter()
    for row in node.audit(since):
        about = row.get("objectRef", {})
        is_binding = (about.get("subresource"), about.get("namespace")) == ("binding", namespace)
        if is_binding and row["responseStatus"]["code"] == 201:
            found[about["name"]] += 1
    return found
