"""Who calls, and what they may: reviews by a model of the API server, and how long their answers hold."""

import json

import pytest

from skysail.kube.client.client import Client
from skysail.kube.client.errors import ServerFault
from skysail.kube.client.transport import Reply
from skysail.node.server.authentication import Caller, Callers, by_certificate
from skysail.node.server.authorization import Access, Rights, accesses
from skysail.node.server.errors import Forbidden, Unauthenticated

PROXY_READS = (Access("get", "proxy"),)
PATHS = [
    ("GET", "/exec/ns/pod/main", PROXY_READS),
    ("POST", "/exec/ns/pod/main", (Access("create", "proxy"),)),
    ("POST", "/portForward/ns/pod", (Access("create", "proxy"),)),
    ("GET", "/containerLogs/ns/pod/main", PROXY_READS),
    ("GET", "/stats/summary", (Access("get", "stats"),)),
    ("GET", "/metrics", (Access("get", "metrics"),)),
    ("GET", "/metrics/resource", (Access("get", "metrics"),)),
    ("GET", "/logs/", (Access("get", "log"),)),
    ("GET", "/pods", (Access("get", "pods"), Access("get", "proxy"))),
    ("GET", "/runningpods/", (Access("get", "pods"), Access("get", "proxy"))),
    ("GET", "/healthz", (Access("get", "healthz"), Access("get", "proxy"))),
    ("DELETE", "/anything", (Access("delete", "proxy"),)),
    ("GET", "/", PROXY_READS),
    ("BREW", "//stats", (Access("brew", "stats"),)),
]


@pytest.mark.parametrize(("method", "path", "wanted"), PATHS)
def test_every_path_is_a_part_of_the_node(method, path, wanted):
    assert accesses(method, path) == wanted


class Reviewer:
    """Answers both reviews, and counts the questions."""

    def __init__(self, *allowed):
        self.allowed = set(allowed)
        self.tokens = {"good": {"username": "ann", "groups": ["devs"], "uid": "1"}}
        self.asked = []
        self.is_broken = False

    async def send(self, request):
        spec = json.loads(request.body)["spec"]
        self.asked.append(spec)
        if self.is_broken:
            return Reply(status=500, body=b"broken")
        if "token" in spec:
            user = self.tokens.get(spec["token"])
            status = {"authenticated": True, "user": user} if user else {"error": "no"}
        else:
            wish = spec["resourceAttributes"]
            status = {"allowed": (spec["user"], wish["verb"], wish["subresource"]) in self.allowed}
        return Reply(status=201, body=json.dumps({"status": status}).encode())


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


ANN = Caller("ann", ("devs", "system:authenticated"), "1")


async def test_the_review_names_the_caller_and_the_node():
    reviewer = Reviewer(("ann", "get", "stats"))
    await Rights(Client(reviewer), "node-1", Clock()).check(ANN, "GET", "/stats/summary")
    assert reviewer.asked == [
        {
            "user": "ann",
            "groups": ["devs", "system:authenticated"],
            "uid": "1",
            "resourceAttributes": {
                "verb": "get",
                "version": "v1",
                "resource": "nodes",
                "subresource": "stats",
                "name": "node-1",
            },
        }
    ]


async def test_the_coarser_right_opens_what_the_finer_does_not():
    rights = Rights(Client(Reviewer(("ann", "get", "proxy"))), "n", Clock())
    await rights.check(ANN, "GET", "/pods")
    with pytest.raises(Forbidden, match='"ann" may not do this on node "n": it takes the right to get nodes/stats'):
        await rights.check(ANN, "GET", "/stats/summary")


@pytest.mark.parametrize(("is_allowed", "holds"), [(True, 300.0), (False, 30.0)])
async def test_an_answer_holds_for_a_while(is_allowed, holds):
    reviewer, clock = Reviewer(*([("ann", "get", "stats")] if is_allowed else [])), Clock()
    rights = Rights(Client(reviewer), "n", clock)

    async def passes():
        try:
            await rights.check(ANN, "GET", "/stats/summary")
        except Forbidden:
            return False
        return True

    assert await passes() is is_allowed
    reviewer.allowed = set() if is_allowed else {("ann", "get", "stats")}
    clock.now = holds - 1
    assert await passes() is is_allowed
    assert len(reviewer.asked) == 1
    clock.now = holds
    assert await passes() is not is_allowed


async def test_an_answer_is_for_one_caller_with_these_groups_only():
    rights = Rights(Client(Reviewer(("ann", "get", "stats"))), "n", Clock())
    await rights.check(ANN, "GET", "/stats/summary")
    with pytest.raises(Forbidden):
        await rights.check(Caller("bob", ANN.groups, ANN.uid), "GET", "/stats/summary")


async def test_a_failed_review_lets_nobody_pass_and_is_not_remembered():
    reviewer = Reviewer(("ann", "get", "stats"))
    rights = Rights(Client(reviewer), "n", Clock())
    reviewer.is_broken = True
    with pytest.raises(ServerFault):
        await rights.check(ANN, "GET", "/stats/summary")
    reviewer.is_broken = False
    await rights.check(ANN, "GET", "/stats/summary")


CERTIFICATES = [
    (None, None),
    ({}, None),
    ({"subject": ((("organizationName", "devs"),),)}, None),
    ({"subject": ((("commonName", "ann"),),)}, Caller("ann", ("system:authenticated",))),
    (
        {"subject": ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "ann"),))},
        Caller("ann", ("a", "b", "system:authenticated")),
    ),
]


@pytest.mark.parametrize(("certificate", "caller"), CERTIFICATES)
def test_a_certificate_names_user_and_groups(certificate, caller):
    assert by_certificate(certificate) == caller


class Request:
    """What `identify` looks at."""

    transport = None

    def __init__(self, authorization=None):
        self.headers = {"Authorization": authorization} if authorization else {}


async def test_a_token_is_reviewed_once_for_a_while():
    reviewer, clock = Reviewer(), Clock()
    callers = Callers(Client(reviewer), clock)
    for _ in range(3):
        assert await callers.identify(Request("Bearer good")) == Caller("ann", ("devs",), "1")
    assert len(reviewer.asked) == 1
    clock.now = 121.0
    reviewer.tokens.clear()
    with pytest.raises(Unauthenticated):
        await callers.identify(Request("Bearer good"))


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Basic good", "good", "Bearer bad"])
async def test_nobody_is_anonymous(header):
    with pytest.raises(Unauthenticated):
        await Callers(Client(Reviewer()), Clock()).identify(Request(header))


async def test_many_strange_tokens_do_not_fill_the_memory():
    callers = Callers(Client(Reviewer()), Clock())
    for number in range(5000):
        with pytest.raises(Unauthenticated):
            await callers.identify(Request(f"Bearer {number}"))
    assert len(callers._memory._answers) == 4096
