"""Operators that die, pause and come back while they pay: the work is done, and nothing is paid for twice."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from skysail.kube.leader_election import NAME as LEASE
from skysail.local.control_plane import credentials
from tests.support import proxy as faults
from tests.support import sampling
from tests.support.cloud_proxy import CloudProxy
from tests.support.clouds import NODES, Books, at, claims, flags, let_go, until_nodes_are_ready
from tests.support.kubectl import apply, fresh_namespace, get, ok, pod, status, until_condition, until_phase
from tests.support.proxy import Proxy, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.cluster import Cluster
    from tests.support.proxy import Fault

OPERATOR = "operator"
STANDBY_PORT = 8090


class Scene:
    """An operator that speaks through proxies, both with the API server and with the clouds."""

    def __init__(self, cluster: Cluster, api: Proxy, clouds: CloudProxy, books: Books) -> None:
        self.cluster = cluster
        self.api = api
        self.clouds = clouds
        self.books = books
        self.namespace = ""

    def start(self) -> None:
        """As whoever runs it would, and without waiting until the lease of the dead one has run out."""
        ok(self.cluster, "delete", "lease", LEASE, "-n", "skysail-system", "--ignore-not-found")
        self.cluster.start_operator(
            OPERATOR, kubeconfig=self.api.kubeconfig, flags=flags(self.cluster, self.clouds.path)
        )

    def kill(self) -> None:
        """Returns when it is dead."""
        self.cluster.signal(OPERATOR, signal.SIGKILL)
        self.cluster.until(lambda: self.is_dead, "the operator to be dead")

    @property
    def is_dead(self) -> bool:
        return self.cluster.unit(OPERATOR).state == "stopped"

    def uid(self, name: str) -> str:
        return get(self.cluster, self.namespace, "pod", name)["metadata"]["uid"]

    def phase(self, name: str) -> str:
        return status(self.cluster, self.namespace, name).get("phase", "")

    def claim(self, uid: str) -> dict | None:
        found = [claim for claim in claims(self.cluster, self.namespace) if claim["spec"]["owner"]["uid"] == uid]
        return found[0] if found else None

    def is_gone(self, name: str, uid: str) -> bool:
        left = self.cluster.kubectl("get", "pod", name, "-n", self.namespace, "--ignore-not-found", "-o", "name")
        return left.stdout == "" and self.claim(uid) is None

    def state(self, uid: str) -> str:
        return (self.claim(uid) or {}).get("status", {}).get("state", "")


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    cluster.start_agent()
    with Proxy(cluster) as api, CloudProxy(cluster) as clouds:
        scene = Scene(cluster, api, clouds, Books(cluster))
        scene.start()
        try:
            until_nodes_are_ready(cluster)
            yield scene
        finally:
            cluster.stop(OPERATOR)
            cluster.remove_agent()


@pytest.fixture(autouse=True)
def _in_a_namespace(scene: Scene) -> Iterator[None]:
    """After each test: nothing was paid twice, nothing of a stranger was touched, and nothing is left."""
    with fresh_namespace(scene.cluster) as scene.namespace:
        yield
        scene.api.clear()
        scene.clouds.clear()
        scene.books.check()
        let_go(scene.cluster, scene.namespace)
        scene.books.until_let_go(scene.namespace)


def is_write(seen: Seen, known: set[str]) -> bool:
    """Of the life of a pod, that is of itself and its claim, and not of a pod that we know."""
    is_of_a_life = "/cloudinstances" in seen.path or "/pods/" in seen.path
    return seen.is_mutating and is_of_a_life and not any(word in seen.path for word in known)


def test_killed_after_each_write_of_a_life_every_pod_succeeds_and_was_launched_once(scene):
    """Whoever died with a ticket in its hand leaves a doubt of a minute: the next ones are killed meanwhile."""
    effects = Effects(scene)
    lives: dict[str, str] = {}
    for after_reply in (False, True):
        killed = sum(1 for _ in kills(scene, lives, after_reply=after_reply))
        assert killed > 4 or not sampling.IS_WHOLE, "there are that many writes at least"
    for name, uid in lives.items():
        until_phase(scene.cluster, scene.namespace, name, "Succeeded")
        assert scene.books.launches("modal", uid) == 1, name
    effects.judge()


def kills(scene: Scene, lives: dict[str, str], *, after_reply: bool) -> Iterator[int]:
    """A pod for each write of a life; killed there. Until one has all its writes."""
    for nth in sampling.numbers():
        name = f"life-{nth}-{'told' if after_reply else 'untold'}"
        others = {*lives.values(), *(f"/pods/{other}/" for other in lives)}
        kill = faults.Kill(scene.kill, after_reply=after_reply)
        scene.api.on(lambda seen, others=others: is_write(seen, others), kill, nth=nth)
        apply(scene.cluster, scene.namespace, at("modal", pod(name, "true")))
        uid = lives[name] = scene.uid(name)
        scene.cluster.until(lambda name=name: scene.is_dead or scene.phase(name) == "Succeeded", f"write {nth}")
        scene.api.forget_rules()
        if not scene.is_dead:
            return
        scene.start()
        scene.cluster.until(lambda uid=uid: scene.state(uid) not in {"", "Claimed", "Launching"}, "the next operator")
        yield nth


@pytest.mark.parametrize("after_reply", [False, True], ids=["untold", "told"])
def test_killed_after_each_write_of_a_deletion_nothing_of_the_pod_is_left(scene, after_reply):
    effects = Effects(scene)
    for nth in sampling.numbers():
        name = f"end-{nth}"
        apply(scene.cluster, scene.namespace, at("modal", pod(name, "sleep", "1000")))
        until_condition(scene.cluster, scene.namespace, f"pod/{name}", "Ready")
        uid = scene.uid(name)
        scene.api.on(lambda seen: is_write(seen, set()), faults.Kill(scene.kill, after_reply=after_reply), nth=nth)
        ok(scene.cluster, "delete", "pod", name, "-n", scene.namespace, "--wait=false")
        scene.cluster.until(
            lambda name=name, uid=uid: scene.is_dead or scene.is_gone(name, uid), f"write {nth} of the end"
        )
        scene.api.forget_rules()
        was_killed = scene.is_dead
        if was_killed:
            scene.start()
        scene.cluster.until(lambda name=name, uid=uid: scene.is_gone(name, uid), "pod and claim to be gone")
        assert scene.books.launches("modal", uid) == 1
        assert scene.books.billed("modal") == set()
        if not was_killed:
            break
    assert nth > 4 or not sampling.IS_WHOLE, "there are that many writes at least"
    effects.judge()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("after_reply", [False, True], ids=["untold", "told"])
def test_killed_at_a_paid_call_the_instance_is_found_again(scene, method, after_reply):
    def is_call(seen: Seen) -> bool:
        return seen.method == method

    scene.clouds.on(is_call, faults.Kill(scene.kill, after_reply=after_reply))
    apply(scene.cluster, scene.namespace, at("runpod", pod("p", "true")))
    scene.cluster.until(lambda: scene.is_dead, "the call")
    scene.start()
    until_phase(scene.cluster, scene.namespace, "p", "Succeeded")
    uid = scene.uid("p")
    scene.cluster.until(lambda: scene.state(uid) == "Terminated", "the confirmed end")
    assert scene.books.launches("runpod", uid) == 1
    assert scene.books.billed("runpod") == set()


class Effects:
    """What passed the proxies from now on, beside what the other ends wrote down."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._audited = len(scene.cluster.audit())
        self._calls = self._paid_calls()
        scene.api.clear()
        scene.clouds.clear()

    def judge(self) -> None:
        scene = self._scene
        writes = [seen for seen in scene.api.mutations if seen.status and is_write(seen, set())]
        scene.cluster.until(lambda: len(self._audited_writes()) == len(writes), "the audit log to have them all")
        assert self._paid_calls() - self._calls == len(scene.clouds.mutations)

    def _audited_writes(self) -> list[dict]:
        rows = self._scene.cluster.audit()[self._audited :]
        return [row for row in rows if row["user"]["username"] == credentials.OPERATOR.name and _is_of_a_life(row)]

    def _paid_calls(self) -> int:
        verbs = ("create", "end asked", "refused")
        return sum(self._scene.books.count(cloud, verb) for cloud in NODES for verb in verbs)


def _is_of_a_life(row: dict) -> bool:
    is_mutating = row["verb"] in {"create", "update", "patch", "delete"}
    return is_mutating and row.get("objectRef", {}).get("resource") in {"cloudinstances", "pods"}


def test_of_two_operators_at_once_one_launches(scene):
    """The first is paused with a ticket on its way to the API server, and with a call on its way to the cloud."""
    called, ticket = faults.Hold(), faults.Hold()
    scene.clouds.on(lambda seen: seen.method == "POST", called)
    apply(scene.cluster, scene.namespace, at("modal", pod("called", "true")))
    until_seen(scene, scene.clouds, lambda seen: seen.method == "POST")
    called_uid = scene.uid("called")
    scene.api.on(lambda seen: is_ticket(seen) and called_uid not in seen.path, ticket)
    apply(scene.cluster, scene.namespace, at("modal", pod("ticket", "true")))
    until_seen(scene, scene.api, lambda seen: is_ticket(seen) and called_uid not in seen.path)
    scene.cluster.signal(OPERATOR, signal.SIGSTOP)
    begin_another(scene)
    try:
        until_phase(scene.cluster, scene.namespace, "ticket", "Succeeded")
        scene.cluster.until(lambda: scene.state(called_uid) == "Unknown", "the doubt about the call")
        for held in (called, ticket):
            held.let_go()
        scene.cluster.signal(OPERATOR, signal.SIGCONT)
        until_phase(scene.cluster, scene.namespace, "called", "Succeeded")
        for name in ("called", "ticket"):
            assert scene.books.launches("modal", scene.uid(name)) == 1, name
        scene.cluster.until(lambda: scene.is_dead, "the first one to give up")
    finally:
        scene.cluster.stop("another")
        scene.start()


def is_ticket(seen: Seen) -> bool:
    """The write of who is about to call."""
    return seen.method == "PUT" and "/cloudinstances/" in seen.path


def until_seen(scene: Scene, proxy: Proxy, match: Callable[[Seen], bool]) -> None:
    scene.cluster.until(lambda: any(match(seen) for seen in proxy.seen), "the request to come by")


def begin_another(scene: Scene) -> None:
    """On an address of its own, as a second replica is. It leads when the first has not renewed its lease for long."""
    own = ("--node-address=127.0.0.2", "--webhook-port=9444", "--progress-port=8083", "--identity=another")
    scene.cluster.start_operator("another", flags=(*flags(scene.cluster), *own), health_port=STANDBY_PORT)


def test_a_cloud_that_is_down_ends_nothing_and_holds_up_nobody_else(scene):
    apply(scene.cluster, scene.namespace, at("modal", pod("runs", "sleep", "1000")))
    until_condition(scene.cluster, scene.namespace, "pod/runs", "Ready")
    down: Fault = faults.CutBefore()
    scene.clouds.on(lambda seen: seen.path.startswith("/modal/"), down, times=1_000_000)
    get_ = scene.cluster.get
    scene.cluster.until(lambda: get_("/readyz/modal")[0] == 503, "the outage to be seen")
    assert "modal does not list its instances" in get_("/readyz/modal")[1]
    assert (get_("/readyz")[0], get_("/readyz/runpod")) == (200, (200, "ok\n"))
    for line in ('skysail_cloud_up{cloud="modal"} 0.0', 'skysail_cloud_up{cloud="runpod"} 1.0'):
        assert line in get_("/metrics")[1]
    apply(scene.cluster, scene.namespace, at("modal", pod("waits", "true")), at("runpod", pod("elsewhere", "true")))
    until_phase(scene.cluster, scene.namespace, "elsewhere", "Succeeded")
    waiting = scene.claim(scene.uid("waits"))
    assert waiting is not None
    assert [row["reason"] for row in waiting["status"]["conditions"]] == ["CloudUnreachable"]
    assert scene.phase("runs") == "Running"
    assert scene.books.launches("modal", scene.uid("waits")) == 0
    scene.clouds.clear()
    until_phase(scene.cluster, scene.namespace, "waits", "Succeeded")
    assert get_("/readyz/modal") == (200, "ok\n")
    assert scene.phase("runs") == "Running"
    for name in ("runs", "waits"):
        assert scene.books.launches("modal", scene.uid(name)) == 1
