"""The node `local` when things go wrong: processes are killed, the node is drained, goes down, comes back."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from skysail.local import addresses
from skysail.local.addresses import NODE
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials
from skysail.local.control_plane.flags import Component
from skysail.local.control_plane.pki import NODE_AGENT
from tests.e2e.test_node_parts import virtual_node
from tests.support import proxy as faults
from tests.support.cluster import Cluster
from tests.support.kubectl import (
    TIMEOUT,
    apply,
    conditions,
    fresh_namespace,
    get,
    ok,
    pod,
    status,
    until_condition,
    until_phase,
    until_ready_again,
)
from tests.support.proxy import Proxy, Seen
from tests.support.writers import RUNS, SERVES, WAITS, WORKS, Disk, deployment, job, writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def rng() -> random.Random:
    """Of the seed that a failed test has printed, where it is given."""
    seed = int(os.environ.get("SKYSAIL_TEST_SEED", secrets.randbits(32)))
    print(f"SKYSAIL_TEST_SEED={seed}")  # noqa: T201 (pytest shows it where the test fails)
    return random.Random(seed)


def pods(node: Cluster, namespace: str, selector: str) -> list[dict]:
    return get(node, namespace, "pods", "-l", selector)["items"]


def uids(found: list[dict], phase: str) -> set[str]:
    return {row["metadata"]["uid"] for row in found if row["status"]["phase"] == phase}


def end_of(shown: dict) -> dict:
    """How the only container of a pod ended."""
    return shown["containerStatuses"][0]["state"]["terminated"]


def until_complete(node: Cluster, namespace: str, name: str) -> dict:
    """Also while the API server is away."""
    path = "jsonpath={.status.conditions[?(@.type=='Complete')].status}"
    node.until(
        lambda: node.kubectl("get", "job", name, "-n", namespace, "-o", path).stdout == "True", f"job {name} to end"
    )
    return get(node, namespace, "job", name)["status"]


def kill_at_random_points(node: Cluster, victims: tuple[str, ...], disk: Disk, rng: random.Random) -> None:
    """While the first programs come and go: each point is a number of starts and ends that were seen."""
    for point in sorted(rng.sample(range(1, 9), 2)):
        node.until(lambda point=point: len(disk.lines) >= point, f"{point} starts and ends")
        before = {victim: node.unit(victim).restarts for victim in victims}
        for victim in victims:
            node.signal(victim)
        node.until(
            lambda before=before: all(node.unit(victim).restarts > count for victim, count in before.items()),
            f"{victims} to be started again",
        )


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(("agent",), id="alone"),
        pytest.param((Component.API_SERVER, "agent"), id="with-api-server", marks=pytest.mark.on_demand),
    ],
)
def test_a_killed_agent_has_lost_its_pods_and_the_job_makes_good_for_them(node, namespace, rng, victims):
    disk = Disk(node, namespace)
    apply(node, namespace, job("j", WORKS, completions=6, parallelism=2, backoffLimit=50))
    kill_at_random_points(node, victims, disk, rng)
    shown = until_complete(node, namespace, "j")
    assert (shown["succeeded"], shown["completedIndexes"]) == (6, "0-5")
    found = pods(node, namespace, "job-name=j")
    assert len(uids(found, "Succeeded")) == 6, "one for each completion"
    assert uids(found, "Succeeded") <= disk.ends.keys()
    assert set(disk.starts.values()) == {1}, "no pod that runs once was started twice"
    lost = [row for row in found if row["status"]["phase"] == "Failed"]
    # At random points there may be no pod to lose.
    assert {end_of(row["status"])["reason"] for row in lost} <= {"Lost"}
    assert {end_of(row["status"])["exitCode"] for row in lost} <= {137}
    assert all("agent" in end_of(row["status"])["message"] for row in lost)


@pytest.mark.parametrize("victim", ["survivor", pytest.param(Component.API_SERVER, marks=pytest.mark.on_demand)])
def test_a_killed_operator_or_api_server_costs_no_pod_anything(node, namespace, rng, victim):
    login = f"--kubeconfig={node.operator_kubeconfig}"
    argv = (sys.executable, "-P", "-m", "skysail", "run", login, f"--webhook-host={addresses.CLUSTER_IP}")
    node.control.start_unit(Unit(name="survivor", argv=argv))
    try:
        disk = Disk(node, namespace)
        apply(node, namespace, job("j", WORKS, completions=6, parallelism=2, backoffLimit=50))
        apply(node, namespace, writer("stays", RUNS, restart="Always"))
        agent = node.unit("agent").restarts
        kill_at_random_points(node, (victim,), disk, rng)
        shown = until_complete(node, namespace, "j")
        assert (shown["succeeded"], shown["completedIndexes"], shown.get("failed", 0)) == (6, "0-5", 0)
        found = pods(node, namespace, "job-name=j")
        assert len(found) == 6
        until_condition(node, namespace, "pod/stays", "Ready")
        assert status(node, namespace, "stays")["containerStatuses"][0]["restartCount"] == 0
        stays = get(node, namespace, "pod", "stays")["metadata"]["uid"]
        assert disk.starts == dict.fromkeys({stays, *uids(found, "Succeeded")}, 1)
        assert node.unit("agent").restarts == agent
    finally:
        node.stop("survivor")


class KillBefore(faults.Fault):
    """The process dies with the request in its hand: the server never hears of it."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill

    async def before(self) -> None:
        self._kill()
        raise faults.Cut


@pytest.fixture
def watched(node: Cluster) -> Iterator[Proxy]:
    """The agent speaks through a proxy, and is not started again when it is killed."""
    login = credentials.inside_path(node.home, "node")
    own = login.read_bytes()
    node.stop("agent")
    with Proxy(node, NODE_AGENT) as proxy:
        shutil.copy(proxy.kubeconfig, login)
        yield proxy
        node.stop("agent")
    login.write_bytes(own)
    node.start_agent()


def begin_agent(node: Cluster) -> None:
    argv = (sys.executable, "-m", "skysail.app.node_agent", str(node.home.root))
    node.control.start_unit(Unit(name="agent", argv=argv, restart=False))


@pytest.mark.parametrize("is_told", [False, True], ids=["untold", "told"])
@pytest.mark.parametrize("has_ended", [False, True], ids=["running", "ended"])
def test_what_was_started_is_never_started_again_whatever_was_told_of_it(node, namespace, watched, has_ended, is_told):
    begin_agent(node)
    disk = Disk(node, namespace)

    def is_report(seen: Seen) -> bool:
        """Of what is looked for: of a start that takes long, another one is written before."""
        if not seen.is_mutating or seen.path != f"/api/v1/namespaces/{namespace}/pods/once/status":
            return False
        return json.loads(seen.body)["status"]["phase"] == ("Succeeded" if has_ended else "Running")

    def kill() -> None:
        node.signal("agent", signal.SIGKILL)

    watched.on(is_report, faults.Kill(kill) if is_told else KillBefore(kill))
    apply(node, namespace, writer("once", WAITS))
    if has_ended:
        until_phase(node, namespace, "once", "Running")
        (disk.folder / "go").touch()
    node.until(lambda: node.unit("agent").state == "stopped", "the agent to be killed")
    told = status(node, namespace, "once").get("phase")
    assert told == {(0, 0): "Pending", (0, 1): "Running", (1, 0): "Running", (1, 1): "Succeeded"}[has_ended, is_told]
    begin_agent(node)
    shown = until_phase(node, namespace, "once", "Succeeded" if has_ended else "Failed")
    end = end_of(shown)
    assert (end["exitCode"], end["reason"]) == ((0, "Completed") if has_ended else (137, "Lost"))
    assert shown["containerStatuses"][0]["restartCount"] == 0
    uid = get(node, namespace, "pod", "once")["metadata"]["uid"]
    # Killed so early, it may not have come to its first line; it is not started again for that.
    assert disk.starts in ([{uid: 1}] if has_ended else [{uid: 1}, {}])


def test_an_agent_that_stops_in_order_tells_the_same_and_who_may_run_again_does(node, namespace):
    disk = Disk(node, namespace)
    apply(node, namespace, writer("once", RUNS), writer("again", RUNS, restart="Always"))
    for name in ("once", "again"):
        until_condition(node, namespace, f"pod/{name}", "Ready")
    node.until(lambda: len(disk.starts) == 2, "both programs to run")
    before = len(node.log("agent"))
    node.stop("agent")
    node.resume("agent")
    assert end_of(until_phase(node, namespace, "once", "Failed"))["reason"] == "Lost"
    node.until(lambda: sum(disk.starts.values()) == 3, "the other one to run again")
    assert until_ready_again(node, namespace, "again")["lastState"]["terminated"]["reason"] == "Lost"
    assert "Traceback" not in node.log("agent")[before:]


def test_what_an_init_container_left_is_made_again_or_the_pod_is_lost(node, namespace):
    disk = Disk(node, namespace)
    mounts = [{"name": "disk", "mountPath": "/disk"}, {"name": "own", "mountPath": "/own"}]
    init = {"name": "init", "image": "busybox", "command": ["sh", "-c", "echo x >> /own/x"], "volumeMounts": mounts}
    for name, restart in (("once", "Never"), ("again", "Always")):
        manifest = writer(name, f"cat /own/x || exit 3; {RUNS}", restart=restart, initContainers=[init])
        manifest["spec"]["volumes"].append({"name": "own", "emptyDir": {}})
        manifest["spec"]["containers"][0]["volumeMounts"] = mounts
        apply(node, namespace, manifest)
        until_condition(node, namespace, f"pod/{name}", "Ready")
    node.until(lambda: len(disk.starts) == 2, "both programs to run")
    node.signal("agent")
    assert end_of(until_phase(node, namespace, "once", "Failed"))["reason"] == "Lost"
    node.until(lambda: sum(disk.starts.values()) == 3, "the other one to run again")
    until_ready_again(node, namespace, "again")
    node.until(lambda: node.kubectl("logs", "again", "-n", namespace).stdout == "x\n", "what the program printed")


def test_a_drain_keeps_the_grace_and_the_budget_and_the_pods_come_back(node, namespace):
    disk = Disk(node, namespace)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "d"}}}
    guard = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": budget}
    apply(node, namespace, guard, deployment("d", SERVES, terminationGracePeriodSeconds=600))
    ok(node, "rollout", "status", "deploy/d", "-n", namespace, TIMEOUT)
    node.until(lambda: sum(disk.starts.values()) == 2, "both programs to listen for their end")
    until_budget(node, namespace, allowed=1)
    drain = ("drain", NODE, "--pod-selector=app=d", "--delete-emptydir-data")
    refused = node.kubectl(*drain, "--timeout=10s")
    assert refused.returncode == 1
    assert "would violate the pod's disruption budget" in refused.stderr
    node.until(lambda: sum(disk.ends.values()) == 1, "the one that could go to end in its own time")
    ok(node, "delete", "pdb", "b", "-n", namespace)
    assert "evicted" in ok(node, *drain, TIMEOUT)
    assert disk.ends == disk.starts, "the other one had it, too"
    assert {row["status"]["phase"] for row in pods(node, namespace, "app=d")} == {"Pending"}
    ok(node, "uncordon", NODE)
    ok(node, "rollout", "status", "deploy/d", "-n", namespace, TIMEOUT)
    node.until(lambda: sum(disk.starts.values()) == 4, "two programs to be back")


def until_budget(node: Cluster, namespace: str, *, allowed: int) -> None:
    node.until(
        lambda: get(node, namespace, "pdb", "b").get("status", {}).get("disruptionsAllowed") == allowed, "the budget"
    )


def test_describe_prints_what_one_expects(node, namespace):
    apply(node, namespace, pod("ended", "sh", "-c", "exit 37"), pod("runs", "sleep", "1000"))
    apply(node, namespace, pod("unknown", "true", container={"image": "nobody/knows:this"}))
    until_phase(node, namespace, "ended", "Failed")
    until_condition(node, namespace, "pod/runs", "Ready")
    expected = {
        ("pod", "ended"): (f"Node: {NODE}/{addresses.CLUSTER_IP}", "Status: Failed", "Exit Code: 37", "Reason: Error"),
        ("pod", "runs"): ("Ready True", "Scheduled"),
        ("pod", "unknown"): ("skysail image add", "ImagePull"),
        ("node", NODE): ("HolderIdentity: local", "Ready True", "cpu: 64", f"{namespace} runs", "MemoryPressure False"),
    }
    # Events, the node's lease and a pod's status have writers of their own.
    for (what, name), words in expected.items():
        for word in words:
            node.until(
                lambda what=what, name=name, word=word: word in described(node, what, name, namespace),
                f"{what} {name} to be described by {word!r}",
            )


def described(node: Cluster, what: str, name: str, namespace: str) -> str:
    """With one blank where kubectl aligns columns."""
    return " ".join(ok(node, "describe", what, name, "-n", namespace).split())


def test_a_node_that_is_deleted_comes_back_and_its_pods_do_not_notice(node, namespace):
    disk = Disk(node, namespace)
    apply(node, namespace, writer("a", RUNS, restart="Always"))
    node.until(lambda: sum(disk.starts.values()) == 1, "the program to run")
    until_condition(node, namespace, "pod/a", "Ready")
    before = get(node, "default", "node", NODE)["metadata"]["uid"]
    ok(node, "delete", "node", NODE)

    def owner() -> str:
        lease = node.kubectl("get", "lease", NODE, "-n", "kube-node-lease", "-o", "json")
        return json.loads(lease.stdout)["metadata"]["ownerReferences"][0]["uid"] if lease.returncode == 0 else ""

    def new() -> str:
        uid = node.kubectl("get", "node", NODE, "-o", "jsonpath={.metadata.uid}").stdout
        return "" if uid == before else uid

    node.until(lambda: new() != "" and owner() == new(), "node and lease to be there again")
    until_condition(node, namespace, f"node/{NODE}", "Ready")
    until_condition(node, namespace, "pod/a", "Ready")
    assert sum(disk.starts.values()) == 1


# The tolerations are short. The grace is hardly: a shorter one would take pods from a machine that is only slow.
IMPATIENT = {
    Component.CONTROLLER_MANAGER: ("--node-monitor-period=1s", "--node-monitor-grace-period=40s"),
    Component.API_SERVER: ("--default-not-ready-toleration-seconds=1", "--default-unreachable-toleration-seconds=1"),
}


def test_a_node_that_was_away_is_ready_again_and_its_pods_have_an_honest_end(tmp_path):
    """Beside another node: where all are away, the node controller blames itself and evicts nobody."""
    with Cluster(tmp_path / "home", extra=IMPATIENT) as node, virtual_node(node, "cloud.example", tmp_path / "cloud"):
        node.start_agent()
        node.until(lambda: "cloud.example" in ok(node, "get", "nodes", "-o", "name"), "another node")
        with fresh_namespace(node) as namespace:
            disk = Disk(node, namespace)
            patient = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
            seen = writer("seen", RUNS)
            seen["metadata"]["finalizers"] = ["example.com/keeps-it-in-sight"]
            apply(node, namespace, seen, writer("stays", RUNS, restart="Always", tolerations=patient))
            apply(node, namespace, deployment("d", RUNS), job("j", WAITS, backoffLimit=50))
            node.until(lambda: len(disk.starts) == 5, "every program to run")
            until_condition(node, namespace, "pod/stays", "Ready")
            node.stop("agent")
            until_given_up(node, namespace)
            node.resume("agent")
            until_condition(node, namespace, f"node/{NODE}", "Ready")
            (disk.folder / "go").touch()
            until_back(node, namespace)


def until_given_up(node: Cluster, namespace: str) -> None:
    """The node is unknown, its pods are not ready, and those that do not wait for it are to go."""
    node.until(lambda: conditions(get(node, "default", "node", NODE)["status"])["Ready"] == "Unknown", "the node")
    node.until(lambda: conditions(status(node, namespace, "stays"))["Ready"] == "False", "the pods to be marked")
    bound = {row["metadata"]["name"] for row in get(node, namespace, "pods")["items"] if row["spec"].get("nodeName")}
    for name in bound - {"stays"}:
        node.until(lambda name=name: is_leaving(node, namespace, name), f"{name} to be evicted")
    assert not is_leaving(node, namespace, "stays")


def is_leaving(node: Cluster, namespace: str, name: str) -> bool:
    return "deletionTimestamp" in get(node, namespace, "pod", name)["metadata"]


def until_back(node: Cluster, namespace: str) -> None:
    assert end_of(until_phase(node, namespace, "seen", "Failed"))["reason"] == "Lost"
    ok(node, "patch", "pod", "seen", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert until_complete(node, namespace, "j")["succeeded"] == 1
    ok(node, "rollout", "status", "deploy/d", "-n", namespace, TIMEOUT)
    node.until(lambda: len(pods(node, namespace, "app=d")) == 2, "the evicted pods to be gone")
    assert until_ready_again(node, namespace, "stays")["lastState"]["terminated"]["reason"] == "Lost"


def test_a_stateful_set_has_its_data_after_the_cluster_was_down(tmp_path):
    nonce = secrets.token_hex(16)
    with Cluster(tmp_path / "home") as node:
        node.start_agent()
        with fresh_namespace(node) as namespace:
            apply(node, namespace, stateful_set("s", "cat /data/nonce; exec sleep 1000"))
            ok(node, "rollout", "status", "statefulset/s", "-n", namespace, TIMEOUT)
            ok(node, "exec", "s-0", "-n", namespace, "--", "sh", "-c", f"echo {nonce} > /data/nonce")
            uid = get(node, namespace, "pvc", "data-s-0")["metadata"]["uid"]
            node.control.stop()
            node.home.wait_until_free(600)
    with Cluster(tmp_path / "home") as node:
        node.start_agent()
        node.until(lambda: nonce in node.kubectl("logs", "s-0", "-n", namespace).stdout, "the nonce to come back")
        assert until_ready_again(node, namespace, "s-0")["lastState"]["terminated"]["reason"] == "Lost"
        assert get(node, namespace, "pvc", "data-s-0")["metadata"]["uid"] == uid


def stateful_set(name: str, script: str) -> dict:
    main = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod("", "sh", "-c", script, restart="Always")["spec"]}
    template["spec"]["containers"][0] |= main
    disk = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {
        "serviceName": name,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": disk}],
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
