"""Pod fields that the node's provider does not support, reported by their path. Pure.

Two kinds: *rejected* fields, without which the pod would be wrong, so it is not started; and *ignored* fields
(hostPort, SELinux options), without which it runs, with a condition that names them. All other fields are supported, or
have no meaning for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skysail.cloud.provider import Features
from skysail.node.pod_types import Container, Handler, Pod, PodSpec, Probe, SecurityContext, Volume

# The status has an entry per container, and spec and status together must fit into the API server's size limit.
MAX_CONTAINERS = 100
_MAX_SENTENCES = 20
NO_EPHEMERAL_CONTAINERS = "ephemeral containers are not supported; use exec"
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet")

T = TypeVar("T")
Rule = tuple[str, Callable[[T], object], str]


class UnsupportedFields(msgspec.Struct, frozen=True):
    """Messages about unsupported fields. A pod with a rejected field is not run; ignored fields have no effect."""

    rejected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __add__(self, other: UnsupportedFields) -> UnsupportedFields:
        return UnsupportedFields((*self.rejected, *other.rejected), (*self.ignored, *other.ignored))


_POD_REJECTED: tuple[Rule[PodSpec], ...] = (
    ("hostPID", lambda spec: spec.host_pid, "a pod never sees the processes of the machine"),
    ("hostIPC", lambda spec: spec.host_ipc, "a pod never sees the shared memory of the machine"),
    (
        "shareProcessNamespace",
        lambda spec: spec.share_process_namespace,
        "containers do not see each other's processes",
    ),
    ("runtimeClassName", lambda spec: spec.runtime_class_name, "this node has one runtime; remove the field"),
    ("resourceClaims", lambda spec: spec.resource_claims, "this node has no devices to claim"),
    ("os.name", lambda spec: spec.os and spec.os.name != "linux", "this node runs Linux programs only"),
    ("securityContext.sysctls", lambda spec: spec.security_context.sysctls, "a pod cannot set kernel parameters"),
)
_POD_IGNORED: tuple[Rule[PodSpec], ...] = (
    ("dnsPolicy", lambda spec: spec.dns_policy not in _DNS, "names are resolved by the cluster's DNS server"),
    ("dnsConfig", lambda spec: spec.dns_config, "names are resolved by the cluster's DNS server"),
    ("setHostnameAsFQDN", lambda spec: spec.set_hostname_as_fqdn, "the host name stays the short one"),
    ("resources", lambda spec: spec.resources, "limits apply to each container, not to the pod as a whole"),
    ("ephemeralContainers", lambda spec: spec.ephemeral_containers, NO_EPHEMERAL_CONTAINERS),
)
_CONTAINER_REJECTED: tuple[Rule[Container], ...] = (
    ("volumeDevices", lambda container: container.volume_devices, "this node has no block devices"),
    ("resources.claims", lambda container: container.resources.claims, "this node has no devices to claim"),
    (
        "restartPolicyRules",
        lambda container: container.restart_policy_rules,
        "the pod's restartPolicy applies to all exit codes",
    ),
    (
        "securityContext.privileged",
        lambda container: container.security_context.privileged,
        "privileged containers are not supported",
    ),
    (
        "securityContext.procMount",
        lambda container: container.security_context.proc_mount != "Default",
        "the kernel's files stay masked",
    ),
)
_CONTAINER_IGNORED: tuple[Rule[Container], ...] = (
    (
        "ports.hostPort",
        lambda container: any(port.host_port for port in container.ports),
        "no port of the machine is opened; reach the pod through a Service or by port-forward",
    ),
    ("lifecycle.stopSignal", lambda container: container.lifecycle.stop_signal, "containers are stopped by SIGTERM"),
    (
        "volumeMounts.mountPropagation",
        lambda container: any(mount.mount_propagation != "None" for mount in container.volume_mounts),
        "mounts of a container are not visible outside of it",
    ),
    (
        "volumeMounts.recursiveReadOnly",
        lambda container: any(mount.recursive_read_only == "Enabled" for mount in container.volume_mounts),
        "mounts below a read-only one are not changed",
    ),
)
_SECURITY_REJECTED: tuple[Rule[SecurityContext], ...] = (
    (
        "seccompProfile",
        lambda context: context.seccomp_profile and context.seccomp_profile.type == "Localhost",
        "this node does not load profiles of the machine; use RuntimeDefault",
    ),
)
_SECURITY_IGNORED: tuple[Rule[SecurityContext], ...] = (
    (
        "appArmorProfile",
        lambda context: context.app_armor_profile and context.app_armor_profile.type == "Localhost",
        "this node does not load profiles of the machine",
    ),
    ("seLinuxOptions", lambda context: context.se_linux_options, "this node does not support SELinux"),
    ("windowsOptions", lambda context: context.windows_options, "this node runs Linux programs only"),
)


def find(pod: Pod, features: Features) -> UnsupportedFields:
    """Return the fields of this pod that a provider with these features does not support."""
    spec = pod.spec
    if count := _surplus(spec):
        message = (
            f"this node runs at most {MAX_CONTAINERS} containers per pod, and this pod has {count}: split the pod."
        )
        return UnsupportedFields((f"spec.containers: {message}",))
    containers = [*_named("spec.initContainers", spec.init_containers), *_named("spec.containers", spec.containers)]
    rejected = [
        *_messages("spec", spec, _POD_REJECTED),
        *_messages("spec.securityContext", spec.security_context, _SECURITY_REJECTED),
        *_sandbox(spec, features),
        *(message for path, container in containers for message in _container(path, container, features)),
        *_restarts(spec),
    ]
    ignored = [
        *_messages("spec", spec, _POD_IGNORED),
        *_ids(spec, features),
        *_messages("spec.securityContext", spec.security_context, _SECURITY_IGNORED),
        *(message for path, container in containers for message in _messages(path, container, _CONTAINER_IGNORED)),
        *(message for path, container in containers for message in _ineffective(path, container, features)),
        *(
            message
            for path, container in containers
            for message in _messages(f"{path}.securityContext", container.security_context, _SECURITY_IGNORED)
        ),
    ]
    return UnsupportedFields(_first(rejected), _first(ignored))


def bounded(pod: Pod) -> Pod:
    """Return the pod with at most `MAX_CONTAINERS` containers. The rest is never run and has no status."""
    spec = pod.spec
    if _surplus(spec):
        half = MAX_CONTAINERS // 2
        spec = replace(spec, init_containers=spec.init_containers[:half], containers=spec.containers[:half])
    if len(spec.ephemeral_containers) > MAX_CONTAINERS:
        spec = replace(spec, ephemeral_containers=spec.ephemeral_containers[:MAX_CONTAINERS])
    return pod if spec is pod.spec else replace(pod, spec=spec)


def _surplus(spec: PodSpec) -> int:
    """Return the number of containers if there are too many, else 0."""
    count = len(spec.init_containers) + len(spec.containers)
    return count if count > MAX_CONTAINERS else 0


def _first(sentences: list[str]) -> tuple[str, ...]:
    """Return a limited number of sentences, because each container status repeats them."""
    rest = len(sentences) - _MAX_SENTENCES
    return (*sentences[:_MAX_SENTENCES], *((f"And {rest} more fields.",) if rest > 0 else ()))


def _messages(path: str, thing: T, rules: Iterable[Rule[T]]) -> Iterator[str]:
    return (f"{path}.{field}: {message}." for field, is_set, message in rules if is_set(thing))


def _sandbox(spec: PodSpec, features: Features) -> Iterator[str]:
    if spec.host_network and not features.host_network:
        yield f"spec.hostNetwork: {_no_host_network(features)}"
    if not features.multi_container and len(spec.init_containers) + len(spec.containers) > 1:
        yield "spec.containers: this node runs one container per pod, and no init containers."
    for index, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{index}] ({volume.name})"
        if not features.volumes:
            yield f"{path}: this node does not support volumes."
        elif not _is_known(volume):
            yield f"{path}: this node does not support this type of volume."


def _ids(spec: PodSpec, features: Features) -> Iterator[str]:
    """Yield the fields about users and groups that have no effect at this provider."""
    if not spec.host_users and not features.user_namespaces:
        yield "spec.hostUsers: user namespaces are not available; the pod has few capabilities instead."
    if spec.security_context.supplemental_groups and not features.supplemental_groups:
        yield "spec.securityContext.supplementalGroups: a container has one group only."


def _ineffective(path: str, container: Container, features: Features) -> Iterator[str]:
    if ignored := sorted(container.security_context.capabilities.added & features.ignored_capabilities):
        yield (
            f"{path}.securityContext.capabilities.add: {', '.join(ignored)} has no effect, because the pod's user "
            "namespace does not own its network."
        )


def _no_host_network(features: Features) -> str:
    if not features.host_network_setting:
        return "this node has no host network for pods: remove the field."
    return (
        "pods cannot use the host network of this node: remove the field, or run `skysail down` and "
        f"`{features.host_network_setting}=true skysail up`."
    )


def _is_known(volume: Volume) -> bool:
    sources = [getattr(volume, name) for name in volume.__struct_fields__ if name != "name"]
    parts = volume.projected.sources if volume.projected else ()
    return any(source is not None for source in sources) and not any(
        part.cluster_trust_bundle or part.pod_certificate for part in parts
    )


def _container(path: str, container: Container, features: Features) -> Iterator[str]:
    yield from _messages(path, container, _CONTAINER_REJECTED)
    yield from _messages(f"{path}.securityContext", container.security_context, _SECURITY_REJECTED)
    known = features.capabilities | features.ignored_capabilities
    if unsupported := sorted(container.security_context.capabilities.added - known):
        yield f"{path}.securityContext.capabilities.add: this node does not grant {', '.join(unsupported)}."
    for index, variable in enumerate(container.env):
        if variable.value_from and variable.value_from.file_key_ref:
            yield f"{path}.env[{index}].valueFrom.fileKeyRef: variables from files are not supported."
    for name, action in _actions(container):
        yield from _action(f"{path}.{name}", action, features)


def _actions(container: Container) -> Iterator[tuple[str, Probe | Handler]]:
    found = {
        "startupProbe": container.startup_probe,
        "readinessProbe": container.readiness_probe,
        "livenessProbe": container.liveness_probe,
        "lifecycle.postStart": container.lifecycle.post_start,
        "lifecycle.preStop": container.lifecycle.pre_stop,
    }
    return ((name, action) for name, action in found.items() if action is not None)


def _action(path: str, action: Probe | Handler, features: Features) -> Iterator[str]:
    targets: dict[str, Any] = {"httpGet": action.http_get, "tcpSocket": action.tcp_socket}
    for name, target in targets.items():
        if target is not None and target.host:
            yield f"{path}.{name}.host: this node connects to the pod itself only; set the header Host instead."
    targets["grpc"] = action.grpc if isinstance(action, Probe) else None
    for name, target in targets.items():
        if target is not None and not features.port_forward:
            yield f"{path}.{name}: this node cannot connect to ports of its pods."
    if action.exec is not None and not features.exec:
        yield f"{path}.exec: this node cannot run commands in a container."


def _restarts(spec: PodSpec) -> Iterator[str]:
    """Yield restart policies of containers. Those of init containers make sidecars, which are supported."""
    for path, container in _named("spec.containers", spec.containers):
        if container.restart_policy is not None:
            yield f"{path}.restartPolicy: the pod's restartPolicy applies to all of its containers."


def _named(path: str, containers: Iterable[Container]) -> Iterator[tuple[str, Container]]:
    return ((f"{path}[{index}]", container) for index, container in enumerate(containers))
