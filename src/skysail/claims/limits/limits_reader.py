"""Caches of policies, namespaces and SpendAccounts, and the facts that follow for one claim. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from skysail.claims.limits import budget, policy_check
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.claims.limits.policy_check import PolicyDecision
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount
from skysail.claims.limits.spending_facts import SpendingFacts
from skysail.claims.types import CloudInstance
from skysail.cloud.offers import OfferList
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound


class LimitsReader:
    """Reader of one process. `offers` returns the known offers by cloud.

    The caches are filled by the process. While one of them is not synced, its facts are unknown.
    """

    def __init__(self, client: Client, offers: Callable[[], Mapping[str, OfferList]]) -> None:
        self._client = client
        self._offers = offers
        self.policies: Cache[OffloadPolicy] = Cache(OFFLOAD_POLICY.resource, OffloadPolicy)
        self.namespaces: Cache[Object] = Cache(NAMESPACE, Object)
        self.accounts: Cache[SpendAccount] = Cache(SPEND_ACCOUNT.resource, SpendAccount)

    def facts(self, claim: CloudInstance) -> SpendingFacts:
        namespace = claim.spec.owner.namespace
        return SpendingFacts(
            unknown_account=self._unknown_account(namespace),
            unknown_policies=self.unknown_policies(namespace),
            policies=tuple(self.policies.all()),
            namespace_labels=self.labels(namespace),
            account=self.accounts.get(Key("", namespace)),
            gpu_aliases=self._gpu_aliases(claim),
        )

    async def confirmed_facts(self, claim: CloudInstance) -> SpendingFacts:
        """Return the facts with the account as the API server has it now.

        The cache may not have seen yet what another process reserved or settled.
        """
        facts, namespace = self.facts(claim), claim.spec.owner.namespace
        try:
            account = await self._client.get(SPEND_ACCOUNT.resource, "", namespace, SpendAccount)
        except NotFound:
            return msgspec.structs.replace(facts, account=None, unknown_account="")
        except (KubeError, msgspec.MsgspecError) as error:
            why = f"SpendAccount {namespace} cannot be read: {error}"
            return msgspec.structs.replace(facts, account=None, unknown_account=why)
        self.accounts.put(account)
        return msgspec.structs.replace(facts, account=account, unknown_account="")

    def labels(self, namespace: str) -> dict[str, str]:
        """Return the labels of a namespace, empty if it does not exist."""
        found = self.namespaces.get(Key("", namespace))
        return dict(found.metadata.labels or {}) if found else {}

    def limits(self, namespace: str) -> PolicyDecision:
        """Return the limits of all policies that match the namespace."""
        return policy_check.limits(self.policies.all(), namespace, self.labels(namespace))

    def providers(self, namespace: str) -> tuple[str, ...]:
        """Return the providers that all policies of the namespace allow."""
        return policy_check.providers(self.policies.all(), namespace, self.labels(namespace))

    def _unknown_account(self, namespace: str) -> str:
        if Key("", namespace) in self.accounts.undecodable:
            return f"SpendAccount {namespace} cannot be decoded. If a newer Skysail wrote it, upgrade."
        return _unlisted(self.accounts)

    def unknown_policies(self, namespace: str) -> str:
        """Return why the policies of a namespace are not known, as a sentence; empty if they are known."""
        # A policy that cannot be decoded may forbid the launch.
        if self.policies.undecodable:
            names = ", ".join(sorted(key.name for key in self.policies.undecodable))
            return f"OffloadPolicies {names} cannot be decoded. If a newer Skysail wrote them, upgrade."
        unlisted = _unlisted(self.policies, self.namespaces)
        if not unlisted and self.namespaces.get(Key("", namespace)) is None:
            return f"Namespace {namespace} does not exist."
        return unlisted

    def _gpu_aliases(self, claim: CloudInstance) -> dict[str, tuple[str, ...]]:
        listed = self._offers().get(claim.spec.provider)
        wanted = {candidate.gpu_type for candidate in claim.spec.candidates}
        return {offer.gpu_type: offer.aliases for offer in listed.offers if offer.gpu_type in wanted} if listed else {}


def _unlisted(*caches: Cache[Any]) -> str:
    kinds = [cache.resource.kind for cache in caches if not cache.synced.is_set()]
    return f"Objects of kind {', '.join(kinds)} are not listed yet." if kinds else ""


def needs_confirmation(claim: CloudInstance, facts: SpendingFacts) -> bool:
    """Return whether only the API server can say that the reservation of a terminated claim is settled."""
    if claim.status.state != "Terminated" or claim.status.reserve_time is None:
        return False
    return facts.account is None or budget.find(facts.account.status, claim.metadata.name) is None
