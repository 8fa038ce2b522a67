"""A Service of a pod at a cloud: the ports of its claim and its EndpointSlices, with the real claims and node."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from skysail.claims.bridging.bridge_addresses import BridgeAddresses
from skysail.claims.bridging.bridge_ports import BridgePorts
from skysail.claims.bridging.endpoint_slices import ENDPOINT_SLICE
from skysail.claims.types import CLOUD_INSTANCE
from skysail.core.executor import CacheRegistry, Executor
from skysail.kinds.cloud_services.caches import Caches
from skysail.kinds.cloud_services.reconciler import CloudServiceReconciler
from skysail.kinds.cloud_services.tunnel_reconciler import TunnelReconciler
from skysail.kube.api.resources import CONFIG_MAP, POD, SERVICE
from tests.simulation import runner
from tests.simulation.offload import NODE, OPTIONAL, RESOURCES, VENDOR, VOLATILE, CloudFixture, CloudOperator, apply_pod
from tests.simulation.runner import STAGE, Scenario
from tests.simulation.spending import Administrator

if TYPE_CHECKING:
    from tests.contract.api_dsl import Api
    from tests.simulation.operator_process import Process
    from tests.simulation.runner import Outcome

# Ports are chosen by chance. Slices are deleted and made again where a process saw the pod late.
_VOLATILE = VOLATILE | {"port", "skysail.dev/last-applied-hash", "released"}


class BridgeOperator(CloudOperator):
    """An operator with one cloud, to whose instances the bridge can connect."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        caches = Caches.create([NODE])
        for cache in (caches.services, *caches.pods, caches.slices):
            process.fill_only(cache)
        ports = BridgePorts(process.acting, STAGE, self.claims, now=process.now, rng=process.rng)
        addresses = BridgeAddresses("10.244.0.1", STAGE)
        reconciler = CloudServiceReconciler(
            caches, self.claims, ports, addresses, reachable={VENDOR.name: True}, now=process.now
        )
        executor = Executor(process.client, CacheRegistry(caches.services, caches.slices, self.claims), process)
        reconciler.connect(process.add_controller(reconciler, executor))
        tunnels = TunnelReconciler(caches, process.now)
        tunnels.connect(process.add_controller(tunnels, executor))
        process.background.append(ports.run)


async def serve(api: Api) -> None:
    """Two Services select one pod: they share the port of its claim."""
    for name in ("web", "alias"):
        spec = {"clusterIP": "10.96.0.7", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
        (await api.create(SERVICE, {"metadata": {"name": name}, "spec": spec})).ok  # noqa: B018 (asserts)
    await apply_pod(api, "start=20s,run=2h", metadata={"labels": {"app": "web"}})
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(CLOUD_INSTANCE.resource, f"{uid}-0", lambda claim: bool(claim) and _has_port(claim))


async def open_tunnel(api: Api) -> None:
    annotations = {"modal-operator.io/tunnel": "true", "modal-operator.io/tunnel-port": "6006"}
    await apply_pod(api, "start=20s,run=2h", metadata={"annotations": annotations})
    uid = (await api.get(POD, "train")).ok["metadata"]["uid"]
    await api.until(CLOUD_INSTANCE.resource, f"{uid}-0", lambda claim: bool(claim) and _has_port(claim))


async def drop_alias(api: Api) -> None:
    (await api.delete(SERVICE, "alias")).ok  # noqa: B018 (asserts)


async def end(api: Api) -> None:
    (await api.delete(POD, "train")).ok  # noqa: B018 (asserts)


def _has_port(claim: dict[str, Any]) -> bool:
    status = claim.get("status", {})
    return bool(status.get("bridgePorts")) or status.get("state") == "Terminated"


def _scenario(name: str, *steps: Any, down: frozenset[int] = frozenset()) -> Scenario:
    return Scenario(
        name=name,
        resources=(*RESOURCES, SERVICE, ENDPOINT_SLICE, CONFIG_MAP),
        residents=(Administrator,),
        build=BridgeOperator,
        steps=steps,
        down=down,
        outside=CloudFixture,
        volatile=_VOLATILE,
        optional=OPTIONAL,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("Service of a pod", serve),
        _scenario("pod deleted", serve, end),
        _scenario("Service deleted", serve, drop_alias),
        _scenario("tunnel", open_tunnel),
        _scenario("pod with tunnel deleted", open_tunnel, end),
    )
}


@functools.cache
def reference(name: str) -> Outcome:
    return runner.reference(SCENARIOS[name])
