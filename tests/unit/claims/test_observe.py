"""What the controller of claims gathers for the plan."""

from __future__ import annotations

import msgspec
import pytest

from skysail.claims.brake import Brake, Limits
from skysail.claims.calls import Calls
from skysail.claims.observe import INDEXES, Claims, Desk
from skysail.claims.orders import Orders
from skysail.claims.snapshot import Owner, Seen, Unseen
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.errors import Unknown
from skysail.kube.cache import Cache
from skysail.kube.objects import Key, Meta
from tests.support import virtual_time
from tests.unit.claims.stock import DELETING, NOW, TERMS, Watch, claim, instance, moved, spec

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

    def stays(self, uid):
        return uid not in self.go


class Office:
    """A controller of claims over one cloud."""

    def __init__(self, *claims: CloudInstance) -> None:
        self.desk = Watch()
        self.desk.knows(*claims)
        self.cache: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        for one in claims:
            self.cache.put(one)
        brake = Brake(Limits())
        calls = Calls({}, brake, now=lambda: NOW, rng=_Rng(), changed=self.desk.woken.append)
        memory = Desk(calls, Orders(self.desk.woken.append), brake)
        listings = {self.desk.cloud.name: self.desk.listings}
        self.owners = Known()
        self.controller = Claims(self.cache, listings, self.owners, memory, identity="me", now=lambda: NOW)

    async def snapshot(self, of: CloudInstance):
        return await self.controller.observe(Key("", of.metadata.name))


class _Rng:
    def getrandbits(self, bits: int) -> int:
        return 7


LONG = {"times": 3, "every": TERMS.visibility}


def test_the_page_is_asked_for_only_after_long_absence():
    async def story() -> None:
        office = Office(RUNNING)
        await office.desk.poll(2, every=TERMS.visibility)
        office.desk.cloud.looks.clear()
        assert (await office.snapshot(RUNNING)).sight.is_gone is False
        assert office.desk.cloud.looks == []
        await office.desk.poll()
        assert (await office.snapshot(RUNNING)).sight.is_gone is True

    play(story)


@pytest.mark.parametrize(
    ("page", "sight"),
    [
        (instance("i-1", "ended"), Seen((instance("i-1", "ended"),))),
        (instance("i-1", claim="another"), None),
        (instance("i-1", cluster="cluster-2"), None),
        (Unknown("lost"), None),
    ],
)
def test_a_page_is_believed_where_it_is_of_this_claim(page, sight):
    async def story() -> None:
        office = Office(RUNNING)
        await office.desk.poll(**LONG)
        office.desk.cloud.pages["i-1"] = page
        found = (await office.snapshot(RUNNING)).sight
        assert found == (sight or Unseen(listings=3, seconds=found.seconds))

    play(story)


def test_who_has_no_instance_has_no_page():
    async def story() -> None:
        office = Office(DOUBTED)
        await office.desk.poll(**LONG)
        assert (await office.snapshot(DOUBTED)).sight.is_gone is False
        assert office.desk.cloud.looks == []

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
        assert (await office.snapshot(old)).rival == ""
        office.owners.go.clear()
        office.cache.put(msgspec.structs.replace(old, metadata=_deleted(old.metadata)))
        assert "i-1" in (await office.snapshot(new)).rival
        office.cache.put(moved(moved(old), state="Terminated"))
        assert (await office.snapshot(new)).rival == ""

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


def test_a_claim_of_a_cloud_that_was_removed_from_the_settings_says_so():
    async def story() -> None:
        orphan = claim("Running", of=spec(provider="elsewhere"))
        found = await Office(orphan).snapshot(orphan)
        assert not found.has_account
        assert "no account at elsewhere" in found.outage

    play(story)
