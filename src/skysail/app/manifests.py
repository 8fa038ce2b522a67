"""Everything that an installation consists of, in the order in which it is applied. Pure."""

from __future__ import annotations

from typing import Any

from skysail.app.kinds import ALL_KINDS, COMPATIBLE_KINDS
from skysail.base.names import Label
from skysail.claims import bureau, diary
from skysail.claims.types import CLOUD_INSTANCE
from skysail.kinds.awaiting.observe import rights
from skysail.kinds.model import observe as model_observe
from skysail.kinds.model import types as model_types
from skysail.kinds.run import observe, records
from skysail.kinds.run.types import TRAINING_JOB
from skysail.kube import crd, discovery, events, lease, rbac, tokens, webhooks
from skysail.kube.rbac import Right
from skysail.kube.resources import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CRD,
    NAMESPACE,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    Resource,
)
from skysail.node import heartbeat, keeper, references, register
from skysail.node.server import api, tls

Manifest = dict[str, Any]

NAME = "skysail"
OPERATOR_NAMESPACE = "skysail-system"
RESOURCES: dict[str, Resource] = {
    resource.kind: resource
    for resource in (NAMESPACE, CRD, SERVICE_ACCOUNT, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING)
}
# Kinds with a controller of their own, which declares what it needs.
_OWN_RIGHTS = (CLOUD_INSTANCE, TRAINING_JOB, *model_types.KINDS)
_LABELS: dict[str, str] = {Label.MANAGED_BY.value: NAME}


def namespace(name: str = OPERATOR_NAMESPACE) -> Manifest:
    """The operator's own pods keep to the strictest of Kubernetes' pod security standards."""
    labels = {**_LABELS, "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": NAMESPACE.kind, "metadata": {"name": name, "labels": labels}}


def definitions() -> list[Manifest]:
    return [crd.manifest(kind) for kind in ALL_KINDS]


def compatible_definitions() -> list[Manifest]:
    """Kinds of other projects, for a cluster that has none of them. Marked as ours, so that we know to work on them."""
    return [_marked(crd.manifest(kind)) for kind in COMPATIBLE_KINDS]


def rules(operator_namespace: str = OPERATOR_NAMESPACE) -> list[Manifest]:
    """The service account and exactly the rights that the code declares."""
    account = (operator_namespace, NAME)
    everywhere = [
        *(right for kind in (*ALL_KINDS, *COMPATIBLE_KINDS) if kind not in _OWN_RIGHTS for right in rights(kind)),
        *bureau.RIGHTS,
        *observe.RIGHTS,
        *records.RIGHTS,
        *model_observe.RIGHTS,
        *tokens.RIGHTS,
        *keeper.RIGHTS,
        *references.RIGHTS,
        *register.RIGHTS,
        *api.RIGHTS,
        Right(NAMESPACE, ("get",), names=("kube-system",)),
        *discovery.RIGHTS,
        *events.RIGHTS,
        *webhooks.RIGHTS,
    ]
    at_home = [*lease.OWN_NAMESPACE_RIGHTS, *webhooks.OWN_NAMESPACE_RIGHTS, *diary.OWN_NAMESPACE_RIGHTS]
    roles = [
        rbac.cluster_role(NAME, everywhere, _LABELS),
        rbac.role(operator_namespace, NAME, at_home, _LABELS),
        rbac.role(heartbeat.NAMESPACE, NAME, heartbeat.LEASE_NAMESPACE_RIGHTS, _LABELS),
    ]
    service_account = {
        "apiVersion": "v1",
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": {"name": NAME, "namespace": operator_namespace, "labels": _LABELS},
    }
    bindings = [rbac.binding(role, account) for role in roles]
    return [service_account, *roles, *bindings, _reads_authorities(account)]


def _reads_authorities(account: tuple[str, str]) -> Manifest:
    """The servers of our nodes believe the callers that the API server believes."""
    namespace, role = tls.READER
    metadata = {"name": role, "namespace": namespace, "labels": _LABELS}
    bound = rbac.binding({"kind": ROLE.kind, "metadata": metadata}, account)
    return {**bound, "metadata": {**metadata, "name": f"{NAME}-nodes"}}


def _marked(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": _LABELS}}
