"""The proxy itself: what it does to one request, seen from inside the local cluster and by the API server."""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import closing
from http.client import HTTPException, HTTPSConnection, RemoteDisconnected
from urllib.parse import urlsplit

import pytest

from skysail.kube.client import kubeconfig
from skysail.local import addresses
from skysail.local.control_plane.pki import Identity
from tests.support import proxy as faults
from tests.support.proxy import Proxy, Seen

MAPS = "/api/v1/namespaces/default/configmaps"
TESTER = Identity("tester", ("system:masters",))


@pytest.fixture
def proxy(cluster):
    with Proxy(cluster, TESTER) as proxy:
        yield proxy


class Caller:
    """Speaks through the proxy as the operator does."""

    def __init__(self, cluster, proxy):
        access = kubeconfig.from_file(proxy.kubeconfig)
        port = urlsplit(access.server).port
        self._connection = HTTPSConnection(addresses.CLUSTER_IP, port)
        self._connection.sock = access.tls.wrap_socket(cluster.dial(port), server_hostname=addresses.CLUSTER_IP)

    def ask(self, method, path, body=None):
        self._connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        return reply.status, json.loads(reply.read())

    def watch(self, path):
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        assert reply.status == 200
        return reply

    def close(self):
        self._connection.close()


@pytest.fixture
def caller(cluster, proxy):
    with closing(Caller(cluster, proxy)) as caller:
        yield caller


def new(name):
    return {"metadata": {"name": name}}


def lives(cluster, name):
    return cluster.kubectl("get", "configmap", name).returncode == 0


def mutating(seen):
    return seen.is_mutating


def watching(seen):
    return seen.is_watch


def test_what_passes_is_recorded_with_the_servers_answer(caller, proxy):
    assert caller.ask("GET", "/version?x=1")[0] == 200
    assert caller.ask("POST", MAPS, new("recorded"))[0] == 201
    assert proxy.seen == [
        Seen(method="GET", path="/version", query={"x": "1"}, status=200),
        Seen(method="POST", path=MAPS, query={}, body=json.dumps(new("recorded")).encode(), status=201),
    ]
    assert [seen.path for seen in proxy.mutations] == [MAPS]


def test_it_speaks_as_the_operator_where_nobody_else_is_named(cluster):
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with Proxy(cluster) as proxy, closing(Caller(cluster, proxy)) as caller:
        _, answer = caller.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:skysail-system:skysail"


def test_proxy_kills_operator_after_nth_mutation_before_its_reply(cluster, caller, proxy):
    killed = threading.Event()
    proxy.on(mutating, faults.Kill(killed.set), nth=2)
    assert caller.ask("POST", MAPS, new("kill-1"))[0] == 201
    assert not killed.is_set()
    with pytest.raises((RemoteDisconnected, ConnectionError, ssl.SSLError)):
        caller.ask("POST", MAPS, new("kill-2"))
    assert killed.is_set()
    assert lives(cluster, "kill-2")


def test_the_operator_can_be_killed_just_after_it_was_told(caller, proxy):
    killed = threading.Event()
    proxy.on(mutating, faults.Kill(killed.set, after_reply=True))
    assert caller.ask("POST", MAPS, new("kill-after"))[0] == 201
    assert killed.wait(600)


@pytest.mark.parametrize(("fault", "is_done"), [(faults.DropReply(), True), (faults.CutBefore(), False)])
def test_a_lost_reply_was_done_and_a_lost_request_was_not(cluster, caller, proxy, fault, is_done):
    name = f"lost-{type(fault).__name__.lower()}"
    proxy.on(mutating, fault)
    with pytest.raises((RemoteDisconnected, ConnectionError, ssl.SSLError)):
        caller.ask("POST", MAPS, new(name))
    assert lives(cluster, name) is is_done


def test_a_repeated_create_is_answered_with_the_second_reply(caller, proxy):
    proxy.on(mutating, faults.Repeat())
    assert caller.ask("POST", MAPS, new("repeated"))[0] == 409


def test_a_held_request_waits_until_it_is_let_go(cluster, caller, proxy):
    hold = faults.Hold()
    proxy.on(mutating, hold)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(caller.ask("POST", MAPS, new("held"))[0]))
    asking.start()
    cluster.until(lambda: len(proxy.seen) == 1, "the request to arrive")
    assert not lives(cluster, "held")
    hold.let_go()
    asking.join()
    assert answers == [201]


def test_410_can_be_the_status_of_a_reply_and_an_event_of_a_watch(caller, proxy):
    proxy.on(lambda seen: True, faults.gone())
    status, answer = caller.ask("GET", MAPS)
    assert (status, answer["code"], answer["reason"]) == (410, 410, "Expired")
    proxy.on(watching, faults.GoneInStream())
    said = json.loads(caller.watch(f"{MAPS}?watch=true").read())
    assert (said["type"], said["object"]["code"]) == ("ERROR", 410)


@pytest.mark.parametrize(
    ("fault", "want"),
    [
        (faults.Fault(), ["a", "b", "last"]),
        (faults.DropEvent(lambda event: event["object"]["metadata"]["name"].endswith("b")), ["a", "last"]),
        (faults.RepeatEvent(lambda event: event["object"]["metadata"]["name"].endswith("b")), ["a", "b", "b", "last"]),
        (faults.silence(), []),
        (faults.CutWatch(after=2), ["a", "b"]),
    ],
    ids=["nothing", "drop", "repeat", "silence", "cut"],
)
def test_single_events_of_a_watch_can_be_lost_or_come_twice(caller, proxy, fault, want, request):
    prefix = request.node.callspec.id
    version = caller.ask("GET", MAPS)[1]["metadata"]["resourceVersion"]
    for word in ("a", "b", "last"):
        assert caller.ask("POST", MAPS, new(f"{prefix}-{word}"))[0] == 201
    proxy.on(watching, fault)
    seconds = 600 if want else 1  # who says nothing has to come to an end by itself
    stream = caller.watch(f"{MAPS}?watch=true&timeoutSeconds={seconds}&resourceVersion={version}")
    names: list[str] = []
    try:
        while f"{prefix}-last" not in names and (line := stream.readline()):
            names.append(json.loads(line)["object"]["metadata"]["name"])
    except (HTTPException, OSError):
        assert isinstance(fault, faults.CutWatch)
    assert [name.removeprefix(f"{prefix}-") for name in names if name.startswith(prefix)] == want
