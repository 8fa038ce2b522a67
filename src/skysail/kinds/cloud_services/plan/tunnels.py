"""Plan of a pod at a cloud that asks for a tunnel: a Service of its own, and an annotation with its URL. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from skysail.base.names import Annotation
from skysail.claims.requirements.annotations import tunnel_port
from skysail.core.actions import Action, Apply, Delete, Manifest, Owner, PatchMetadata, Plan
from skysail.kinds.cloud_services.objects import Pod, Service
from skysail.kube.api.child_names import MAX_LABEL_LENGTH, child_prefix
from skysail.kube.api.resources import POD, SERVICE

_SUFFIX = "-tunnel"
_HTTP_PORT = 80


class TunnelSnapshot(msgspec.Struct, frozen=True):
    """A pod at a cloud, and the Services that it owns."""

    object: Pod
    now: datetime
    services: tuple[Service, ...] = ()


def plan(snapshot: TunnelSnapshot) -> Plan:
    pod = snapshot.object
    if pod.metadata.is_deleting:
        return Plan()  # the garbage collector deletes the Service with its pod
    port = tunnel_port(pod.metadata.annotations or {}, pod.metadata.labels or {})
    name = service_name(pod.metadata.name)
    if port is None or pod.is_finished:
        obsolete = [service for service in snapshot.services if service.metadata.name == name]
        return Plan(actions=tuple(Delete(SERVICE, service) for service in obsolete))
    actions: list[Action] = [Apply(SERVICE, _manifest(pod, name, port), Owner(POD, pod), enforce=True)]
    url = f"http://{name}.{pod.metadata.namespace}.svc.cluster.local"
    if (pod.metadata.annotations or {}).get(Annotation.MODAL_TUNNEL_URL) != url:
        actions.append(PatchMetadata(resource=POD, object=pod, annotations={Annotation.MODAL_TUNNEL_URL: url}))
    return Plan(actions=tuple(actions))


def service_name(pod: str) -> str:
    return child_prefix(pod, MAX_LABEL_LENGTH - len(_SUFFIX)) + _SUFFIX


def _manifest(pod: Pod, name: str, port: int) -> Manifest:
    """Return the Service. It has no selector: its owner is the pod, which may have any labels or none."""
    common = {"targetPort": port, "protocol": "TCP", "appProtocol": "http"}
    ports: list[Manifest] = [{"name": "http", "port": _HTTP_PORT, **common}]
    if port != _HTTP_PORT:
        ports.append({"name": "tunnel", "port": port, **common})
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {"name": name, "namespace": pod.metadata.namespace},
        "spec": {"type": "ClusterIP", "ports": ports},
    }
