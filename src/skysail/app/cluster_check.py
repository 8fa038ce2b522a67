"""Check of the cluster before the operator starts; an error says why the operator cannot start there."""

from __future__ import annotations

import msgspec

from skysail.base.errors import UserError
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import NAMESPACE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, KubeError

# The first version with CEL rules in CRDs and with the completion index as pod label.
OLDEST_KUBERNETES = (1, 29)


class StartupError(UserError):
    """The operator cannot start; the message says what to change."""


class _Version(msgspec.Struct, rename="camel"):
    major: str
    minor: str
    git_version: str


class ClusterInfo(msgspec.Struct, frozen=True):
    """Version of the cluster, and its identity: the UID of namespace kube-system."""

    version: str
    cluster: str


async def check_cluster(client: Client, server: str) -> ClusterInfo:
    try:
        version = await client.read("/version", _Version)
    except Forbidden as error:
        raise StartupError(
            f"{server} rejects these credentials: {error.message}. Create a new token or certificate."
        ) from error
    except KubeError as error:
        raise StartupError(
            f"The API server {server} does not answer: {error}. Is the cluster up, and does the kubeconfig name it?"
        ) from error
    if (int(version.major), int(version.minor.rstrip("+"))) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise StartupError(f"This cluster runs Kubernetes {version.git_version}; Skysail needs {oldest} or newer.")
    return ClusterInfo(version.git_version, await _cluster_id(client))


async def _cluster_id(client: Client) -> str:
    try:
        return (await client.get(NAMESPACE, "", "kube-system", Object)).metadata.uid
    except Forbidden as error:
        raise missing_rbac(error) from error
    except KubeError as error:
        raise StartupError(f"The namespace kube-system cannot be read: {error}. Try again.") from error


def missing_rbac(error: Forbidden) -> StartupError:
    return StartupError(
        f"Skysail's RBAC roles are not installed ({error.message}): run `kubectl apply -f config/rbac/role.yaml`."
    )
