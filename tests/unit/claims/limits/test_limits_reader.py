"""Facts about policies and money: known, absent, unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skysail.base.metrics import Metrics
from skysail.claims.account_reconciler import SpendAccountReconciler
from skysail.claims.limits.limits_reader import LimitsReader, needs_confirmation
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, Budget
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, Reservation
from skysail.claims.limits.spending_metrics import SpendingMetrics
from skysail.claims.policy_reconciler import OffloadPolicyReconciler
from skysail.claims.reconciler import INDEXES
from skysail.claims.types import CLOUD_INSTANCE, Candidate, CloudInstance
from skysail.cloud.offers import Offer, OfferList
from skysail.kube.api.objects import Key, Meta, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Unreachable
from tests.contract.api_dsl import Api
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import CLOUD, NAME, NOW, account, ago, claim, policy, spec

OFFERS = {CLOUD: OfferList((Offer(provider=CLOUD, gpu_type="T4", aliases=("Tesla-T4",), usd_per_hour=0.6),), 0.0)}
CLAIM = claim("Claimed", of=spec(candidates=(Candidate(gpu_type="T4", usd_per_hour=0.6),)))
HELD = Reservation(claim=NAME, usd=1.0, at=ago(20))
RESOURCES = (CLOUD_INSTANCE.resource, OFFLOAD_POLICY.resource, SPEND_ACCOUNT.resource)


class Cut:
    """A transport to a server that does not answer."""

    async def send(self, _: Any) -> Any:
        raise Unreachable("cut")


class Harness:
    def __init__(self, *synced: str, transport: Any = None) -> None:
        self.transport = transport or ApiModel(World(RESOURCES))
        self.client = Client(self.transport)
        self.reader = LimitsReader(self.client, lambda: OFFERS)
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        for name in synced or ("policies", "namespaces", "accounts"):
            getattr(self.reader, name).synced.set()
        self.reader.namespaces.put(Object(Meta(name="n", uid="ns", resource_version="1", labels={"team": "ml"})))

    @property
    def api(self) -> Api:
        async def nothing() -> None: ...

        return Api(self.transport, "default", nothing)

    async def create_account(self, *reservations: str) -> None:
        (await self.api.create(SPEND_ACCOUNT.resource, {"metadata": {"name": "n"}, "spec": {"namespace": "n"}})).ok  # noqa: B018 (asserts)
        rows = [{"claim": name, "usd": 1.0, "at": ago(20)} for name in reservations]
        found = await self.client.get(SPEND_ACCOUNT.resource, "", "n", Object)
        await self.client.patch_status(SPEND_ACCOUNT.resource, found, {"reservations": rows}, Object)


def run(test: Any) -> None:
    virtual_time.run(test())


def test_facts_all_listed_are_known():
    async def test() -> None:
        harness = Harness()
        harness.reader.policies.put(policy())
        harness.reader.accounts.put(account(HELD))
        facts = harness.reader.facts(CLAIM)
        assert (facts.unknown_account, facts.unknown_policies) == ("", "")
        assert (facts.policies, facts.account, facts.namespace_labels) == ((policy(),), account(HELD), {"team": "ml"})
        assert facts.gpu_aliases == {"T4": ("Tesla-T4",)}

    run(test)


@pytest.mark.parametrize(
    ("synced", "account_words", "policy_words"),
    [
        (("policies", "namespaces"), "kind SpendAccount are not listed", ""),
        (("accounts", "namespaces"), "", "kind OffloadPolicy are not listed"),
        (("accounts", "policies"), "", "kind Namespace are not listed"),
    ],
)
def test_facts_of_a_cache_that_is_not_synced_are_unknown(synced, account_words, policy_words):
    async def test() -> None:
        facts = Harness(*synced).reader.facts(CLAIM)
        assert account_words in facts.unknown_account
        assert policy_words in facts.unknown_policies
        assert (bool(facts.unknown_account), bool(facts.unknown_policies)) == (bool(account_words), bool(policy_words))

    run(test)


def test_facts_of_objects_that_cannot_be_decoded_are_unknown():
    async def test() -> None:
        harness = Harness()
        harness.reader.policies.mark_undecodable(Key("", "strict"))
        harness.reader.accounts.mark_undecodable(Key("", "n"))
        facts = harness.reader.facts(CLAIM)
        assert "OffloadPolicies strict cannot be decoded" in facts.unknown_policies
        assert "SpendAccount n cannot be decoded" in facts.unknown_account

    run(test)


def test_facts_of_a_deleted_namespace_are_unknown():
    async def test() -> None:
        harness = Harness()
        harness.reader.namespaces.clear()
        harness.reader.namespaces.synced.set()
        assert harness.reader.facts(CLAIM).unknown_policies == "Namespace n does not exist."

    run(test)


@pytest.mark.parametrize(
    ("of", "is_needed"),
    [
        (claim("Terminated", reserve_time=ago(20)), True),
        (claim("Terminated"), False),
        (claim("Running", reserve_time=ago(20)), False),
    ],
)
def test_confirmation_is_needed_only_for_a_terminated_claim_that_had_a_reservation(of, is_needed):
    async def test() -> None:
        harness = Harness()
        assert needs_confirmation(of, harness.reader.facts(of)) is is_needed
        harness.reader.accounts.put(account(HELD))
        assert not needs_confirmation(of, harness.reader.facts(of))

    run(test)


def test_confirmed_facts_are_those_of_the_api_server():
    async def test() -> None:
        harness = Harness("policies", "namespaces")
        absent = await harness.reader.confirmed_facts(CLAIM)
        assert (absent.account, absent.unknown_account) == (None, "")
        await harness.create_account(NAME)
        found = await harness.reader.confirmed_facts(CLAIM)
        assert ([row.claim for row in found.account.status.reservations], found.unknown_account) == ([NAME], "")

    run(test)


def test_confirmed_facts_of_a_server_that_does_not_answer_are_unknown():
    async def test() -> None:
        facts = await Harness(transport=Cut()).reader.confirmed_facts(CLAIM)
        assert (facts.account, "SpendAccount n cannot be read" in facts.unknown_account) == (None, True)

    run(test)


def test_account_snapshot_has_only_claims_that_the_api_server_does_not_have():
    async def test() -> None:
        harness = Harness()
        rows = [Reservation(claim=name, usd=1.0, at=ago(20)) for name in (NAME, "created-now", "gone")]
        harness.claims.put(CLAIM)
        manifest = {"metadata": {"name": "created-now"}, "spec": {}}
        (await harness.api.create(CLOUD_INSTANCE.resource, manifest)).ok  # noqa: B018 (asserts)
        harness.reader.accounts.put(account(*rows))
        harness.reader.policies.put(policy(budget=Budget(5.0)))
        reconciler = SpendAccountReconciler(harness.client, harness.reader, harness.claims, lambda: NOW)
        snapshot = await reconciler.observe(Key("", "n"))
        assert snapshot.absent_claims == {"gone"}
        assert snapshot.budgets == (("default", Budget(5.0)),)
        assert await reconciler.observe(Key("", "other")) is None

    run(test)


def test_account_snapshot_of_a_server_that_does_not_answer_has_no_absent_claim():
    async def test() -> None:
        harness = Harness("accounts", transport=Cut())
        harness.reader.accounts.put(account(HELD))
        reconciler = SpendAccountReconciler(harness.client, harness.reader, harness.claims, lambda: NOW)
        snapshot = await reconciler.observe(Key("", "n"))
        assert (snapshot.absent_claims, snapshot.budgets) == (frozenset(), None)

    run(test)


def test_policy_snapshot_has_providers_and_offers():
    async def test() -> None:
        harness = Harness()
        harness.reader.policies.put(policy())
        reconciler = OffloadPolicyReconciler(harness.reader.policies, {"b", "a"}, lambda: OFFERS, lambda: NOW)
        snapshot = await reconciler.observe(Key("", "default"))
        assert (snapshot.providers, snapshot.offers) == (("a", "b"), OFFERS)
        assert await reconciler.observe(Key("", "other")) is None

    run(test)


@pytest.mark.parametrize("leads", [True, False])
def test_metrics_of_the_leader_have_each_namespace_and_policy(leads):
    async def test() -> None:
        harness = Harness()
        harness.reader.policies.put(policy(budget=Budget(1.25, "Day")))
        harness.reader.accounts.put(account(HELD))
        metrics = Metrics()
        SpendingMetrics(harness.reader, lambda: leads, lambda: NOW).register(metrics)
        lines = metrics.render().decode().splitlines()
        expected = {
            'skysail_reserved_usd{namespace="n"} 1.0',
            'skysail_budget_usd{namespace="n",policy="default"} 1.25',
            'skysail_spent_usd{namespace="n",policy="default"} 0.0',
            'skysail_budget_low{namespace="n",policy="default"} 1.0',
            'skysail_budget_exhausted{namespace="n",policy="default"} 0.0',
        }
        assert expected & set(lines) == (expected if leads else set())
        await asyncio.sleep(0)

    run(test)
