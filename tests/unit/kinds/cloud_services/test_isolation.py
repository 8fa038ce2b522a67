"""Tenants with the same names never get each other's traffic, whatever they write into Services, slices and pods."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skysail.base.names import Annotation
from skysail.bridge import routes
from skysail.claims.bridging.bridge_addresses import BridgeAddresses
from skysail.claims.bridging.bridge_ports import BridgePorts
from skysail.claims.reconciler import INDEXES
from skysail.claims.types import CLOUD_INSTANCE, BridgePort, CloudInstance
from skysail.core.actions import Apply, PatchStatus
from skysail.kinds.cloud_services.caches import Caches
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kinds.cloud_services.reconciler import CloudServiceReconciler
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import NOW, claim, spec

NAMESPACES, NAMES = ("a", "b"), ("web", "db")


class Cluster:
    """Two namespaces whose pods, Services and claims have the same names."""

    def __init__(self) -> None:
        self.caches = Caches.create(["modal.com"])
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        client = Client(ApiModel(World([CONFIG_MAP])))
        ports = BridgePorts(client, "skysail-system", self.claims, now=lambda: NOW, rng=random.Random(1))
        addresses = BridgeAddresses("10.244.0.1", "skysail-system")
        self.reconciler = CloudServiceReconciler(
            self.caches, self.claims, ports, addresses, reachable={"cloud": True}, now=lambda: NOW
        )
        self.slices: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._version = 1

    def add_pod(self, namespace: str, name: str, labels: dict[str, str], annotations: dict[str, str]) -> None:
        uid = f"uid-{namespace}-{name}"
        metadata = {"name": name, "namespace": namespace, "uid": uid, "labels": labels, "annotations": annotations}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.caches.pods[0].put(msgspec.convert({"metadata": {**metadata, **self._next()}, "status": status}, Pod))
        of = spec(uid)
        of = msgspec.structs.replace(of, owner=msgspec.structs.replace(of.owner, namespace=namespace, name=name))
        found = claim("Running", of=of, instance_id=f"i-{uid}", ready_time="2026-11-15T11:00:00Z")
        self._put_claim(found, ())

    def add_service(self, namespace: str, name: str, selector: dict[str, str], ports: list[int]) -> None:
        rows = [{"port": port, "name": f"p{port}"} for port in ports]
        metadata = {"name": name, "namespace": namespace, "uid": f"s-{namespace}-{name}", **self._next()}
        fields = {"clusterIP": "10.96.0.9", "selector": selector, "ports": rows}
        self.caches.services.put(msgspec.convert({"metadata": metadata, "spec": fields}, Service))

    def add_slice(self, namespace: str, service: str) -> None:
        """A slice that a tenant made or edited: its content is never read."""
        labels = {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": "skysail.dev"}
        metadata = {"name": f"{service}-forged", "namespace": namespace, "uid": f"f-{namespace}-{service}"}
        forged = {"labels": labels, "annotations": {Annotation.LAST_APPLIED_HASH.value: "x"}}
        self.caches.slices.put(msgspec.convert({"metadata": {**metadata, **forged, **self._next()}}, Object))

    async def reconcile(self, namespace: str, name: str) -> None:
        snapshot = await self.reconciler.observe(Key(namespace, name))
        assert snapshot is not None
        actions = self.reconciler.plan(snapshot).actions
        for action in actions:
            if isinstance(action, PatchStatus) and isinstance(action.object, CloudInstance):
                current = self.claims.get(Key("", action.object.metadata.name))
                assert current is not None
                self._put_claim(current, msgspec.convert(action.fields["bridgePorts"], tuple[BridgePort, ...]))
        self.slices[namespace, name] = [action.manifest for action in actions if isinstance(action, Apply)]

    def _put_claim(self, found: CloudInstance, ports: tuple[BridgePort, ...]) -> None:
        metadata = msgspec.structs.replace(found.metadata, resource_version=self._next()["resourceVersion"])
        status = msgspec.structs.replace(found.status, bridge_ports=ports)
        self.claims.put(msgspec.structs.replace(found, metadata=metadata, status=status))

    def _next(self) -> dict[str, str]:
        self._version += 1
        return {"resourceVersion": str(self._version)}


_LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(NAMES), max_size=2)
_ANNOTATIONS = st.dictionaries(
    st.sampled_from(["modal-operator.io/tunnel", "modal-operator.io/function-id", "skysail.dev/last-applied-hash"]),
    st.sampled_from(["true", "i-uid-a-web", "i-uid-b-web"]),
    max_size=2,
)
_PODS = st.lists(st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES), _LABELS, _ANNOTATIONS), max_size=6)
_SERVICES = st.lists(
    st.tuples(
        st.sampled_from(NAMESPACES),
        st.sampled_from(NAMES),
        _LABELS,
        st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=6,
)


@given(_PODS, _SERVICES, st.lists(st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES)), max_size=4))
def test_isolation_every_slice_leads_to_a_selected_pod_of_its_own_namespace(pods, services, forged):
    wanted = {row[:2]: row for row in services}
    cluster = virtual_time.run(_reconciled(pods, wanted, forged))
    table = routes.build(cluster.claims.all())
    assert table.conflicts == frozenset()
    for (namespace, name), manifests in cluster.slices.items():
        _, _, selector, ports = wanted[namespace, name]
        for manifest in manifests:
            (port,) = manifest["ports"]
            route = table.routes[port["port"]]
            assert (route.namespace, manifest["metadata"]["namespace"]) == (namespace, namespace)
            assert route.instance == f"i-{manifest['endpoints'][0]['targetRef']['uid']}"
            assert route.target_port in ports
            (pod,) = [pod for pod in cluster.caches.pods[0].all() if f"i-{pod.metadata.uid}" == route.instance]
            assert selector.items() <= (pod.metadata.labels or {}).items()


async def _reconciled(pods: list[Any], services: dict[Any, Any], forged: list[Any]) -> Cluster:
    cluster = Cluster()
    for namespace, name, labels, notes in {row[:2]: row for row in pods}.values():
        cluster.add_pod(namespace, name, labels, notes)
    for namespace, name, selector, ports in services.values():
        cluster.add_service(namespace, name, selector, ports)
    for namespace, service in forged:
        cluster.add_slice(namespace, service)
    for _ in range(2):
        for namespace, name, *_rest in services.values():
            await cluster.reconcile(namespace, name)
    return cluster
