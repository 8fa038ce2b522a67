"""Objects of the local cluster for NetworkPolicies: rights of the node's network, and warnings at apply time. Pure.

Warnings come from ValidatingAdmissionPolicies, which the API server evaluates itself: no webhook has to run for them.
"""

from __future__ import annotations

from typing import Any

from skysail.kube.api.rbac import cluster_role, read_rule
from skysail.kube.api.resources import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, POD, Resource
from skysail.local.network.policy.network_policies import NETWORK_POLICY

ADMISSION_POLICY = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
ADMISSION_BINDING = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
_NAME = "skysail-network-policies"
_IS_NOT_ENFORCED = "skysail-network-policies-not-enforced"
_IS_NOT_SERVED = "skysail-ingresses-not-served"

Manifest = dict[str, Any]
Row = tuple[Resource, Manifest]


def rights(user: str) -> tuple[Row, ...]:
    """Return the rights to read policies, pods and namespaces, for the user of the node's network."""
    role = cluster_role(_NAME, map(read_rule, (NETWORK_POLICY, POD, NAMESPACE)), {})
    binding = {
        "apiVersion": CLUSTER_ROLE_BINDING.api_version,
        "kind": CLUSTER_ROLE_BINDING.kind,
        "metadata": {"name": _NAME},
        "roleRef": {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": _NAME},
        "subjects": [{"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": user}],
    }
    return (CLUSTER_ROLE, role), (CLUSTER_ROLE_BINDING, binding)


def warnings(*, enforces: bool) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Return the objects to apply, and those to delete. `enforces`: whether NetworkPolicies have an effect."""
    ingress = _warning(
        _IS_NOT_SERVED,
        "ingresses",
        "this cluster has no ingress controller, so the Ingress has no effect: use `skysail open` or "
        "`kubectl port-forward`.",
    )
    policy = _warning(
        _IS_NOT_ENFORCED,
        "networkpolicies",
        "nft does not work on this machine, so the NetworkPolicy has no effect: install the package nftables, then "
        "run `skysail down` and `skysail up`.",
    )
    return (ingress, policy) if enforces else ((*ingress, *policy), ())


def _warning(name: str, plural: str, message: str) -> tuple[Row, ...]:
    rule = {
        "apiGroups": [NETWORK_POLICY.group],
        "apiVersions": ["*"],
        "resources": [plural],
        "operations": ["CREATE", "UPDATE"],
    }
    policy = {
        "apiVersion": ADMISSION_POLICY.api_version,
        "kind": ADMISSION_POLICY.kind,
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": message}],
        },
    }
    binding = {
        "apiVersion": ADMISSION_BINDING.api_version,
        "kind": ADMISSION_BINDING.kind,
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Warn"]},
    }
    return (ADMISSION_POLICY, policy), (ADMISSION_BINDING, binding)
