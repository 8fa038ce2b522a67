"""Plan of a pod at a cloud that asks for a tunnel."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.core.actions import Apply, Delete, PatchMetadata
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kinds.cloud_services.plan import tunnels
from skysail.kinds.cloud_services.plan.tunnels import TunnelSnapshot
from skysail.kube.api.resources import SERVICE
from tests.unit.claims.samples import NOW

TUNNEL = {"modal-operator.io/tunnel": "true"}
URL = {"modal-operator.io/tunnel-url": "http://p-tunnel.n.svc.cluster.local"}


def pod(annotations: dict[str, str], *, phase: str = "Running", name: str = "p", **metadata: Any) -> Pod:
    meta = {"name": name, "namespace": "n", "uid": "u", "annotations": annotations, **metadata}
    return msgspec.convert({"metadata": meta, "status": {"phase": phase}}, Pod)


def service(name: str = "p-tunnel") -> Service:
    return msgspec.convert({"metadata": {"name": name, "namespace": "n", "uid": "s"}}, Service)


def test_tunnels_pod_with_tunnel_gets_a_service_and_its_url():
    applied, annotated = tunnels.plan(TunnelSnapshot(pod(TUNNEL), NOW)).actions
    assert isinstance(applied, Apply)
    assert applied.manifest["metadata"]["name"] == "p-tunnel"
    assert [(row["port"], row["targetPort"]) for row in applied.manifest["spec"]["ports"]] == [(80, 8000), (8000, 8000)]
    assert "selector" not in applied.manifest["spec"]
    assert isinstance(annotated, PatchMetadata)
    assert annotated.annotations == URL


def test_tunnels_function_has_a_tunnel():
    found = pod({"modal-operator.io/tunnel-port": "80", **URL}, labels={"modal-operator.io/workload-type": "function"})
    (applied,) = tunnels.plan(TunnelSnapshot(found, NOW)).actions
    assert isinstance(applied, Apply)
    assert [(row["port"], row["targetPort"]) for row in applied.manifest["spec"]["ports"]] == [(80, 80)]


def test_tunnels_pod_without_tunnel_loses_only_the_service_of_a_tunnel():
    snapshot = TunnelSnapshot(pod({}), NOW, (service(), service("own")))
    assert tunnels.plan(snapshot).actions == (Delete(SERVICE, service()),)
    assert tunnels.plan(TunnelSnapshot(pod({}), NOW)).actions == ()
    finished = TunnelSnapshot(pod(TUNNEL, phase="Succeeded"), NOW, (service(),))
    assert tunnels.plan(finished).actions == (Delete(SERVICE, service()),)


def test_tunnels_deleted_pod_is_left_to_the_garbage_collector():
    gone = pod(TUNNEL, deletionTimestamp="2026-11-15T12:00:00Z")
    assert tunnels.plan(TunnelSnapshot(gone, NOW, (service(),))).actions == ()


def test_tunnels_long_name_is_shortened():
    name = tunnels.service_name("p" * 63)
    assert len(name) <= 63
    assert name.endswith("-tunnel")
