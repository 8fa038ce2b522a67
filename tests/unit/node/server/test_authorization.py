"""Who calls, and what they may: reviews by a model of the API server, and how long their answers hold."""

import json

import pytest

from skysail.kube.client.client import Client
from skysail.kube.client.errors import ServerFault
from skysail.kube.client.transport import Reply
from skysail.node.server.authentication import Authenticator, UserInfo, by_certificate
from skysail.node.server.authorization import Authorizer, ResourceAttributes, required_access
from skysail.node.server.errors import Forbidden, Unauthenticated

PROXY_READS = (ResourceAttributes("get", "proxy"),)
PATHS = [
    ("GET", "/exec/ns/pod/main", PROXY_READS),
    ("POST", "/exec/ns/pod/main", (ResourceAttributes("create", "proxy"),)),
    ("POST", "/portForward/ns/pod", (ResourceAttributes("create", "proxy"),)),
    ("GET", "/containerLogs/ns/pod/main", PROXY_READS),
    ("GET", "/stats/summary", (ResourceAttributes("get", "stats"),)),
    ("GET", "/metrics", (ResourceAttributes("get", "metrics"),)),
    ("GET", "/metrics/resource", (ResourceAttributes("get", "metrics"),)),
    ("GET", "/logs/", (ResourceAttributes("get", "log"),)),
    ("GET", "/pods", (ResourceAttributes("get", "pods"), ResourceAttributes("get", "proxy"))),
    ("GET", "/runningpods/", (ResourceAttributes("get", "pods"), ResourceAttributes("get", "proxy"))),
    ("GET", "/healthz", (ResourceAttributes("get", "healthz"), ResourceAttributes("get", "proxy"))),
    ("DELETE", "/anything", (ResourceAttributes("delete", "proxy"),)),
    ("GET", "/", PROXY_READS),
    ("BREW", "//stats", (ResourceAttributes("brew", "stats"),)),
]


@pytest.mark.parametrize(("method", "path", "wanted"), PATHS)
def test_every_path_is_a_part_of_the_node(method, path, wanted):
    assert required_access(method, path) == wanted


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


ANN = UserInfo("ann", ("devs", "system:authenticated"), "1")


async def test_the_review_names_the_caller_and_the_node():
    reviewer = Reviewer(("ann", "get", "stats"))
    await Authorizer(Client(reviewer), "node-1", Clock()).check(ANN, "GET", "/stats/summary")
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
    authorizer = Authorizer(Client(Reviewer(("ann", "get", "proxy"))), "n", Clock())
    await authorizer.check(ANN, "GET", "/pods")
    with pytest.raises(Forbidden, match='"ann" may not do this on node "n": grant the permission to get nodes/stats'):
        await authorizer.check(ANN, "GET", "/stats/summary")


@pytest.mark.parametrize(("is_allowed", "holds"), [(True, 300.0), (False, 30.0)])
async def test_an_answer_holds_for_a_while(is_allowed, holds):
    reviewer, clock = Reviewer(*([("ann", "get", "stats")] if is_allowed else [])), Clock()
    authorizer = Authorizer(Client(reviewer), "n", clock)

    async def passes():
        try:
            await authorizer.check(ANN, "GET", "/stats/summary")
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
    authorizer = Authorizer(Client(Reviewer(("ann", "get", "stats"))), "n", Clock())
    await authorizer.check(ANN, "GET", "/stats/summary")
    with pytest.raises(Forbidden):
        await authorizer.check(UserInfo("bob", ANN.groups, ANN.uid), "GET", "/stats/summary")


async def test_a_failed_review_lets_nobody_pass_and_is_not_remembered():
    reviewer = Reviewer(("ann", "get", "stats"))
    authorizer = Authorizer(Client(reviewer), "n", Clock())
    reviewer.is_broken = True
    with pytest.raises(ServerFault):
        await authorizer.check(ANN, "GET", "/stats/summary")
    reviewer.is_broken = False
    await authorizer.check(ANN, "GET", "/stats/summary")


CERTIFICATES = [
    (None, None),
    ({}, None),
    ({"subject": ((("organizationName", "devs"),),)}, None),
    ({"subject": ((("commonName", "ann"),),)}, UserInfo("ann", ("system:authenticated",))),
    (
        {"subject": ((("organizationName", "a"),), (("organizationName", "b"),), (("commonName", "ann"),))},
        UserInfo("ann", ("a", "b", "system:authenticated")),
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
    authenticator = Authenticator(Client(reviewer), clock)
    for _ in range(3):
        assert await authenticator.identify(Request("Bearer good")) == UserInfo("ann", ("devs",), "1")
    assert len(reviewer.asked) == 1
    clock.now = 121.0
    reviewer.tokens.clear()
    with pytest.raises(Unauthenticated):
        await authenticator.identify(Request("Bearer good"))


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Basic good", "good", "Bearer bad"])
async def test_nobody_is_anonymous(header):
    with pytest.raises(Unauthenticated):
        await Authenticator(Client(Reviewer()), Clock()).identify(Request(header))


async def test_many_strange_tokens_do_not_fill_the_memory():
    authenticator = Authenticator(Client(Reviewer()), Clock())
    for number in range(5000):
        with pytest.raises(Unauthenticated):
            await authenticator.identify(Request(f"Bearer {number}"))
    assert len(authenticator._memory._answers) == 4096
