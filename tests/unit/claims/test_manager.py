"""What a process holds of claims, joined."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import msgspec
import pytest

from skysail.claims.dependencies import ClaimDependencies
from skysail.claims.limits import launch_history
from skysail.claims.limits.spend_account import Reservation, SpendAccount
from skysail.claims.manager import ClaimManager, ClaimSettings
from skysail.claims.reconciler import INDEXES
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.snapshot import Observed, OwnerState
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.offers import Offer, OfferList
from skysail.core.actions import LaunchInstance, TerminateInstance
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import (
    CLOUD,
    CLUSTER,
    NAME,
    NOW,
    UID,
    ScriptedCloud,
    account,
    ago,
    claim,
    instance,
    launch_spec,
    moved,
    policy,
    spec,
)


class Known:
    """Every owner is there."""

    async def find(self, for_) -> OwnerState:
        return OwnerState.PRESENT


class Harness:
    def __init__(self, *instances, others=None) -> None:
        self.cloud = ScriptedCloud(*instances)
        clouds = {CLOUD: self.cloud}
        for name, offers in (others or {}).items():
            clouds[name] = ScriptedCloud()
            clouds[name].offered = OfferList(offers or (), 0.0)
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self.claims.synced.set()
        client = Client(ApiModel(World([CLOUD_INSTANCE.resource])))
        around = ClaimDependencies(lambda: NOW, asyncio.get_running_loop().time, random.Random(1))
        claim_settings = ClaimSettings(cluster=CLUSTER, identity="me")
        self.bureau = ClaimManager(client, self.claims, clouds, Known(), claim_settings=claim_settings, deps=around)
        self.woken: list[Key] = []
        self.bureau.on_change(self.woken.append)

    def launch(self, answer) -> CloudInstance:
        self.cloud.answers.append(answer)
        of = claim("Launching", nonce=self.bureau.calls.nonce_for(NAME))
        self.claims.put(of)
        self.bureau.launch_specs.put(launch_spec())
        self.bureau.calls.launch(LaunchInstance(CLOUD, CLOUD_INSTANCE.resource, of, launch_spec(), of.status))
        return of

    async def plan(self):
        controller = self.bureau.controller
        return controller.plan(await controller.observe(Key("", NAME)))


def test_an_answer_is_known_although_its_claim_is_in_doubt_since():
    async def test() -> None:
        harness = Harness()
        of = harness.launch(instance())
        await asyncio.sleep(2)
        harness.claims.put(moved(of, state="Unknown"))
        assert harness.bureau.listings[CLOUD].observation(NAME) == Observed((instance(),))
        assert (await harness.plan()).status.instance_id == "i-1"

    virtual_time.run(test())


def test_an_answer_that_comes_after_the_end_is_ended():
    async def test() -> None:
        harness = Harness()
        of = harness.launch(instance())
        await asyncio.sleep(2)
        harness.claims.put(moved(of, state="Terminated", launching=None))
        assert (await harness.plan()).actions == (TerminateInstance(CLOUD, "i-1", 30.0),)

    virtual_time.run(test())


def test_what_is_remembered_of_a_claim_goes_with_it_and_not_before():
    async def test() -> None:
        harness = Harness()
        harness.bureau.launch_specs.put(launch_spec())
        assert await harness.bureau.controller.observe(Key("", NAME)) is None
        assert harness.bureau.launch_specs.get(NAME) is not None
        of = harness.launch(None)
        ticket = harness.bureau.calls.nonce_for(NAME)
        harness.claims.mark_deleted(of)
        assert harness.bureau.launch_specs.get(NAME) is None
        assert harness.bureau.calls.nonce_for(NAME) != ticket
        assert harness.bureau.calls.last(NAME) is None

    virtual_time.run(test())


def test_who_lost_its_owner_is_woken():
    async def test() -> None:
        harness = Harness()
        of = claim("Running")
        harness.claims.put(of)
        pod = claim("Running", metadata={"uid": of.spec.owner.uid, "namespace": "n"})
        elsewhere = claim("Running", metadata={"uid": of.spec.owner.uid, "namespace": "elsewhere"})
        harness.woken.clear()
        harness.bureau.on_owner_changed(None, pod)
        harness.bureau.on_owner_changed(pod, pod)
        harness.bureau.on_owner_changed(elsewhere, None)
        assert harness.woken == []
        harness.bureau.on_owner_changed(pod, None)
        assert harness.woken == [Key("", NAME)]

    virtual_time.run(test())


def test_an_earlier_launch_is_woken_by_the_next_one_for_the_same_object():
    async def test() -> None:
        harness = Harness()
        harness.claims.put(claim("Terminated"))
        harness.woken.clear()
        harness.claims.put(claim("Claimed", of=spec(launch=1)))
        assert Key("", NAME) in harness.woken

    virtual_time.run(test())


def test_launches_that_an_earlier_process_wrote_down_count_for_the_brake():
    async def test() -> None:
        harness = Harness()
        harness.bureau.restore_launches([launch_history.LaunchRecord(NOW - timedelta(minutes=9), spec())] * 5)
        assert "5 launches in 10 minutes" in (await observed(harness)).limited_by

    virtual_time.run(test())


async def observed(house):
    house.claims.put(claim("Claimed"))
    return await house.bureau.controller.observe(Key("", NAME))


def test_a_call_whose_claim_does_not_wait_for_it_any_more_is_broken_off():
    async def test() -> None:
        harness = Harness()
        of = harness.launch(None)
        await asyncio.sleep(2)
        harness.claims.put(moved(of, state="Unknown"))
        await asyncio.sleep(1)
        assert isinstance(harness.bureau.calls.last(NAME).error, OutcomeUnknown)

    virtual_time.run(test())


def test_an_order_is_forgotten_when_it_is_certain_that_it_is_not_needed_again():
    async def test() -> None:
        harness = Harness()
        of = harness.launch(None)
        for state in ("Unknown", "Claimed"):
            of = moved(of, state=state)
            harness.claims.put(of)
            assert harness.bureau.launch_specs.get(NAME) is not None
        harness.claims.put(moved(of, state="Starting", instance_id="i-1"))
        assert harness.bureau.launch_specs.get(NAME) is None

    virtual_time.run(test())


def test_an_order_that_was_never_carried_out_goes_with_the_end_of_its_claim():
    async def test() -> None:
        harness = Harness()
        harness.bureau.launch_specs.put(launch_spec())
        harness.claims.put(claim("Terminated"))
        assert harness.bureau.launch_specs.get(NAME) is None

    virtual_time.run(test())


def test_the_time_of_an_instance_is_measured_by_the_clock_that_nobody_sets():
    async def test() -> None:
        harness = Harness()
        of = claim("Running", nonce="theirs", deadline_time=ago(-590))
        harness.claims.put(of)
        await asyncio.sleep(599)
        harness.claims.put(moved(of))
        assert (await harness.plan()).actions == ()
        await asyncio.sleep(1)
        assert (await harness.plan()).actions == (TerminateInstance(CLOUD, "i-1", 30.0),)
        harness.claims.put(moved(moved(of), deadline_time=ago(-1200)))
        assert (await harness.plan()).actions == ()

    virtual_time.run(test())


def test_launches_before_a_process_brake_it():
    async def test() -> None:
        harness = Harness()
        for number in range(5):
            harness.claims.put(claim("Terminated", of=spec(launch=number), start_time=ago(number)))
        harness.claims.put(claim("Claimed", of=spec(launch=9)))
        running = asyncio.create_task(harness.bureau.run(lambda _: None))
        await asyncio.sleep(1)
        snapshot = await harness.bureau.controller.observe(Key("", f"{UID}-9"))
        assert "5 launches" in snapshot.limited_by
        running.cancel()
        await asyncio.wait([running])

    virtual_time.run(test())


def denied(name: str = NAME, reason: str = "BudgetExhausted") -> CloudInstance:
    row = Condition(type="Launched", status="False", last_transition_time=ago(9), reason=reason, message="No.")
    return claim("Claimed", metadata={"name": name}, conditions=(row,))


def test_manager_money_that_was_freed_wakes_claims_that_wait_for_it():
    async def test() -> None:
        harness = Harness()
        accounts = harness.bureau.limits.accounts
        harness.claims.put(denied())
        harness.claims.put(denied("waits-for-capacity", "NoCapacity"))
        rows = [Reservation(claim=name, usd=0.0, at=ago(9)) for name in ("a", "b")]
        accounts.put(written(account(*rows), "10"))
        harness.woken.clear()
        accounts.put(written(account(*rows, Reservation(claim="c", usd=1.0, at=ago(9))), "11"))
        assert harness.woken == []
        accounts.put(written(account(rows[0]), "12"))
        assert harness.woken == [Key("", NAME)]

    virtual_time.run(test())


def test_manager_changed_policy_or_namespace_wakes_claims_that_wait():
    async def test() -> None:
        harness = Harness()
        harness.claims.put(denied())
        harness.claims.put(claim("Running", of=spec(launch=1)))
        harness.woken.clear()
        harness.bureau.limits.policies.put(policy())
        assert harness.woken == [Key("", NAME)]
        harness.bureau.limits.namespaces.put(Object(Meta(name="n", uid="ns", resource_version="1")))
        assert harness.woken == [Key("", NAME)] * 2

    virtual_time.run(test())


def test_manager_enqueues_accounts_and_policies_that_may_have_changed():
    async def test() -> None:
        harness, enqueued = Harness(), []
        harness.bureau.enqueue_accounts(enqueued.append)
        harness.bureau.enqueue_policies(enqueued.append)
        harness.bureau.limits.accounts.put(account())
        harness.bureau.limits.policies.put(policy())
        assert enqueued == [Key("", "n")]
        of = claim("Terminated")
        harness.claims.put(of)
        harness.claims.mark_deleted(of)
        assert enqueued == [Key("", "n")] * 2
        await harness.bureau.offers.poll(CLOUD)
        assert enqueued[2:] == [Key("", "default")]

    virtual_time.run(test())


def test_manager_provider_takes_the_limits_of_all_policies():
    async def test() -> None:
        harness = Harness()
        harness.bureau.limits.policies.put(policy(max_price=2.0, regions=("eu",), max_duration_seconds=60))
        limits = harness.bureau.provider(CLOUD).specs.limits("n")
        assert limits == OfferLimits(regions=("eu",), max_usd_per_gpu_hour=2.0, max_lifetime=60)

    virtual_time.run(test())


def written(of: SpendAccount, version: str) -> SpendAccount:
    metadata = msgspec.structs.replace(of.metadata, resource_version=version)
    return msgspec.structs.replace(of, metadata=metadata)


@pytest.mark.parametrize(
    ("offered", "want"),
    [
        ((Offer(provider="other", gpu_type="T4", usd_per_hour=0.5),), True),
        ((Offer(provider="other", gpu_type="T4", usd_per_hour=0.61),), False),
        ((Offer(provider="other", gpu_type="A40", usd_per_hour=0.1),), False),
        (None, False),
    ],
    ids=["fits", "too dear", "other GPU", "unknown"],
)
def test_another_provider_is_an_alternative_only_with_an_offer_that_fits(offered, want):
    """Otherwise the pods of a Job would leave a provider without capacity, and come back, without an end."""

    async def test() -> None:
        harness = Harness(others={"other": offered})
        if offered is not None:
            await harness.bureau.offers.poll("other")
        asked = CloudRequirements(gpus=GpuRequest("T4", 1), max_usd_per_hour=0.6, may_leave=True, is_cheapest=True)
        assert harness.bureau._has_offer("other", "n", asked) is want

    virtual_time.run(test())
