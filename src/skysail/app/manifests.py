"""Manifests of an installation, in the order in which they are applied. Pure."""

from __future__ import annotations

from typing import Any

from skysail.app import bridge
from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.base.names import Label
from skysail.claims import manager
from skysail.claims.bridging import bridge_ports
from skysail.claims.limits import launch_history
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.claims.tracking import offer_publisher
from skysail.kinds.cloud_services import reconciler as cloud_services_reconciler
from skysail.kinds.modal_endpoints import reconciler as endpoints_reconciler
from skysail.kinds.offload import reconciler as offload_reconciler
from skysail.kinds.serving import reconciler as serving_reconciler
from skysail.kinds.training import reconciler, translated_reconciler
from skysail.kinds.training.progress import status_writer
from skysail.kube import events, leader_election
from skysail.kube.admission import registration
from skysail.kube.api import crd, rbac
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CRD,
    NAMESPACE,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Resource,
)
from skysail.kube.cache import discovery
from skysail.kube.client import token_review
from skysail.node import kubelet
from skysail.node.config import references
from skysail.node.registration import node_lease, registrar
from skysail.node.server import routes, tls

Manifest = dict[str, Any]

NAME = "skysail"
OPERATOR_NAMESPACE = "skysail-system"
RESOURCES: dict[str, Resource] = {
    resource.kind: resource
    for resource in (NAMESPACE, CRD, SERVICE_ACCOUNT, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING)
}
_LABELS: dict[str, str] = {Label.MANAGED_BY.value: NAME}


def namespace(name: str = OPERATOR_NAMESPACE) -> Manifest:
    """Return the operator's namespace. It enforces `restricted`, the strictest pod security standard."""
    labels = {**_LABELS, "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": NAMESPACE.kind, "metadata": {"name": name, "labels": labels}}


def definitions() -> list[Manifest]:
    """Return the CRDs of our kinds. The label says that they are ours: without it, a CRD is another project's."""
    return [_labelled(crd.manifest(kind)) for kind in ALL_KINDS]


def compatible_definitions() -> list[Manifest]:
    """Return CRDs for kinds of other projects, for a cluster that lacks them.

    They are labelled as ours: the operator reconciles these kinds only if the CRD has that label.
    """
    return [_labelled(crd.manifest(kind)) for kind in COMPATIBLE_KINDS]


def default_policy() -> Manifest:
    """Return the policy of a local cluster: its pods may use the simulated clouds, which charge nothing."""
    resource = OFFLOAD_POLICY.resource
    selector = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", OPERATOR_NAMESPACE],
    }
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "default", "labels": _LABELS},
        "spec": {
            "namespaceSelector": {"matchExpressions": [selector]},
            "providers": ["modal", "runpod"],
            "maxInstances": 10,
            "automatic": True,
        },
    }


def tenant_roles() -> list[Manifest]:
    """Return roles that add our namespaced kinds to `view`, `edit` and `admin`.

    Cluster-scoped kinds stay with cluster administrators: a CloudInstance costs money, and an OffloadPolicy applies
    to all namespaces.
    """
    return rbac.aggregated_roles(NAME, [kind for kind in ALL_KINDS if kind.resource.namespaced], _LABELS)


def compatible_tenant_roles() -> list[Manifest]:
    """Return roles for kinds of other projects, for a cluster that has our stand-ins for them."""
    kinds = [kind for kind in COMPATIBLE_KINDS if kind.resource.namespaced]
    return rbac.aggregated_roles(f"{NAME}-compat", kinds, _LABELS)


def cluster_rules() -> list[PolicyRule]:
    """Return what the operator may do in all namespaces, as its code declares it."""
    return [
        *manager.POLICY_RULES,
        *reconciler.POLICY_RULES,
        *translated_reconciler.POLICY_RULES,
        *status_writer.POLICY_RULES,
        *serving_reconciler.POLICY_RULES,
        *offload_reconciler.POLICY_RULES,
        *cloud_services_reconciler.POLICY_RULES,
        *endpoints_reconciler.POLICY_RULES,
        *token_review.POLICY_RULES,
        *kubelet.POLICY_RULES,
        *references.POLICY_RULES,
        *registrar.POLICY_RULES,
        *routes.POLICY_RULES,
        *discovery.POLICY_RULES,
        *events.POLICY_RULES,
        *registration.POLICY_RULES,
    ]


def namespace_rules() -> list[PolicyRule]:
    """Return what the operator may do in its own namespace only."""
    return [
        *leader_election.NAMESPACE_POLICY_RULES,
        *registration.NAMESPACE_POLICY_RULES,
        *launch_history.NAMESPACE_POLICY_RULES,
        *offer_publisher.NAMESPACE_POLICY_RULES,
        *bridge_ports.NAMESPACE_POLICY_RULES,
    ]


def rules(operator_namespace: str = OPERATOR_NAMESPACE) -> list[Manifest]:
    """Return the service account and roles with exactly the policy rules that the code declares."""
    account = (operator_namespace, NAME)
    roles = [
        rbac.cluster_role(NAME, cluster_rules(), _LABELS),
        rbac.role(operator_namespace, NAME, namespace_rules(), _LABELS),
        rbac.role(node_lease.NAMESPACE, NAME, node_lease.LEASE_POLICY_RULES, _LABELS),
    ]
    service_account = {
        "apiVersion": "v1",
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": {"name": NAME, "namespace": operator_namespace, "labels": _LABELS},
    }
    bindings = [rbac.binding(role, account) for role in roles]
    return [service_account, *roles, *bindings, _client_ca_binding(account), *_bridge_rules(operator_namespace)]


def _bridge_rules(operator_namespace: str) -> list[Manifest]:
    """Return the service account and roles of the bridge, which reads claims and the credentials of clouds."""
    roles = [
        rbac.cluster_role(bridge.NAME, bridge.POLICY_RULES, _LABELS),
        rbac.role(operator_namespace, bridge.NAME, bridge.NAMESPACE_POLICY_RULES, _LABELS),
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": SERVICE_ACCOUNT.kind,
            "metadata": {"name": bridge.NAME, "namespace": operator_namespace, "labels": _LABELS},
        },
        *roles,
        *(rbac.binding(role, (operator_namespace, bridge.NAME)) for role in roles),
    ]


def _client_ca_binding(account: tuple[str, str]) -> Manifest:
    """Return a binding to read the API server's client CAs: the servers of our nodes trust the same clients."""
    namespace, role = tls.READER
    metadata = {"name": role, "namespace": namespace, "labels": _LABELS}
    bound = rbac.binding({"kind": ROLE.kind, "metadata": metadata}, account)
    return {**bound, "metadata": {**metadata, "name": f"{NAME}-nodes"}}


def _labelled(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": _LABELS}}
