"""What the controller of claims gathers for the plan."""

from __future__ import annotations

import msgspec
import pytest

from skysail.claims.limits.launch_limiter import LaunchLimiter, LaunchLimits
from skysail.claims.limits.limits_reader import LimitsReader
from skysail.claims.limits.spend_account import SPEND_ACCOUNT
from skysail.claims.reconciler import INDEXES, CloudInstanceReconciler, ProcessState
from skysail.claims.snapshot import NotObserved, OwnerState
from skysail.claims.tracking.cloud_calls import CloudCalls
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.tracking.owners import OwnerLookup
from skysail.claims.tracking.uptime import Ages
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.transport import Reply
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import ACCOUNT, DELETING, NOW, TERMS, UID, Watch, claim, moved, spec

DOUBTED = claim("Unknown", nonce="theirs")
RUNNING = claim("Running")


def run_virtual(test) -> None:
    virtual_time.run(test())


class Known:
    """Finds every owner. Those that `go` were asked to."""

    def __init__(self) -> None:
        self.go: set[str] = set()

    async def find(self, claim):
        return OwnerState.PRESENT

    def is_kept(self, claim):
        return claim.spec.owner.uid not in self.go


class Harness:
    """A controller of claims over one cloud."""

    def __init__(self, *claims: CloudInstance) -> None:
        self.desk = Watch()
        self.desk.knows(*claims)
        self.cache: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        for one in claims:
            self.cache.put(one)
        limiter = LaunchLimiter(LaunchLimits(), clock=lambda: 0.0, now=lambda: NOW)
        cloud_calls = CloudCalls({}, limiter, now=lambda: NOW, rng=_Rng(), changed=self.desk.woken.append)
        self.limits = LimitsReader(Client(ApiModel(World([SPEND_ACCOUNT.resource]))), dict)
        specs = LaunchSpecs(self.desk.woken.append)
        memory = ProcessState(cloud_calls, specs, limiter, Ages(lambda: 0.0), self.limits)
        inventory = {self.desk.cloud.name: self.desk.listings}
        self.owners = Known()
        self.controller = CloudInstanceReconciler(
            self.cache, inventory, self.owners, memory, identity="me", now=lambda: NOW
        )

    async def snapshot(self, of: CloudInstance):
        return await self.controller.observe(Key("", of.metadata.name))


class _Rng:
    def getrandbits(self, bits: int) -> int:
        return 7


LONG = {"times": 3, "every": TERMS.visibility_delay}


@pytest.mark.parametrize("namespace", ["n", "elsewhere"])
def test_an_owner_is_its_namespace_and_uid(namespace):
    pod = Object(Meta(name="a", namespace=namespace, uid=UID))
    owners = OwnerLookup(Client(_NoPods()), {UID: pod}.get)
    is_owner = namespace == "n"

    async def test() -> None:
        assert await owners.find(claim("Running")) == (OwnerState.PRESENT if is_owner else OwnerState.ABSENT)
        assert owners.is_kept(claim("Running")) == is_owner

    run_virtual(test)


class _NoPods:
    async def send(self, request):
        return Reply(status=404, body=b'{"kind": "Status", "reason": "NotFound", "code": 404}')


def test_a_snapshot_is_made_without_a_word_to_the_cloud():
    async def test() -> None:
        harness = Harness(RUNNING)
        await harness.desk.poll(**LONG)
        harness.desk.cloud.is_silent = True
        assert (await harness.snapshot(RUNNING)).observation.is_gone

    run_virtual(test)


def test_an_older_object_with_the_same_work_is_a_rival_until_its_end_is_confirmed():
    async def test() -> None:
        old = claim("Running", of=spec("u-1", work_key="w"), metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", work_key="w"), metadata={"creation_timestamp": "2026-11-15T11:01:00Z"})
        harness = Harness(old, new)
        assert "i-1" in (await harness.snapshot(new)).blocked_by
        assert (await harness.snapshot(old)).blocked_by == ""
        harness.cache.put(moved(old, state="Terminated"))
        assert (await harness.snapshot(new)).blocked_by == ""

    run_virtual(test)


def test_the_next_pod_of_a_job_waits_for_one_that_goes_and_for_no_other():
    async def test() -> None:
        old = claim("Running", of=spec("u-1", job_uid="j"), metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", job_uid="j"), metadata={"creation_timestamp": "2026-11-15T11:01:00Z"})
        harness = Harness(old, new)
        assert (await harness.snapshot(new)).blocked_by == ""
        harness.owners.go.add("u-1")
        assert "i-1" in (await harness.snapshot(new)).blocked_by
        assert "is being deleted" in (await harness.snapshot(old)).blocked_by
        harness.owners.go.clear()
        harness.cache.put(msgspec.structs.replace(old, metadata=_deleted(old.metadata)))
        assert "i-1" in (await harness.snapshot(new)).blocked_by
        harness.cache.put(moved(moved(old), state="Terminated"))
        assert (await harness.snapshot(new)).blocked_by == ""

    run_virtual(test)


@pytest.mark.parametrize("owner", [{"work_key": "w"}, {"job_uid": "w"}])
def test_what_another_namespace_says_of_its_work_is_nothing_to_us(owner):
    async def test() -> None:
        theirs = spec("u-1", **owner)
        theirs = msgspec.structs.replace(theirs, owner=msgspec.structs.replace(theirs.owner, namespace="elsewhere"))
        old = claim("Running", of=theirs, metadata={"creation_timestamp": "2026-11-15T11:00:00Z"})
        new = claim("Claimed", of=spec("u-2", **owner))
        harness = Harness(old, new)
        harness.owners.go.add("u-1")
        assert (await harness.snapshot(new)).blocked_by == ""

    run_virtual(test)


def test_a_claim_that_cannot_be_read_may_be_a_rival():
    async def test() -> None:
        worker, alone = claim("Claimed", of=spec("u-1", work_key="w")), claim("Claimed", of=spec("u-2"))
        harness = Harness(worker, alone)
        harness.cache.undecodable.add(Key("", "of-a-newer-skysail"))
        assert "of-a-newer-skysail" in (await harness.snapshot(worker)).blocked_by
        assert (await harness.snapshot(alone)).blocked_by == ""

    run_virtual(test)


def _deleted(metadata: Meta) -> Meta:
    return msgspec.structs.replace(metadata, deletion_timestamp=DELETING, resource_version="8")


def test_a_later_launch_for_the_same_object_supersedes():
    async def test() -> None:
        first, second = claim("Terminated", of=spec(launch=9)), claim("Claimed", of=spec(launch=10))
        harness = Harness(first, second, claim("Claimed", of=spec("u-2", launch=11)))
        assert (await harness.snapshot(first)).is_superseded
        assert not (await harness.snapshot(second)).is_superseded

    run_virtual(test)


@pytest.mark.parametrize(("account", "is_ours"), [("", True), (ACCOUNT, True), ("theirs", False)])
def test_what_another_account_lists_says_nothing_about_an_instance(account, is_ours):
    async def test() -> None:
        running = claim("Running", of=spec(account=account))
        harness = Harness(running)
        await harness.desk.poll(**LONG)
        found = await harness.snapshot(running)
        assert found.has_account is is_ours
        assert (found.observation == NotObserved()) is not is_ours
        assert ("Account theirs at cloud" in found.outage) is not is_ours
        assert ("i-1" in harness.desk.cloud.looks) is is_ours

    run_virtual(test)


def test_a_claim_of_a_cloud_that_was_removed_from_the_settings_says_so():
    async def test() -> None:
        orphan = claim("Running", of=spec(provider="elsewhere"))
        found = await Harness(orphan).snapshot(orphan)
        assert not found.has_account
        assert "account at elsewhere is not configured" in found.outage

    run_virtual(test)
