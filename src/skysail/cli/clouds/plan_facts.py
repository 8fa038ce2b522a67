"""Facts of the cluster for `skysail plan`. Reads only. A fact that the user may not read is unknown, and is named."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

import msgspec

from skysail.base.settings import NodeSettings
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY, OffloadPolicy
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount, SpendAccountStatus
from skysail.cli.clouds import cloud_objects, published_offers
from skysail.cli.clouds.cloud_objects import CloudNode
from skysail.cli.clouds.published_offers import OffersMissing
from skysail.cloud.offers import OfferList
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden

T = TypeVar("T")


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts by namespace or provider. None means unknown. `unread`: what could not be read, as sentences.

    `namespace_labels`: empty for a namespace that does not exist. `missing_namespaces`: those.
    """

    policies: tuple[OffloadPolicy, ...] | None
    nodes: tuple[CloudNode, ...] | None
    offers: Mapping[str, OfferList] | None
    namespace_labels: Mapping[str, Mapping[str, str] | None]
    accounts: Mapping[str, SpendAccountStatus | None]
    unread: tuple[str, ...] = ()
    missing_namespaces: frozenset[str] = frozenset()

    def has_account(self, node: str) -> bool:
        """Return whether the operator has an account for this node. The node exists only with an account."""
        return self.nodes is None or any(found.metadata.name == node for found in self.nodes)


async def read(client: Client, namespaces: Iterable[str], operator_namespace: str) -> ClusterFacts:
    """Read all facts about these namespaces."""
    unread: list[str] = []
    names = sorted(set(namespaces))
    policies = await cloud_objects.find_all(client, OFFLOAD_POLICY, OffloadPolicy)
    if policies is None:
        unread.append("OffloadPolicies: you may not list them, so nothing can be said about permission.")
    nodes = await cloud_objects.find_nodes(client)
    if nodes is None:
        unread.append("Nodes: you may not list them, so an account at each cloud is assumed.")
    offers: Mapping[str, OfferList] | None = None
    try:
        offers = await published_offers.read(client, operator_namespace)
    except OffersMissing as error:
        unread.append(f"Offers: {error}")
    missing: set[str] = set()
    labels = {
        name: await _unless_forbidden(_labels(client, name, missing), f"Namespace {name}", unread) for name in names
    }
    accounts = {name: await _unless_forbidden(_account(client, name), f"SpendAccount {name}", unread) for name in names}
    return ClusterFacts(
        policies=policies,
        nodes=nodes,
        offers=offers,
        namespace_labels=labels,
        accounts=accounts,
        unread=tuple(unread),
        missing_namespaces=frozenset(missing),
    )


def cloud_settings(
    configured: Mapping[str, NodeSettings], nodes: Iterable[CloudNode] | None
) -> dict[str, NodeSettings]:
    """Return the cloud nodes of the operator: those of the settings, and any other that the cluster has."""
    found = dict(configured)
    for node in nodes or ():
        if node.metadata.name not in found and node.provider:
            found[node.metadata.name] = NodeSettings(provider=node.provider, port=0, taint="unknown:NoSchedule")
    return found


async def _labels(client: Client, name: str, missing: set[str]) -> Mapping[str, str]:
    """Return the labels of a namespace. If it does not exist, add it to `missing` and return none."""
    found = await client.find(NAMESPACE, "", name, Object)
    if found is None:
        missing.add(name)
        return {}
    return found.metadata.labels or {}


async def _account(client: Client, name: str) -> SpendAccountStatus:
    found = await client.find(SPEND_ACCOUNT.resource, "", name, SpendAccount)
    return SpendAccountStatus() if found is None else found.status


async def _unless_forbidden(read_one: Awaitable[T], thing: str, unread: list[str]) -> T | None:
    try:
        return await read_one
    except Forbidden:
        unread.append(f"{thing}: you may not read it.")
        return None
