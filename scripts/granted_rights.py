"""Rights of each service account of the chart, as the code declares them. `make rights` shows which were used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from skysail.app import bridge, crds, manifests
from skysail.cli.clouds import cleanup, draining
from skysail.kube.api.rbac import PolicyRule
from skysail.node.registration import node_lease


class Right(msgspec.Struct, frozen=True, order=True):
    """One verb on one resource, granted to one account in one namespace or in all, for one object or all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""
    account: str = manifests.NAME


def granted() -> list[Right]:
    """Return the rights of the release `skysail`: of the operator, the bridge and the hooks of Helm."""
    everywhere, here = "", manifests.OPERATOR_NAMESPACE
    scopes = (
        (manifests.NAME, everywhere, manifests.cluster_rules()),
        (manifests.NAME, here, manifests.namespace_rules()),
        (manifests.NAME, node_lease.NAMESPACE, node_lease.LEASE_POLICY_RULES),
        (bridge.NAME, everywhere, bridge.POLICY_RULES),
        (bridge.NAME, here, bridge.NAMESPACE_POLICY_RULES),
        (f"{manifests.NAME}-drain", everywhere, draining.POLICY_RULES),
        (f"{manifests.NAME}-clean-up", everywhere, cleanup.POLICY_RULES),
        (f"{manifests.NAME}-crds", everywhere, crds.POLICY_RULES),
    )
    return sorted(
        {right for account, place, rules in scopes for rule in rules for right in _rights(account, place, rule)}
    )


@cache
def plurals() -> dict[tuple[str, str], str]:
    """Return the plural of each kind that a rule is about, by group and kind."""
    return {(rule.resource.group, rule.resource.kind): rule.resource.plural for rule in manifests.cluster_rules()}


def _rights(account: str, namespace: str, rule: PolicyRule) -> Iterator[Right]:
    for verb in rule.verbs:
        for name in rule.names or ("",):
            yield Right(rule.resource.group, rule.plural, verb, namespace, name, account)
