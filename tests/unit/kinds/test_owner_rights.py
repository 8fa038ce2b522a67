"""Rights to name owners: OwnerReferencesPermissionEnforcement requires them for blockOwnerDeletion."""

from __future__ import annotations

import pytest

from skysail.kinds.cloud_services import reconciler as cloud_services
from skysail.kinds.modal_endpoints import reconciler as modal_endpoints
from skysail.kinds.modal_endpoints.types import KINDS
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import POD, SERVICE, Resource


@pytest.mark.parametrize(
    ("rules", "owner"),
    [
        *((modal_endpoints.POLICY_RULES, kind.resource) for kind in KINDS),
        *((cloud_services.POLICY_RULES, resource) for resource in (SERVICE, POD)),
    ],
    ids=lambda value: value.plural if isinstance(value, Resource) else "",
)
def test_owner_of_children_has_a_rule_for_its_finalizers(rules, owner):
    assert PolicyRule(owner, ("update",), subresource="finalizers") in rules
