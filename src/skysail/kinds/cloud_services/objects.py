"""Services and pods, as far as their routes to clouds need them."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.kube.api.objects import Object

Manifest = dict[str, Any]


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part that is only read."""


class ServicePort(_Part, frozen=True):
    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str = 0
    app_protocol: str = ""


class ServiceSpec(_Part, frozen=True):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] = ()
    publish_not_ready_addresses: bool = False


class ServiceStatus(_Part, frozen=True):
    conditions: tuple[Manifest, ...] = ()


class Service(Object, frozen=True, gc=False):
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    @property
    def is_headless(self) -> bool:
        return self.spec.cluster_ip == "None"

    def selects(self, labels: dict[str, str] | None) -> bool:
        """Return whether the selector matches. A Service without a selector selects nothing."""
        selector, found = self.spec.selector or {}, labels or {}
        return bool(selector) and all(found.get(name) == value for name, value in selector.items())

    def leads_to(self, pod: Object) -> bool:
        """Return whether the pod is behind this Service: selected by its labels, or the owner of its tunnel."""
        return self.selects(pod.metadata.labels) or self.metadata.is_controlled_by(pod.metadata)

    def condition(self, type_: str) -> Manifest | None:
        return next((row for row in self.status.conditions if row.get("type") == type_), None)


class ContainerPort(_Part, frozen=True):
    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(_Part, frozen=True):
    ports: tuple[ContainerPort, ...] = ()


class PodSpec(_Part, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()


class PodStatus(_Part, frozen=True):
    phase: str = "Pending"
    conditions: tuple[Manifest, ...] = ()


class Pod(Object, frozen=True, gc=False):
    """A pod on the node of a cloud."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        return any(row.get("type") == "Ready" and row.get("status") == "True" for row in self.status.conditions)

    @property
    def is_finished(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    def port(self, target: int | str, default: int) -> int | None:
        """Return the number of a target port. Returns None if no container has a TCP port of that name."""
        if isinstance(target, int):
            return target or default
        ports = (port for container in self.spec.containers for port in container.ports)
        return next((port.container_port for port in ports if (port.name, port.protocol) == (target, "TCP")), None)
