"""RBAC policy rules, declared next to the code that needs them, and the roles generated from them.

Only declared rules are granted. The operator runs with exactly these, on a laptop as in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skysail.kube.api.crd import CustomKind
from skysail.kube.api.resources import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING, Resource

Manifest = dict[str, Any]


class PolicyRule(msgspec.Struct, frozen=True):
    """Verbs on one resource or subresource; with `names`, on these objects only."""

    resource: Resource
    verbs: tuple[str, ...]
    subresource: str = ""
    names: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def watch_rule(resource: Resource) -> PolicyRule:
    """Return the policy rule that a cache needs."""
    return PolicyRule(resource, ("list", "watch"))


def read_rule(resource: Resource) -> PolicyRule:
    """Return the policy rule for a cache of objects that are also read one by one.

    The executor reads an object after a write whose reply was lost.
    """
    return PolicyRule(resource, ("get", "list", "watch"))


def rules(policy_rules: Iterable[PolicyRule]) -> list[Manifest]:
    """Merge the rules and sort them, so that the generated file changes only when the rules change."""
    verbs: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for policy_rule in policy_rules:
        verbs.setdefault((policy_rule.resource.group, policy_rule.plural, policy_rule.names), set()).update(
            policy_rule.verbs
        )
    plurals: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, plural, names), granted in verbs.items():
        plurals.setdefault((group, names, tuple(sorted(granted))), []).append(plural)
    return [
        {
            "apiGroups": [group],
            "resources": sorted(found),
            **({"resourceNames": list(names)} if names else {}),
            "verbs": list(granted),
        }
        for (group, names, granted), found in sorted(plurals.items())
    ]


def cluster_role(name: str, policy_rules: Iterable[PolicyRule], labels: dict[str, str]) -> Manifest:
    return _role(CLUSTER_ROLE, {"name": name, "labels": labels}, policy_rules)


def aggregated_roles(prefix: str, kinds: Iterable[CustomKind], labels: dict[str, str]) -> list[Manifest]:
    """Return the ClusterRoles that add these kinds to the built-in roles `view`, `edit` and `admin`.

    None of them may write a status, because the operator trusts its own status.
    """
    kinds = tuple(kinds)
    seen = [policy_rule for kind in kinds for policy_rule in _viewing(kind)]
    changed = [policy_rule for kind in kinds for policy_rule in _editing(kind)]
    policy_rules = {"view": seen, "edit": [*seen, *changed], "admin": [*seen, *changed]}
    return [
        cluster_role(
            f"{prefix}-aggregate-to-{to}", granted, {**labels, f"{CLUSTER_ROLE.group}/aggregate-to-{to}": "true"}
        )
        for to, granted in policy_rules.items()
    ]


def _viewing(kind: CustomKind) -> list[PolicyRule]:
    parts = ("status", "scale") if kind.scale else ("status",)
    return [read_rule(kind.resource), *(PolicyRule(kind.resource, ("get",), subresource=part) for part in parts)]


def _editing(kind: CustomKind) -> list[PolicyRule]:
    scaling = [PolicyRule(kind.resource, ("patch", "update"), subresource="scale")] if kind.scale else []
    return [PolicyRule(kind.resource, ("create", "delete", "deletecollection", "patch", "update")), *scaling]


def role(namespace: str, name: str, policy_rules: Iterable[PolicyRule], labels: dict[str, str]) -> Manifest:
    return _role(ROLE, {"name": name, "namespace": namespace, "labels": labels}, policy_rules)


def binding(to: Manifest, account: tuple[str, str]) -> Manifest:
    """Bind a role to a service account (namespace, name). The binding has the name of the role."""
    is_cluster = to["kind"] == CLUSTER_ROLE.kind
    resource = CLUSTER_ROLE_BINDING if is_cluster else ROLE_BINDING
    namespace, name = account
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": to["metadata"],
        "roleRef": {"apiGroup": resource.group, "kind": to["kind"], "name": to["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
    }


def _role(resource: Resource, metadata: Manifest, policy_rules: Iterable[PolicyRule]) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "rules": rules(policy_rules),
    }
