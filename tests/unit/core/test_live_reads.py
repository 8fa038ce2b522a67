import asyncio

import msgspec
import pytest

from skysail.core import live_reads
from skysail.core.errors import Stale
from skysail.kube.api.objects import Meta, Object, OwnerReference
from skysail.kube.api.resources import JOB
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply

OWNER = Object(Meta(name="a", namespace="n", uid="u", resource_version="3"))


class FakeTransport:
    def __init__(self, body: object, status: int = 200) -> None:
        self._reply = Reply(status=status, body=msgspec.json.encode(body))
        self.queries = []

    async def send(self, request):
        self.queries.append(dict(request.query))
        return self._reply


def child(uid: str, version: str, owner: str = "u") -> Object:
    controller = OwnerReference(api_version="v1", kind="X", name="a", uid=owner, controller=True)
    return Object(
        Meta(name=uid, namespace="n", uid=uid, resource_version=version, owner_references=(controller,)),
    )


def test_check_current_other_version_raises_stale():
    asyncio.run(live_reads.check_current(Client(FakeTransport(OWNER)), JOB, OWNER))
    newer = Object(msgspec.structs.replace(OWNER.metadata, resource_version="4"))
    with pytest.raises(Stale, match="Job n/a has changed"):
        asyncio.run(live_reads.check_current(Client(FakeTransport(newer)), JOB, OWNER))


@pytest.mark.parametrize(
    ("body", "status", "is_found"),
    [(child("c", "1"), 200, True), (child("c", "1", owner="other"), 200, False), ({"reason": "NotFound"}, 404, False)],
    ids=["ours", "another owner", "missing"],
)
def test_find_child_returns_only_children_of_the_owner(body, status, is_found):
    client = Client(FakeTransport(body, status))
    found = asyncio.run(live_reads.find_child(client, JOB, OWNER, "c", Object))
    assert (found is not None) == is_found


def test_list_labelled_selects_by_uid_of_the_owner():
    transport = FakeTransport({"items": [child("c", "1")]})
    found = asyncio.run(live_reads.list_labelled(Client(transport), JOB, OWNER, "label", Object, more=",b=c"))
    assert found == (child("c", "1"),)
    assert transport.queries == [{"labelSelector": "label=u,b=c"}]


def test_newest_versions_keeps_the_newest_of_each_object():
    found = live_reads.newest_versions((child("a", "10"), child("b", "2"), child("a", "9")))
    assert set(found) == {child("a", "10"), child("b", "2")}
    assert len(found) == 2
