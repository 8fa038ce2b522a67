"""What the client makes of replies, on a transport that answers what it is told."""

import asyncio

import pytest

from skysail.kube.api.objects import Meta, Object
from skysail.kube.api.resources import POD, SERVICE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import NotServed, ReplyLost, ServerFault, Throttled
from skysail.kube.client.transport import Reply
from tests.support import virtual_time

ONE = Object(Meta(name="one", namespace="n", uid="u"))
FINE = Reply(status=200, body=b'{"metadata": {"name": "one"}}')


class FakeTransport:
    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.requests = []

    async def send(self, request):
        self.requests.append((request.method, asyncio.get_running_loop().time()))
        return self._replies.pop(0)


def ask(call, *replies):
    async def main():
        transport = FakeTransport(*replies)
        try:
            result = await call(Client(transport))
        except (ReplyLost, ServerFault, Throttled) as error:
            result = type(error)
        return result, transport.requests

    return virtual_time.run(main())


def busy(seconds: str) -> Reply:
    return Reply(status=429, body=b"{}", headers={"retry-after": seconds})


def read(client):
    return client.get(POD, "n", "one", Object)


def write(client):
    return client.apply(POD, {"metadata": {"name": "one", "namespace": "n"}}, Object)


def test_a_throttled_read_waits_as_long_as_it_is_told():
    found, requests = ask(read, busy("7"), busy("5"), FINE)
    assert found.metadata.name == "one"
    assert [at for _, at in requests] == [0, 7, 12]


def test_a_throttled_write_is_never_repeated_here_because_leave_to_write_runs_out():
    assert ask(write, busy("7")) == (Throttled, [("PATCH", 0)])


@pytest.mark.parametrize(
    ("reply", "want"),
    [
        (Reply(status=504, body=b"{}"), ReplyLost),
        (Reply(status=500, body=b'{"reason": "ServerTimeout", "details": {"retryAfterSeconds": 2}}'), ReplyLost),
        (Reply(status=200, body=b"<html>"), ReplyLost),
        (Reply(status=500, body=b'{"reason": "InternalError"}'), ServerFault),
    ],
)
def test_a_write_that_may_have_happened_is_told_as_such(reply, want):
    assert ask(write, reply)[0] is want


def test_a_read_that_cannot_be_read_is_the_servers_fault():
    assert ask(read, Reply(status=200, body=b"<html>"))[0] is ServerFault


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (b'{"kind": "Status", "status": "Success", "metadata": {}}', False),
        (b'{"kind": "Service", "metadata": {"name": "one", "uid": "u"}}', False),
        (b'{"kind": "Pod", "metadata": {"name": "one", "deletionTimestamp": "2026-01-01T00:00:00Z"}}', True),
    ],
)
def test_only_what_has_a_time_to_go_stays_after_a_delete(body, stays):
    left, _ = ask(lambda client: client.delete(SERVICE, ONE, Object), Reply(status=200, body=body))
    assert (left is not None) is stays


def test_find_missing_object_returns_none():
    missing = Reply(status=404, body=b'{"reason": "NotFound"}')
    assert ask(lambda client: client.find(POD, "n", "one", Object), missing)[0] is None
    assert ask(lambda client: client.find(POD, "n", "one", Object), FINE)[0].metadata.name == "one"


def test_find_path_not_served_raises():
    assert ask(lambda client: client.find(POD, "n", "one", Object), Reply(status=404, body=b"none"))[0] is NotServed


def test_list_objects_returns_decoded_items():
    page = Reply(status=200, body=b'{"items": [{"metadata": {"name": "one"}}, {"metadata": {"name": "two"}}]}')
    found, _ = ask(lambda client: client.list_objects(POD, "n", {}, Object), page)
    assert [each.metadata.name for each in found] == ["one", "two"]
