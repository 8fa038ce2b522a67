from __future__ import annotations

import pytest

from skysail.local.network.policy import manifests

INGRESS, POLICY = "skysail-ingresses-not-served", "skysail-network-policies-not-enforced"


@pytest.mark.parametrize(
    ("enforces", "applied", "deleted"), [(True, {INGRESS}, {POLICY}), (False, {INGRESS, POLICY}, set())]
)
def test_warnings_about_network_policies_are_there_only_where_they_have_no_effect(enforces, applied, deleted):
    found = manifests.warnings(enforces=enforces)
    assert [{manifest["metadata"]["name"] for _, manifest in rows} for rows in found] == [applied, deleted]


def test_warnings_without_nft_admit_the_network_policy_and_name_the_fix():
    applied, _ = manifests.warnings(enforces=False)
    policy, binding = (manifest for _, manifest in applied if manifest["metadata"]["name"] == POLICY)
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == (["networking.k8s.io"], ["networkpolicies"])
    (validation,) = policy["spec"]["validations"]
    assert "the NetworkPolicy has no effect: install the package nftables" in validation["message"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Ignore", ["Warn"])
    assert binding["spec"]["policyName"] == POLICY
