"""What the controller of claims gathers for the plan."""

from __future__ import annotations

import msgspec
import pytest

from skysail.claims.limits.launch_limiter import Brake, Limits
from skysail.claims.reconciler import INDEXES, Claims, Desk
from skysail.claims.snapshot import Owner, Unseen
from skysail.claims.tracking.cloud_calls import Calls
from skysail.claims.tracking.launch_specs import Orders
from skysail.claims.tracking.owners import PodOwners
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply
from tests.support import virtual_time
from tests.unit.claims.samples import ACCOUNT, DELETING, NOW, TERMS, UID, Watch, claim, moved, spec

DOUBTED = claim("Unknown", nonce="theirs")
RUNNING = claim("Running")


def play(story) -> None:
    virtual_time.run(story())


class Known:
    """Finds every owner. Those that `go` were asked to."""

    def __init__(self) -> None:
        self.go: set[str] = set()

    async def find(self, for_):
        return Owner.PRESENT

    def stays(self, for_):
        return for_.uid not in self.go


class Office:
    """A controller of claims over one cloud."""

    def __init__(self, *claims: CloudInstance) -> None:
        self.desk = Watch()
        self.desk.knows(*claims)
        self.cache: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        for one in claims:
            self.cache.put(one)
        brake = Brake(Limits(), clock=lambda: 0.0, now=lambda: NOW)
        calls = Calls({}, brake, now=lambda: NOW, rng=_Rng(), changed=self.desk.woken.append)
        memory = Desk(calls, Orders(self.desk.woken.append), brake, Ages(lambda: 0.0))
        listings = {self.desk.cloud.name: self.desk.listings}
        self.owners = Known()
        self.controller = Claims(self.cache, listings, self.owners, memory, identity="me", now=lambda: NOW)

    async def snapshot(self, of: CloudInstance):
        return await self.controller.observe(Key("", of.metadata.name))


class _Rng:
    def getrandbits(self, bits: int) -> int:
        return 7


LONG = {"times": 3, "every": TERMS.visibility}


@pytest.mark.parametrize("namespace", ["n", "elsewhere"])
def test_an_owner_is_its_namespace_and_uid(namespace):
    pod = Object(Meta(name="a", namespace=namespace, uid=UID))
    owners = PodOwners(Client(_NoPods()), {UID: pod}.get)
    is_owner = namespace == "n"

    async def story() -> None:
        assert await owners.find(spec().for_) == (Owner.PRESENT if is_owner else Owner.ABSENT)
        assert owners.stays(spec().for_) == is_owner

    play(story)


class _NoPods:
    async def send(self, request):
        return Reply(status=404, body=b'{"kind": "Status", "reason": "NotFound", "code": 404}')


def test_a_snapshot_is_made_without_a_word_to_the_cloud():
    async def story() -> None:
        office = Office(RUNNING)
        await office.desk.poll(**LONG)
        office.desk.cloud.is_silent = True
        assert (await office.snapshot(RUNNING)).sight.is_gone

    play(story)


def test_an_older_object_with_the_same_work_is_a_rival_until_its_end_is_confirmed():
    async def story() -> None:
        old = claim("Running", of=spec("u-1", work="w"), metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", work="w"), metadata={"creation_timestamp": "2026-11-15T11:01:00Z"})
        office = Office(old, new)
        assert "i-1" in (await office.snapshot(new)).rival
        assert (await office.snapshot(old)).rival == ""
        office.cache.put(moved(old, state="Terminated"))
        assert (await office.snapshot(new)).rival == ""

    play(story)


def test_the_next_pod_of_a_job_waits_for_one_that_goes_and_for_no_other():
    async def story() -> None:
        old = claim("Running", of=spec("u-1", job="j"), metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", job="j"), metadata={"creation_timestamp": "2026-11-15T11:01:00Z"})
        office = Office(old, new)
        assert (await office.snapshot(new)).rival == ""
        office.owners.go.add("u-1")
        assert "i-1" in (await office.snapshot(new)).rival
        assert "is being deleted" in (await office.snapshot(old)).rival
        office.owners.go.clear()
        office.cache.put(msgspec.structs.replace(old, metadata=_deleted(old.metadata)))
        assert "i-1" in (await office.snapshot(new)).rival
        office.cache.put(moved(moved(old), state="Terminated"))
        assert (await office.snapshot(new)).rival == ""

    play(story)


@pytest.mark.parametrize("owner", [{"work": "w"}, {"job": "w"}])
def test_what_another_namespace_says_of_its_work_is_nothing_to_us(owner):
    async def story() -> None:
        theirs = spec("u-1", **owner)
        theirs = msgspec.structs.replace(theirs, for_=msgspec.structs.replace(theirs.for_, namespace="elsewhere"))
        old = claim("Running", of=theirs, metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", **owner))
        office = Office(old, new)
        office.owners.go.add("u-1")
        assert (await office.snapshot(new)).rival == ""

    play(story)


def test_a_claim_that_cannot_be_read_may_be_a_rival():
    async def story() -> None:
        worker, alone = claim("Claimed", of=spec("u-1", work="w")), claim("Claimed", of=spec("u-2"))
        office = Office(worker, alone)
        office.cache.unreadable.add(Key("", "of-a-newer-skysail"))
        assert "of-a-newer-skysail" in (await office.snapshot(worker)).rival
        assert (await office.snapshot(alone)).rival == ""

    play(story)


def _deleted(metadata: Meta) -> Meta:
    return msgspec.structs.replace(metadata, deletion_timestamp=DELETING, resource_version="8")


def test_a_later_launch_for_the_same_object_supersedes():
    async def story() -> None:
        first, second = claim("Terminated", of=spec(launch=9)), claim("Claimed", of=spec(launch=10))
        office = Office(first, second, claim("Claimed", of=spec("u-2", launch=11)))
        assert (await office.snapshot(first)).is_superseded
        assert not (await office.snapshot(second)).is_superseded

    play(story)


@pytest.mark.parametrize(("account", "is_ours"), [("", True), (ACCOUNT, True), ("theirs", False)])
def test_what_another_account_lists_says_nothing_about_an_instance(account, is_ours):
    async def story() -> None:
        running = claim("Running", of=spec(account=account))
        office = Office(running)
        await office.desk.poll(**LONG)
        found = await office.snapshot(running)
        assert found.has_account is is_ours
        assert (found.sight == Unseen()) is not is_ours
        assert ("Account theirs at cloud" in found.outage) is not is_ours
        assert ("i-1" in office.desk.cloud.looks) is is_ours

    play(story)


def test_a_claim_of_a_cloud_that_was_removed_from_the_settings_says_so():
    async def story() -> None:
        orphan = claim("Running", of=spec(provider="elsewhere"))
        found = await Office(orphan).snapshot(orphan)
        assert not found.has_account
        assert "account at elsewhere is not configured" in found.outage

    play(story)
