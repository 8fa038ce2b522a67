"""Resolution of the references of pods: ConfigMaps, Secrets, Services, PVCs, and tokens of service accounts.

A node may read only objects that a pod bound to it refers to, one by one; so only Services are listed and watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from skysail.base.names import PROVISIONER_NAME, Annotation
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import (
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Resource,
)
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden, NotFound
from skysail.node.config import container_config, container_overrides, env
from skysail.node.config.env import Data, ResolvedReferences
from skysail.node.pod_types import Pod, TokenSource

# Pods that start together often refer to the same objects: read each once.
_FRESH_SECONDS = 1.0
# Renew a token well before it expires, so that no program holds an expired one.
_RENEW_FRACTION = 0.6
_RETRY_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8)
_HEADLESS = ("", "None")

POLICY_RULES = (
    PolicyRule(CONFIG_MAP, ("get",)),
    PolicyRule(SECRET, ("get",)),
    PolicyRule(PERSISTENT_VOLUME_CLAIM, ("get",)),
)

T = TypeVar("T")


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    port: int
    name: str = ""
    protocol: str = "TCP"


class ServiceSpec(msgspec.Struct, frozen=True, gc=False):
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    ports: tuple[ServicePort, ...] = ()


class Service(Object, frozen=True, gc=False):
    spec: ServiceSpec = ServiceSpec()


class _ConfigMap(msgspec.Struct, rename="camel"):
    data: dict[str, str] | None = None
    binary_data: dict[str, bytes] | None = None


class _Secret(msgspec.Struct):
    data: dict[str, bytes] | None = None


class _PvcSpec(msgspec.Struct, rename="camel"):
    volume_name: str = ""


class _Pvc(msgspec.Struct):
    spec: _PvcSpec


class _TokenStatus(msgspec.Struct, rename="camel"):
    token: str


class _TokenReply(msgspec.Struct):
    status: _TokenStatus


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the node for its pods. `environment` holds variables of all pods, which a pod may override.

    A virtual node stands for a cloud: it has no machine, and does not run DaemonSet pods.
    """

    name: str
    address: str
    allocatable: Mapping[str, str]
    is_virtual: bool = False
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)


class ReferenceResolver:
    """Reads the objects that pods refer to. Raises errors of `kube.client.errors`; missing objects are omitted."""

    def __init__(self, client: Client, node_info: NodeInfo, clock: Callable[[], float]) -> None:
        self._client = client
        self._node_info = node_info
        self._clock = clock
        self._read: dict[tuple[Resource, str, str], tuple[float, Data | None]] = {}
        self._tokens: dict[tuple[str, TokenSource], tuple[float, str]] = {}
        self.services: Cache[Service] = Cache(SERVICE, Service)

    async def resolve(self, pod: Pod, address: str) -> ResolvedReferences:
        """Return the current state of all objects that this pod refers to."""
        required_refs, namespace = container_config.required_refs(pod), pod.metadata.namespace
        config_maps, secrets, disks, tokens = await asyncio.gather(
            self._all(required_refs.config_maps, lambda name: self._config_map(namespace, name)),
            self._all(required_refs.secrets, lambda name: self._secret(namespace, name)),
            self._all(required_refs.pvcs, lambda name: self._disk(namespace, name)),
            self._all(required_refs.tokens, lambda source: self._token(pod, source)),
        )
        return ResolvedReferences(
            config_maps=config_maps,
            secrets=secrets,
            services={
                **self._node_info.environment,
                **env.service_variables(self._services_for(pod)),
                **(container_overrides.variables(pod) if self._node_info.is_virtual else {}),
            },
            pod_ip=address,
            host_ip=self._node_info.address,
            allocatable=self._node_info.allocatable,
            disks=disks,
            tokens=tokens,
            pull_secrets=await self._pull_secrets(pod) if self._node_info.is_virtual else {},
        )

    def forget(self, uid: str) -> None:
        for key in [key for key in self._tokens if key[0] == uid]:
            del self._tokens[key]

    async def _all(self, desired: Iterable[T], read: Callable[[T], Awaitable[Any]]) -> dict[T, Any]:
        found = {key: await read(key) for key in desired}
        return {key: value for key, value in found.items() if value is not None}

    async def _pull_secrets(self, pod: Pod) -> dict[str, Data | None]:
        names = sorted({reference.name for reference in pod.spec.image_pull_secrets if reference.name})
        return {name: await self._secret(pod.metadata.namespace, name) for name in names}

    async def _config_map(self, namespace: str, name: str) -> Data | None:
        async def read() -> Data:
            config_map = await self._client.get(CONFIG_MAP, namespace, name, _ConfigMap)
            texts = {key: value.encode() for key, value in (config_map.data or {}).items()}
            return {**texts, **(config_map.binary_data or {})}

        return await self._recent(CONFIG_MAP, namespace, name, read)

    async def _secret(self, namespace: str, name: str) -> Data | None:
        async def read() -> Data:
            return (await self._client.get(SECRET, namespace, name, _Secret)).data or {}

        return await self._recent(SECRET, namespace, name, read)

    async def _recent(
        self, resource: Resource, namespace: str, name: str, read: Callable[[], Awaitable[Data]]
    ) -> Data | None:
        now = self._clock()
        self._read = {key: entry for key, entry in self._read.items() if now - entry[0] < _FRESH_SECONDS}
        key = (resource, namespace, name)
        if key not in self._read:
            try:
                self._read[key] = (now, await _retry_forbidden(read))
            except NotFound:
                self._read[key] = (now, None)
        return self._read[key][1]

    async def _disk(self, namespace: str, name: str) -> str | None:
        """Return the provider's name of the disk of a PVC. Returns None if the PVC is not bound to a disk of ours."""
        try:
            pvc = await _retry_forbidden(lambda: self._client.get(PERSISTENT_VOLUME_CLAIM, namespace, name, _Pvc))
            volume = pvc.spec.volume_name
            if not volume:
                return None
            disk = await _retry_forbidden(lambda: self._client.get(PERSISTENT_VOLUME, "", volume, Object))
        except NotFound:
            return None
        is_ours = (disk.metadata.annotations or {}).get(Annotation.PROVISIONED_BY) == PROVISIONER_NAME
        return disk.metadata.name if is_ours else None

    async def _token(self, pod: Pod, source: TokenSource) -> str | None:
        key = (pod.metadata.uid, source)
        until, token = self._tokens.get(key, (0.0, ""))
        if self._clock() < until:
            return token
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"namespace": pod.metadata.namespace, "name": pod.spec.service_account_name},
            "spec": {
                "audiences": [source.audience] if source.audience else [],
                "expirationSeconds": source.expiration_seconds,
                "boundObjectRef": bound,
            },
        }
        reply = await _retry_forbidden(
            lambda: self._client.create(SERVICE_ACCOUNT, request, _TokenReply, subresource="token")
        )
        self._tokens[key] = (self._clock() + source.expiration_seconds * _RENEW_FRACTION, reply.status.token)
        return reply.status.token

    def _services_for(self, pod: Pod) -> dict[str, tuple[str, tuple[tuple[str, int], ...]]]:
        """Return the Services for the pod's environment: the API server's, and if enabled those of its namespace.

        A pod at a cloud gets no service links: it does not reach their addresses, and clouds limit the variables.
        """
        has_links = pod.spec.enable_service_links and not self._node_info.is_virtual
        chosen = {}
        for service in self.services.all():
            key, spec = service.metadata.key, service.spec
            is_api = (key.namespace, key.name) == ("default", "kubernetes")
            is_near = key.namespace == pod.metadata.namespace and has_links
            if (is_api or is_near) and spec.cluster_ip not in _HEADLESS:
                chosen[key.name] = (spec.cluster_ip, tuple((port.name, port.port) for port in spec.ports))
        return chosen


async def _retry_forbidden(read: Callable[[], Awaitable[T]]) -> T:
    """Retry a read that is forbidden: the node authorizer may see a new pod a moment later than we do."""
    for delay in _RETRY_DELAYS:
        try:
            return await read()
        except Forbidden:
            await asyncio.sleep(delay)
    return await read()
