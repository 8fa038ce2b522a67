"""Pods at simulated clouds on the real plane: kubectl finds them as on any node, and the ledgers say what was paid."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from skysail.local.control_plane.flags import Component
from tests.support.clouds import NODES, Books, at, claims, let_go, start_operator, until_nodes_are_ready
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

CLOUDS = tuple(NODES)
SLEEP = ("sleep", "1000")
# Says that it was asked to end, and does so.
POLITE = "trap 'echo farewell; exit 0' TERM; echo ahoy; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster, restart=True)
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    # Nodes that nobody keeps are called ready for a while, and would be given pods of the next tests on this cluster.
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    """After each test: nothing was paid twice, nothing of a stranger was touched, and nothing is left."""
    with fresh_namespace(node) as name:
        yield name
        books.check()
        let_go(node, name)
        books.until_let_go(name)


def end_of(shown: dict) -> dict:
    return shown["containerStatuses"][0]["state"]["terminated"]


def uid(node: Cluster, namespace: str, name: str) -> str:
    return get(node, namespace, "pod", name)["metadata"]["uid"]


def job(name: str, script: str, **spec: object) -> dict:
    template = {"spec": pod("", "sh", "-c", script)["spec"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_nonce_and_an_exit_code_come_back_and_the_log_outlives_the_instance(node, namespace, books, cloud):
    nonce = secrets.token_hex(16)
    ok(node, "create", "secret", "generic", "s", f"--from-literal=nonce={nonce}", "-n", namespace)
    env = [{"name": "NONCE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "nonce"}}}]
    script = 'printf %s "$NONCE" | sha256sum; exit 37'
    apply(node, namespace, at(cloud, pod("p", "sh", "-c", script, container={"env": env})))
    shown = until_phase(node, namespace, "p", "Failed")
    assert (end_of(shown)["exitCode"], end_of(shown)["reason"]) == (37, "Error")
    (claim,) = claims(node, namespace)
    assert claim["status"]["exit"]["code"] == 37
    node.until(lambda: claims(node, namespace)[0]["status"]["state"] == "Terminated", "the confirmed end")
    assert claim["metadata"]["name"] not in books.billed(cloud)
    assert ok(node, "logs", "p", "-n", namespace).split()[0] == hashlib.sha256(nonce.encode()).hexdigest()
    assert books.launches(cloud, uid(node, namespace, "p")) == 1
    assert nonce not in json.dumps(claim), "a claim holds no secrets"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_running_pod_can_be_entered_and_reached_and_its_claim_tells_its_story(node, namespace, books, cloud):
    serves = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')"
    apply(node, namespace, at(cloud, pod("p", "python", "-u", "-c", serves, container={"image": "python:3"})))
    node.until(lambda: "Serving HTTP" in node.kubectl("logs", "p", "-n", namespace).stdout, "the program to listen")
    until_condition(node, namespace, "pod/p", "Ready")
    nonce = secrets.token_hex(16)
    answer = node.kubectl("exec", "-i", "p", "-n", namespace, "--", "sh", "-c", "cat; exit 7", stdin=nonce)
    assert (answer.stdout, answer.returncode) == (nonce, 7)
    ok(node, "exec", "p", "-n", namespace, "--", "sh", "-c", f"echo {nonce} > nonce")
    with forwarded(node, namespace, "p", 8000) as port:
        assert fetch(port, "/nonce") == f"{nonce}\n"
    node.until(lambda: "/nonce" in ok(node, "logs", "p", "-n", namespace), "the request to be logged")
    (line,) = [row.split() for row in ok(node, "get", "ci").splitlines() if namespace in row]
    assert line[1:-1] == [cloud, "Running", {"modal": "0.1", "runpod": "0.06"}[cloud], namespace, "p"]
    wide = ok(node, "get", "ci", "-o", "wide")
    assert (
        " ".join(wide.splitlines()[0].split()) == "NAME PROVIDER GPU STATE USD/H NAMESPACE OWNER GPUS ID REGION USD AGE"
    )
    assert claims(node, namespace)[0]["status"]["instanceId"] in wide
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    assert books.billed(cloud) == set()


@contextlib.contextmanager
def forwarded(node: Cluster, namespace: str, name: str, port: int) -> Iterator[int]:
    command = [*node.binaries.commands[Component.KUBECTL], "port-forward", f"pod/{name}", f":{port}", "-n", namespace]
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"127.0.0.1:(\d+)", process.stdout.readline() if process.stdout else "")
            assert found, process.stderr and process.stderr.read()
            yield int(found[1])
        finally:
            process.terminate()


def fetch(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=240) as reply:
        return reply.read().decode()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_deleted_pod_may_end_in_its_own_time_and_its_name_is_free_again(node, namespace, books, cloud):
    spec = {"terminationGracePeriodSeconds": 60}
    apply(node, namespace, at(cloud, pod("p", "sh", "-c", POLITE, **spec)))
    until_condition(node, namespace, "pod/p", "Ready")
    first = uid(node, namespace, "p")
    node.until(lambda: "ahoy" in ok(node, "logs", "p", "-n", namespace), "the program to listen")
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    (exited,) = [row for row in books.ours(cloud) if row.verb == "exited" and row.instance == instance(books, first)]
    assert exited.exit is not None
    assert exited.exit.code == 0, "it was asked, not killed"
    apply(node, namespace, at(cloud, pod("p", "true")))
    until_phase(node, namespace, "p", "Succeeded")
    second = uid(node, namespace, "p")
    assert (books.launches(cloud, first), books.launches(cloud, second)) == (1, 1)


def instance(books: Books, pod_uid: str) -> str:
    """The only one that a pod ever had."""
    (row,) = [
        row for cloud in CLOUDS for row in books.ours(cloud) if row.verb == "create" and row.claim.startswith(pod_uid)
    ]
    return row.instance


def test_a_pod_deleted_by_force_ends_its_instance_and_another_one_may_have_its_name(node, namespace, books):
    apply(node, namespace, at("modal", pod("p", *SLEEP)))
    until_condition(node, namespace, "pod/p", "Ready")
    first = uid(node, namespace, "p")
    ok(node, "delete", "pod", "p", "-n", namespace, "--grace-period=0", "--force")
    apply(node, namespace, at("modal", pod("p", *SLEEP)))
    until_condition(node, namespace, "pod/p", "Ready")
    second = uid(node, namespace, "p")
    node.until(lambda: books.billed("modal") == {f"{second}-0"}, "the first instance to end")
    assert (books.launches("modal", first), books.launches("modal", second)) == (1, 1)


def test_a_job_pays_once_for_each_of_its_tries_and_once_for_each_of_its_indexes(node, namespace, books):
    apply(node, namespace, at("modal", job("fails", "exit 37", backoffLimit=1)))
    indexed = job("works", "echo $JOB_COMPLETION_INDEX", completionMode="Indexed", completions=3, parallelism=3)
    apply(node, namespace, at("modal", indexed))
    until_condition(node, namespace, "job/works", "Complete")
    until_condition(node, namespace, "job/fails", "Failed")
    shown = get(node, namespace, "job", "works")["status"]
    assert (shown["succeeded"], shown["completedIndexes"]) == (3, "0-2")
    assert get(node, namespace, "job", "fails")["status"]["failed"] == 2
    found = get(node, namespace, "pods")["items"]
    assert len(found) == 5
    assert {books.launches("modal", row["metadata"]["uid"]) for row in found} == {1}
    told = ok(node, "logs", "-l", "job-name=works", "-n", namespace, "--tail=-1")
    assert sorted(told.split()) == ["0", "1", "2"]


def test_a_drain_ends_what_runs_at_the_cloud_and_pays_no_more(node, namespace, books):
    apply(node, namespace, at("modal", pod("p", "sh", "-c", POLITE)))
    until_condition(node, namespace, "pod/p", "Ready")
    try:
        drained = ok(node, "drain", NODES["modal"], "--force", "--ignore-daemonsets", TIMEOUT)
        assert "p evicted" in drained or "evicting" in drained
        assert get(node, namespace, "pods")["items"] == []
        assert books.billed("modal") == set()
        apply(node, namespace, at("modal", pod("q", "true")))
        until_condition(node, namespace, "pod/q", "PodScheduled=false")
    finally:
        ok(node, "uncordon", NODES["modal"])
    until_phase(node, namespace, "q", "Succeeded")


def test_a_deleted_node_comes_back_at_once_and_its_pods_run_on(node, namespace, books):
    apply(node, namespace, at("modal", pod("p", *SLEEP)))
    until_condition(node, namespace, "pod/p", "Ready")
    before = node_uid(node)
    ok(node, "delete", "node", NODES["modal"])
    node.until(lambda: node_uid(node) not in {before, ""}, "the node to be there again")
    until_nodes_are_ready(node)
    assert ok(node, "exec", "p", "-n", namespace, "--", "echo", "here") == "here\n"
    assert books.launches("modal", uid(node, namespace, "p")) == 1
    # A label that somebody changes is corrected, because pods select the node by it.
    label = ("get", "node", NODES["modal"], "-o", "jsonpath={.metadata.labels.type}")
    correct = ok(node, *label)
    ok(node, "label", "node", NODES["modal"], "type=other", "--overwrite")
    node.until(lambda: node.kubectl(*label).stdout == correct != "other", "the label to be corrected")


def node_uid(node: Cluster) -> str:
    command = ("get", "node", NODES["modal"], "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
    return node.kubectl(*command).stdout


def test_daemons_on_virtual_nodes_are_shown_and_cost_nothing(node, namespace, books):
    before = {cloud: books.count(cloud, "create") for cloud in CLOUDS}
    # Nodes that another test left are none of its business.
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["local", *NODES.values()]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    placed = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    spec = pod("", *SLEEP, restart="Always", tolerations=[{"operator": "Exists"}], affinity=placed)["spec"]
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    wanted = {"selector": {"matchLabels": labels}, "template": template}
    apply(node, namespace, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": wanted})
    ok(node, "rollout", "status", "ds/d", "-n", namespace, TIMEOUT)
    shown = get(node, namespace, "pods", "-l", "app=d")["items"]
    assert {row["spec"]["nodeName"] for row in shown} == {"local", *NODES.values()}
    marked = [row for row in shown if "skysail.dev/placeholder" in row["metadata"].get("annotations", {})]
    assert {row["spec"]["nodeName"] for row in marked} == set(NODES.values())
    assert claims(node, namespace) == []
    assert {cloud: books.count(cloud, "create") for cloud in CLOUDS} == before


def test_a_deleted_namespace_takes_its_instances_along(node, books):
    with fresh_namespace(node) as namespace:
        apply(node, namespace, at("modal", pod("p", *SLEEP)), at("runpod", pod("q", *SLEEP)))
        for name in ("p", "q"):
            until_condition(node, namespace, f"pod/{name}", "Ready")
        ok(node, "delete", "namespace", namespace, TIMEOUT)
        assert not any(books.billed(cloud) for cloud in CLOUDS)
        books.until_let_go(namespace)


def test_tenants_have_no_rights_on_claims(node, namespace):
    for role in ("admin", "edit", "view"):
        name = f"{role}-of-{namespace}"
        ok(node, "create", "rolebinding", role, f"--clusterrole={role}", f"--user={name}", "-n", namespace)
        tenant = node.user(name)
        everything = ("auth", "can-i", "--list", "-n", namespace)
        node.until(lambda: "pods/log" in node.kubectl(*everything, as_user=tenant).stdout, f"{name} to be let in")  # noqa: B023 (called at once)
        allowed = node.kubectl(*everything, as_user=tenant).stdout
        assert not re.search(r"cloudinstances|skysail|\*\.\*", allowed), allowed
        for command in (("get", "ci"), ("delete", "ci", "--all")):
            assert "forbidden" in node.kubectl(*command, as_user=tenant).stderr
