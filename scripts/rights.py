"""Rights that are granted to the operator, and which of them tests have used: `make rights`, after `make test`.

Forbidden requests are listed, too. They do not change the exit code, because some tests take rights away on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from skysail.app import manifests
from skysail.kube.api.rbac import PolicyRule
from skysail.node.registration import node_lease
from tests.support.rights import FOLDER, Use


class Right(msgspec.Struct, frozen=True, order=True):
    """One verb on one resource, granted in one namespace or in all, for one object or all."""

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def is_used_by(self, use: Use) -> bool:
        return (
            (self.group, self.resource, self.verb) == (use.group, use.resource, use.verb)
            and self.namespace in {"", use.namespace}
            and self.name in {"", use.name}
        )


def granted() -> list[Right]:
    scopes = (
        ("", manifests.cluster_rules()),
        (manifests.OPERATOR_NAMESPACE, manifests.namespace_rules()),
        (node_lease.NAMESPACE, node_lease.LEASE_POLICY_RULES),
    )
    return sorted({right for namespace, rules in scopes for rule in rules for right in _rights(rule, namespace)})


def _rights(rule: PolicyRule, namespace: str) -> Iterator[Right]:
    for verb in rule.verbs:
        for name in rule.names or ("",):
            yield Right(rule.resource.group, rule.plural, verb, namespace, name)


def used(folder: Path) -> set[Use]:
    found: set[Use] = set()
    for file in folder.glob("*.json"):
        found.update(msgspec.json.decode(file.read_bytes(), type=list[Use]))
    return found


def table(rights: Iterable[Right], uses: Iterable[Use]) -> list[str]:
    """Return one line per resource: the verbs that were used, and those that were not."""
    uses = list(uses)
    rows: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for right in rights:
        key = (f"{right.resource}.{right.group}".rstrip("."), right.namespace or "all", right.name)
        is_used = any(right.is_used_by(use) for use in uses)
        rows.setdefault(key, ([], []))[not is_used].append(right.verb)
    head = f"{'RESOURCE':<58}{'NAMESPACE':<18}{'USED':<44}UNUSED"
    lines = [
        f"{resource + (f' {name}' if name else ''):<58}{namespace:<18}{' '.join(was):<44}{' '.join(not_)}"
        for (resource, namespace, name), (was, not_) in rows.items()
    ]
    return [head, *lines]


def main() -> int:
    uses, rights = used(FOLDER), granted()
    if not uses:
        sys.stderr.write("No test has recorded what the operator used: run `make test` first.\n")
        return 2
    unused = [right for right in rights if not any(right.is_used_by(use) for use in uses)]
    forbidden = sorted(use for use in uses if use.is_forbidden)
    sys.stdout.write("\n".join([*table(rights, uses), ""]))
    sys.stdout.write(f"{len(rights)} rights granted, {len(rights) - len(unused)} used, {len(unused)} unused; ")
    sys.stdout.write(f"{len(forbidden)} kinds of requests forbidden.\n")
    for use in forbidden:
        sys.stdout.write(f"forbidden: {use.verb} {use.resource} {use.group} {use.namespace} {use.name}".rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
