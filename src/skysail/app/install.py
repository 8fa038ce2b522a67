"""Installation of CRDs and RBAC roles into a cluster; `skysail up` runs it before it starts the operator."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from skysail.app import manifests
from skysail.base.names import Label
from skysail.claims.limits.offload_policy import OFFLOAD_POLICY
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CRD, ROLE_BINDING, SERVICE, Resource
from skysail.kube.cache.discovery import CrdInfo
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client, Manifest
from skysail.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound, ReplyLost, Throttled, Unreachable
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.addresses import CLUSTER_IP, METRICS_PORT, METRICS_SERVICE, NODE
from skysail.local.control_plane.pki import NODE_AGENT, SERVICE_PROXY
from skysail.local.network.policy import manifests as policy_manifests
from skysail.local.storage import provisioner
from skysail.node import metrics_api
from skysail.node.server import tls

T = TypeVar("T")

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30
# About 20 requests one after another, some of them retried while the API server starts.
_NODE_TIMEOUT_SECONDS = 180
_POLL_SECONDS = 0.05
_MAX_INTERRUPTIONS = 5


async def install(path: Path) -> None:
    """Apply all manifests with this kubeconfig and wait until the kinds are served. Idempotent: runs at every start."""
    transport = HttpTransport(kubeconfig.from_file(path))
    try:
        client = Client(transport)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            stand_ins = await _absent_or_ours(client, manifests.compatible_definitions())
            definitions = [*manifests.definitions(), *stand_ins]
            roles = [*manifests.rules(), *manifests.tenant_roles()]
            if stand_ins:
                roles += manifests.compatible_tenant_roles()
            for group in ([manifests.namespace()], [*definitions, *roles]):
                await asyncio.gather(
                    *(apply_manifest(client, manifests.RESOURCES[manifest["kind"]], manifest) for manifest in group)
                )
            await asyncio.gather(*(_wait_established(client, definition) for definition in definitions))
            await _create(client, OFFLOAD_POLICY.resource, manifests.default_policy())
    finally:
        await transport.close()


async def install_node(path: Path, authority: bytes, *, enforces_policies: bool) -> None:
    """Apply the objects of this machine's node: storage class, metrics API, rights and warnings. Idempotent."""
    encoded = base64.b64encode(authority).decode()
    warnings, obsolete = policy_manifests.warnings(enforces=enforces_policies)
    registered = metrics_api.registration(encoded, service=METRICS_SERVICE, port=METRICS_PORT)
    transport = HttpTransport(kubeconfig.from_file(path))
    try:
        client = Client(transport)
        async with asyncio.timeout(_NODE_TIMEOUT_SECONDS):
            for resource, manifest in (
                *provisioner.MANIFESTS,
                (SERVICE, _metrics_service()),
                (ROLE_BINDING, _client_ca_binding()),
                (metrics_api.API_SERVICE, registered),
                *policy_manifests.rights(SERVICE_PROXY.name),
            ):
                await apply_manifest(client, resource, manifest)
            await _apply_warnings(client, warnings)
            for resource, manifest in obsolete:
                await _retried(partial(_remove, client, resource, manifest["metadata"]["name"]))
    finally:
        await transport.close()


async def _apply_warnings(client: Client, policies: Iterable[tuple[Resource, Manifest]]) -> None:
    """Apply policies that only warn. Kubernetes before 1.30 does not serve their kind: there it gives no warnings."""
    try:
        for resource, manifest in policies:
            await apply_manifest(client, resource, manifest)
    except NotFound:
        log.warning("admission policies not served, no warnings for ignored fields")


def _metrics_service() -> Manifest:
    namespace, name = METRICS_SERVICE
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": CLUSTER_IP},
    }


def _client_ca_binding() -> Manifest:
    """Return a binding to read the API server's client CAs: the node's server trusts the same clients."""
    namespace, role = tls.READER
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": f"skysail-node-{NODE}", "namespace": namespace},
        "roleRef": {"apiGroup": ROLE_BINDING.group, "kind": "Role", "name": role},
        "subjects": [{"apiGroup": ROLE_BINDING.group, "kind": "User", "name": NODE_AGENT.name}],
    }


async def _absent_or_ours(client: Client, definitions: list[Manifest]) -> list[Manifest]:
    """Return the CRDs to apply: another project's own CRD stays, and our stand-in is used only if it is missing."""
    desired = []
    for definition in definitions:
        present = await _retried(partial(client.find, CRD, "", definition["metadata"]["name"], Object))
        if present is None or (present.metadata.labels or {}).get(Label.MANAGED_BY) == manifests.NAME:
            desired.append(definition)
    return desired


async def apply_manifest(client: Client, resource: Resource, manifest: Manifest) -> None:
    """Apply a manifest. Retries if the API server, which may just have started, does not take it at once."""
    await _retried(partial(client.apply, resource, manifest, Object))


async def _create(client: Client, resource: Resource, manifest: Manifest) -> None:
    """Create the object if it is absent. An existing one stays as its administrator left it."""
    # The API server serves a new kind a moment after its definition is established.
    with contextlib.suppress(AlreadyExists):
        await _retried(partial(client.create, resource, manifest, Object), NotFound)


async def _remove(client: Client, resource: Resource, name: str) -> None:
    found = await client.find(resource, "", name, Object)
    if found is not None:
        with contextlib.suppress(NotFound):
            await client.delete(resource, found, Object, {})


async def _wait_established(client: Client, manifest: Manifest) -> None:
    while True:
        crd_info = await _retried(partial(client.get, CRD, "", manifest["metadata"]["name"], CrdInfo))
        if crd_info.is_established:
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _retried(call: Callable[[], Awaitable[T]], *transient: type[ApiError]) -> T:
    """Repeat a call until the API server takes it. The caller limits the time.

    Raises Unreachable or ReplyLost if the connection breaks again and again.
    """
    interruptions = 0
    while True:
        delay = _POLL_SECONDS
        try:
            return await call()
        except (Unreachable, ReplyLost):
            interruptions += 1
            if interruptions > _MAX_INTERRUPTIONS:
                raise
        except Throttled as error:
            delay = error.retry_after or 1.0
        except ApiError as error:
            # The API server itself writes to a CRD while it begins to serve it: a retry after a conflict succeeds.
            if not isinstance(error, (Conflict, *transient)):
                raise
        await asyncio.sleep(delay)
