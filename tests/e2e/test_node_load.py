"""The node `local` under load: what a hundred pods leave behind, and what one pod costs the API server."""

from __future__ import annotations

import glob
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skysail.local.addresses import NODE, RUN_FOLDER
from skysail.local.control_plane.flags import Component
from tests.support import holdings
from tests.support.cluster import Cluster
from tests.support.holdings import Process
from tests.support.kubectl import TIMEOUT, apply, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 3
WRITES = {"create", "update", "patch", "delete"}
AGENT = f"system:node:{NODE}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: what is counted must not be another test's."""
    with Cluster(tmp_path_factory.mktemp("load") / "home") as cluster:
        cluster.start_operator()
        cluster.start_agent()
        yield cluster


@pytest.mark.parametrize("pods", [10, pytest.param(100, marks=pytest.mark.on_demand)])
def test_many_pods_three_times_leave_nothing_that_grows(node, namespace, pods):
    # The first pod finds all parts of the agent at work, with the connections that they keep.
    a_round(node, namespace, 1)
    before = held(node)
    a_round(node, namespace, pods)
    until_no_more_than(node, before)
    first = held(node)
    for _ in range(ROUNDS - 1):
        a_round(node, namespace, pods)
    until_no_more_than(node, first)


def a_round(node: Cluster, namespace: str, pods: int) -> None:
    """Pods come, are talked to, and go."""
    mount = {"volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("disk", "memory")]}
    volumes = [{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]
    limits = {"resources": {"limits": {"memory": "50Mi"}, "requests": {"memory": "1Mi", "cpu": "1m"}}}
    names = [f"p{number}" for number in range(pods)]
    many = [pod(name, "sleep", "1000", container={**mount, **limits}, volumes=volumes) for name in names]
    ok(
        node,
        "create",
        "-n",
        namespace,
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": many}),
    )
    ok(node, "wait", "pod", "--all", "-n", namespace, "--for=condition=Ready", TIMEOUT)
    for name in names[:5]:
        assert ok(node, "exec", name, "-n", namespace, "--", "hostname") == f"{name}\n"
        ok(node, "logs", name, "-n", namespace)
    ok(node, "delete", "pod", "--all", "-n", namespace, "--grace-period=1")


def held(node: Cluster) -> dict[str, Counter[str]]:
    """All that a pod could leave behind, in the local cluster and on the machine."""
    outer = Process(node.control.status().pid)
    inside = children(node, outer)
    agent = one(inside, "skysail.app.node_agent")
    home, machine = node.home.root, holdings.machine()
    folders = [*(home / name for name in ("pods", "volumes", "journal", "pod-logs")), agent.root / "run/netns"]
    # Not Path.glob, which fails where a folder goes while it is looked at. Other clusters have theirs beside these.
    own = f"skysail-{home.stat().st_ino}"
    groups = glob.glob(f"{agent.root}{RUN_FOLDER}/cgroup/*/{own}/*/")  # noqa: PTH207 (as above)
    return {
        "processes": Counter(process.command for process in inside),
        "interfaces": Counter(agent.interfaces),
        "interfaces of the machine": Counter(name for name in machine.interfaces if name.startswith("sky")),
        "mounts": Counter(agent.mounts),
        "mounts of the machine": Counter(path for path in machine.mounts if str(home) in path),
        "files": Counter(path.name for folder in folders if folder.is_dir() for path in folder.iterdir()),
        "memory": Counter(path.name for path in (agent.root / "dev/shm").glob("*/*")),
        "control groups": Counter(Path(path).name for path in groups),
        "descriptors of the agent": agent.descriptors,
        "descriptors of the operator": one(inside, "-m skysail run").descriptors,
        "descriptors of the supervisor": one(inside, "skysail.app.local_cluster", last=True).descriptors,
        "descriptors of the outer process": outer.descriptors,
    }


LASTING = ("skysail.app.node_agent", "-m skysail run", "skysail.app.local_cluster")


def children(node: Cluster, outer: Process) -> list[Process]:
    """While some of them end, the kernel may leave others out: it is asked until all are there that stay."""
    found: list[Process] = []

    def are_there() -> bool:
        found[:] = outer.children()
        commands = [process.command for process in found]
        return all(any(words in command for command in commands) for words in LASTING)

    node.until(are_there, "agent, operator and supervisor to be seen")
    return found


def one(processes: list[Process], words: str, *, last: bool = False) -> Process:
    found = [process for process in processes if words in process.command]
    return found[-1 if last else 0]


def until_no_more_than(node: Cluster, before: dict[str, Counter[str]]) -> None:
    """Connections that are kept for the next request go by themselves, half a minute after the last one."""
    surplus: dict[str, Counter[str]] = {}

    def is_no_more() -> bool:
        now = held(node)
        surplus.clear()
        surplus.update({what: now[what] - before[what] for what in now if now[what] - before[what]})
        return not surplus

    try:
        node.until(is_no_more, "what was made for the pods to go")
    finally:
        print(f"still there: {surplus}")  # noqa: T201 (pytest shows it where the test fails)


def test_the_life_of_a_pod_costs_the_agent_six_writes_at_most(node, namespace):
    """A report of its start and one of its end (another of each where that takes long), a token for it, and its last
    delete where it was deleted alive."""
    apply(node, namespace, pod("short", "sleep", "1"), pod("deleted", "sleep", "1000"))
    until_phase(node, namespace, "short", "Succeeded")
    until_condition(node, namespace, "pod/deleted", "Ready")
    ok(node, "delete", "pod", "short", "deleted", "-n", namespace)
    node.until(lambda: not get(node, namespace, "pods")["items"], "the pods to be gone")
    report, token = ("patch", "pods/status"), ("create", "serviceaccounts/token")
    assert writes(node, namespace, AGENT, "short") <= Counter({report: 3})
    assert writes(node, namespace, AGENT, "deleted") <= Counter({report: 4, ("delete", "pods"): 1})
    assert writes(node, namespace, AGENT, "default") == Counter({token: 2}), "one for each pod"
    scheduler = f"system:{Component.SCHEDULER}"
    for name in ("short", "deleted"):
        assert writes(node, namespace, scheduler, name) == Counter({("create", "pods/binding"): 1})
    node.until(lambda: events(node, namespace, scheduler) == 2, "it to be told that each was scheduled")
    assert events(node, namespace, AGENT) <= 1, "that one is ended is told, and nothing else"


def writes(node: Cluster, namespace: str, user: str, name: str) -> Counter[tuple[str, str]]:
    """By verb and resource, of one user, to objects of this name."""
    return Counter(
        (row["verb"], "/".join(filter(None, (row["objectRef"]["resource"], row["objectRef"].get("subresource")))))
        for row in written(node, namespace, user)
        if row["objectRef"].get("name") == name and row["objectRef"]["resource"] != "events"
    )


def events(node: Cluster, namespace: str, user: str) -> int:
    return sum(row["objectRef"]["resource"] == "events" for row in written(node, namespace, user))


def written(node: Cluster, namespace: str, user: str) -> list[dict]:
    """What was refused wrote nothing: the API server may learn of a pod's rights a little after the node does."""
    return [
        row
        for row in node.audit()
        if row["user"]["username"] == user
        and row["verb"] in WRITES
        and row["responseStatus"]["code"] < 300
        and row.get("objectRef", {}).get("namespace") == namespace
    ]
