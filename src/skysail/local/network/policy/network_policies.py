"""NetworkPolicies, and the fields of pods and namespaces that they select by."""

from __future__ import annotations

from typing import Literal

import msgspec

from skysail.kube.api.fields import LabelSelector
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import Resource

NETWORK_POLICY = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")

Protocol = Literal["TCP", "UDP", "SCTP"]


class PolicyPort(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A port of a rule. `port` is a number, the name of a container port, or None for all ports."""

    protocol: Protocol = "TCP"
    port: int | str | None = None
    end_port: int | None = None


class IpBlock(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    cidr: str
    except_: tuple[str, ...] = msgspec.field(default=(), name="except")


class PolicyPeer(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IpBlock | None = None


class IngressRule(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A rule without peers allows all peers, one without ports allows all ports."""

    from_: tuple[PolicyPeer, ...] = msgspec.field(default=(), name="from")
    ports: tuple[PolicyPort, ...] = ()


class EgressRule(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    to: tuple[PolicyPeer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


class NetworkPolicySpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[str, ...] = ()
    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()


class NetworkPolicy(Object, frozen=True, gc=False):
    spec: NetworkPolicySpec = NetworkPolicySpec()


class ContainerPort(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    container_port: int
    name: str = ""
    protocol: Protocol = "TCP"


class Container(msgspec.Struct, frozen=True, gc=False):
    ports: tuple[ContainerPort, ...] = ()


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    host_network: bool = False


class PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class Pod(Object, frozen=True, gc=False):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
