"""What happens while no operator is there: Kubernetes takes pods and nodes away, and nothing is paid for twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skysail.local.control_plane.flags import Component
from tests.support.clouds import NODES, TAINTS, Books, at, claims, let_go, start_operator
from tests.support.cluster import Cluster
from tests.support.kubectl import Manifest, apply, fresh_namespace, get, ok, pod, until_condition

if TYPE_CHECKING:
    from pathlib import Path

# Of the order of what a real cluster has, only shorter: a node's lease is renewed every ten seconds.
IMPATIENT = {
    Component.CONTROLLER_MANAGER: ("--node-monitor-period=1s", "--node-monitor-grace-period=20s"),
    Component.API_SERVER: ("--default-not-ready-toleration-seconds=1", "--default-unreachable-toleration-seconds=1"),
}
SLEEP = ("sleep", "1000")


def test_cloud_unreachable_keeps_pods_and_does_not_pay_evicted_ones_twice(tmp_path: Path):
    with Cluster(tmp_path / "home", extra=IMPATIENT) as node:
        node.start_agent()
        start_operator(node)
        books = Books(node)
        with fresh_namespace(node) as namespace, fresh_namespace(node) as ending:
            apply(node, namespace, at("modal", pod("stays", *SLEEP)), by_affinity("modal", pod("chosen", *SLEEP)))
            apply(node, namespace, at("modal", job("j", mode="Indexed")), at("modal", job("k", mode="NonIndexed")))
            apply(node, namespace, at("runpod", pod("orphan", *SLEEP)))
            apply(node, ending, at("modal", pod("p", *SLEEP)))
            until_ready(node, namespace, 5)
            until_ready(node, ending, 1)
            before = {name: row["metadata"]["uid"] for name, row in pods(node, namespace).items()}
            for name in ("stays", "chosen"):
                assert not has_an_end(get(node, namespace, "pod", name)), name
            node.stop("operator")
            evicted = [name for name in before if name.startswith(("j-", "k-"))]
            for name in evicted:
                give_an_end(node, namespace, name)
            ok(node, "delete", "namespace", ending, "--wait=false")
            ok(node, "delete", "node", NODES["runpod"])
            # What the collector of pods does after some minutes to those whose node does not exist.
            ok(node, "delete", "pod", "orphan", "-n", namespace, "--grace-period=0", "--force")
            second = {name: until_replaced(node, namespace, name) for name in evicted}
            assert {name for name, row in pods(node, namespace).items() if is_leaving(row)} == {*evicted}
            assert (len(books.billed("modal")), len(books.billed("runpod"))) == (5, 1), "the clouds go on meanwhile"
            start_operator(node)
            for name in second.values():
                until_condition(node, namespace, f"pod/{name}", "Ready")
            node.until(lambda: not {*evicted} & {*pods(node, namespace)}, "the evicted pods to be gone")
            node.until(lambda: books.billed("runpod") == set(), "the instance of the orphan to end")
            node.until(lambda: claims(node, ending) == [], "the claim of the deleted namespace to be gone")
            after = {name: row["metadata"]["uid"] for name, row in pods(node, namespace).items()}
            assert {name: after[name] for name in ("stays", "chosen")} == {n: before[n] for n in ("stays", "chosen")}
            assert {*after} == {"stays", "chosen", *second.values()}
            for name in evicted:
                assert one_after_the_other(books, before[name], after[second[name]]), name
            for uid in {*before.values(), *after.values()}:
                assert books.launches("modal", uid) + books.launches("runpod", uid) == 1
            let_go(node, namespace)
            books.until_let_go(namespace)


def by_affinity(cloud: str, manifest: Manifest) -> Manifest:
    """Sent to a cloud in a way that admission does not look at."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODES[cloud]]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    manifest["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    manifest["spec"]["tolerations"] = [{"key": TAINTS[cloud], "operator": "Exists"}]
    return manifest


def job(name: str, *, mode: str) -> Manifest:
    """Its program does not end before it must: there is time to pay twice."""
    stubborn = pod("", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=20)
    spec = {"template": {"spec": stubborn["spec"]}, "completionMode": mode, "completions": 1}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pods(node: Cluster, namespace: str) -> dict[str, Manifest]:
    return {row["metadata"]["name"]: row for row in get(node, namespace, "pods")["items"]}


def until_ready(node: Cluster, namespace: str, count: int) -> None:
    node.until(lambda: len(pods(node, namespace)) == count, f"{count} pods")
    for name in pods(node, namespace):
        until_condition(node, namespace, f"pod/{name}", "Ready")


def has_an_end(row: Manifest) -> bool:
    return any("tolerationSeconds" in toleration for toleration in row["spec"]["tolerations"])


def give_an_end(node: Cluster, namespace: str, name: str) -> None:
    """As a pod has it that was bound before its operator could do anything about it."""
    tolerations = [
        {**one, "tolerationSeconds": 1} if one["key"].startswith("node.kubernetes.io/") else one
        for one in get(node, namespace, "pod", name)["spec"]["tolerations"]
    ]
    patch = json.dumps({"spec": {"tolerations": tolerations}})
    ok(node, "patch", "pod", name, "-n", namespace, "--type=merge", "-p", patch)


def until_replaced(node: Cluster, namespace: str, name: str) -> str:
    """The Job's controller has made another pod for the same work."""

    def disrupted() -> bool:
        shown = get(node, namespace, "pod", name)
        return is_leaving(shown) and any(row["type"] == "DisruptionTarget" for row in shown["status"]["conditions"])

    def others() -> list[str]:
        return [other for other in pods(node, namespace) if other.startswith(name[:2]) and other != name]

    node.until(disrupted, f"{name} to be evicted")
    node.until(lambda: others() != [], "the Job to make another pod")
    return others()[0]


def is_leaving(row: Manifest) -> bool:
    return "deletionTimestamp" in row["metadata"]


def one_after_the_other(books: Books, first: str, second: str) -> bool:
    """Whether the first had ended when the second was launched."""
    rows = books.ours("modal")
    (instance,) = (row.instance for row in rows if row.verb == "create" and row.claim.startswith(first))
    (end,) = (at for at, row in enumerate(rows) if row.verb == "ended" and row.instance == instance)
    (begin,) = (at for at, row in enumerate(rows) if row.verb == "create" and row.claim.startswith(second))
    return end < begin
