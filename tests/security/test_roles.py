"""Objects that belong to administrators, against tenants with `view`, `edit` and `admin`."""

from __future__ import annotations

import pytest

from tests.security.samples import ON_DEMAND
from tests.support.kubectl import fresh_namespace
from tests.support.tenant import Tenant

_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
_RESOURCES = (
    "cloudinstances.skysail.dev",
    "cloudinstances.skysail.dev/status",
    "offloadpolicies.skysail.dev",
    "offloadpolicies.skysail.dev/status",
    "spendaccounts.skysail.dev",
    "spendaccounts.skysail.dev/status",
    "nodes",
)


@pytest.mark.parametrize("role", ["edit", *(pytest.param(role, marks=ON_DEMAND) for role in ("view", "admin"))])
def test_tenant_has_no_rights_on_administrators_objects(node, attempts, role):
    with fresh_namespace(node) as namespace:
        tenant = Tenant.create(node, namespace, role)
        for resource in _RESOURCES:
            name, _, subresource = resource.partition("/")
            flags = (f"--subresource={subresource}",) if subresource else ()
            for verb in _VERBS:
                answer = tenant.kubectl("auth", "can-i", verb, name, *flags).stdout.strip()
                attempts.record(f"{role} on administrators' objects", f"{verb} {resource}", held=answer == "no")
