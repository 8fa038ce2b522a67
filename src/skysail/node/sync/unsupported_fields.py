"""What a pod asks for that its node cannot carry, each told by the path of its field. Pure.

Some of it a pod cannot do without: it is refused, and not run. Without the rest it runs, and is told so: what others
may rely on (a port of the machine) or what only matters elsewhere (a label of SELinux). All other fields are carried,
or mean nothing to a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skysail.cloud.provider import Features
from skysail.node.pod_types import Container, Handler, Pod, PodSpec, Probe, SecurityContext, Volume

# A status has a row per container, and must fit into what the API server takes, together with the spec.
MAX_CONTAINERS = 100
_MAX_SENTENCES = 20
NO_EPHEMERAL_CONTAINERS = "nothing is added to a pod that runs; use exec"
_DNS = ("ClusterFirst", "ClusterFirstWithHostNet")

T = TypeVar("T")
Rule = tuple[str, Callable[[T], object], str]


class UnsupportedFields(msgspec.Struct, frozen=True):
    """Sentences. A pod with a refusal is not run; without what is left out it runs."""

    rejected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __add__(self, other: UnsupportedFields) -> UnsupportedFields:
        return UnsupportedFields((*self.rejected, *other.rejected), (*self.ignored, *other.ignored))


_POD_REFUSED: tuple[Rule[PodSpec], ...] = (
    ("hostPID", lambda spec: spec.host_pid, "a pod never sees the processes of the machine"),
    ("hostIPC", lambda spec: spec.host_ipc, "a pod never sees the shared memory of the machine"),
    (
        "shareProcessNamespace",
        lambda spec: spec.share_process_namespace,
        "containers do not see each other's processes",
    ),
    ("runtimeClassName", lambda spec: spec.runtime_class_name, "this node has one runtime; drop the class"),
    ("resourceClaims", lambda spec: spec.resource_claims, "this node has no devices to claim"),
    ("os.name", lambda spec: spec.os and spec.os.name != "linux", "this node runs Linux programs only"),
    ("securityContext.sysctls", lambda spec: spec.security_context.sysctls, "the kernel is not the pod's to set"),
)
_POD_LEFT_OUT: tuple[Rule[PodSpec], ...] = (
    ("dnsPolicy", lambda spec: spec.dns_policy not in _DNS, "names come from the cluster's name server"),
    ("dnsConfig", lambda spec: spec.dns_config, "names come from the cluster's name server"),
    ("setHostnameAsFQDN", lambda spec: spec.set_hostname_as_fqdn, "the host name stays the short one"),
    ("resources", lambda spec: spec.resources, "limits hold for each container, not for the pod as a whole"),
    ("ephemeralContainers", lambda spec: spec.ephemeral_containers, NO_EPHEMERAL_CONTAINERS),
)
_CONTAINER_REFUSED: tuple[Rule[Container], ...] = (
    ("volumeDevices", lambda box: box.volume_devices, "this node has no block devices"),
    ("resources.claims", lambda box: box.resources.claims, "this node has no devices to claim"),
    ("restartPolicyRules", lambda box: box.restart_policy_rules, "the pod's restartPolicy holds for all exit codes"),
    ("securityContext.privileged", lambda box: box.security_context.privileged, "nobody is privileged here"),
    (
        "securityContext.procMount",
        lambda box: box.security_context.proc_mount != "Default",
        "the kernel's files stay masked",
    ),
)
_CONTAINER_LEFT_OUT: tuple[Rule[Container], ...] = (
    (
        "ports.hostPort",
        lambda box: any(port.host_port for port in box.ports),
        "no port of the machine is opened; reach the pod through a Service, or by port-forward",
    ),
    ("lifecycle.stopSignal", lambda box: box.lifecycle.stop_signal, "containers are ended by SIGTERM"),
    (
        "volumeMounts.mountPropagation",
        lambda box: any(mount.mount_propagation != "None" for mount in box.volume_mounts),
        "what a container mounts stays its own",
    ),
    (
        "volumeMounts.recursiveReadOnly",
        lambda box: any(mount.recursive_read_only == "Enabled" for mount in box.volume_mounts),
        "mounts below a read-only one are not changed",
    ),
)
_SECURITY_REFUSED: tuple[Rule[SecurityContext], ...] = (
    (
        "seccompProfile",
        lambda context: context.seccomp_profile and context.seccomp_profile.type == "Localhost",
        "this node loads no profiles of the machine; use RuntimeDefault",
    ),
)
_SECURITY_LEFT_OUT: tuple[Rule[SecurityContext], ...] = (
    (
        "appArmorProfile",
        lambda context: context.app_armor_profile and context.app_armor_profile.type == "Localhost",
        "profiles of the machine are not loaded",
    ),
    ("seLinuxOptions", lambda context: context.se_linux_options, "this node knows no SELinux"),
    ("windowsOptions", lambda context: context.windows_options, "this node runs Linux programs only"),
)


def find(pod: Pod, features: Features) -> UnsupportedFields:
    """What this provider cannot carry of this pod."""
    spec = pod.spec
    if count := _surplus(spec):
        message = (
            f"this node runs at most {MAX_CONTAINERS} containers per pod, and this pod has {count}: split the pod."
        )
        return UnsupportedFields((f"spec.containers: {message}",))
    boxes = [*_named("spec.initContainers", spec.init_containers), *_named("spec.containers", spec.containers)]
    refused = [
        *_messages("spec", spec, _POD_REFUSED),
        *_messages("spec.securityContext", spec.security_context, _SECURITY_REFUSED),
        *_places(spec, features),
        *(prefix for path, container in boxes for prefix in _container(path, container, features)),
        *_restarts(spec),
    ]
    left_out = [
        *_messages("spec", spec, _POD_LEFT_OUT),
        *_ids(spec, features),
        *_messages("spec.securityContext", spec.security_context, _SECURITY_LEFT_OUT),
        *(prefix for path, container in boxes for prefix in _messages(path, container, _CONTAINER_LEFT_OUT)),
        *(prefix for path, container in boxes for prefix in _ineffective(path, container, features)),
        *(
            prefix
            for path, container in boxes
            for prefix in _messages(f"{path}.securityContext", container.security_context, _SECURITY_LEFT_OUT)
        ),
    ]
    return UnsupportedFields(_first(refused), _first(left_out))


def bounded(pod: Pod) -> Pod:
    """Return the pod with no more containers than a node looks at. The rest never runs, and has no status."""
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
    """Return as many sentences as a person reads: each row of a status repeats them."""
    rest = len(sentences) - _MAX_SENTENCES
    return (*sentences[:_MAX_SENTENCES], *((f"And {rest} more fields.",) if rest > 0 else ()))


def _messages(path: str, thing: T, rules: Iterable[Rule[T]]) -> Iterator[str]:
    return (f"{path}.{field}: {message}." for field, asks, message in rules if asks(thing))


def _places(spec: PodSpec, features: Features) -> Iterator[str]:
    if spec.host_network and not features.host_network:
        yield f"spec.hostNetwork: {_no_host_network(features)}"
    if not features.multi_container and len(spec.init_containers) + len(spec.containers) > 1:
        yield "spec.containers: this node runs one container per pod, and no init containers."
    for index, volume in enumerate(spec.volumes):
        path = f"spec.volumes[{index}] ({volume.name})"
        if not features.volumes:
            yield f"{path}: this node mounts no volumes."
        elif not _is_known(volume):
            yield f"{path} is of a kind that this node cannot mount."


def _ids(spec: PodSpec, features: Features) -> Iterator[str]:
    """Yield the fields about users and groups that have no effect at this provider."""
    if not spec.host_users and not features.user_namespaces:
        yield "spec.hostUsers: the pod gets no users of its own; it has few rights instead."
    if spec.security_context.supplemental_groups and not features.supplemental_groups:
        yield "spec.securityContext.supplementalGroups: a program is in one group only."


def _ineffective(path: str, container: Container, features: Features) -> Iterator[str]:
    if ignored := sorted(container.security_context.capabilities.added & features.ignored_capabilities):
        yield (
            f"{path}.securityContext.capabilities.add: {', '.join(ignored)} has no effect, because the pod's user "
            "namespace does not own its network."
        )


def _no_host_network(features: Features) -> str:
    if not features.host_network_setting:
        return "this node has no network that a pod could share."
    return (
        "pods do not share the network of this node: drop the field, or `skysail down` and "
        f"`{features.host_network_setting}=true skysail up`."
    )


def _is_known(volume: Volume) -> bool:
    sources = [getattr(volume, name) for name in volume.__struct_fields__ if name != "name"]
    parts = volume.projected.sources if volume.projected else ()
    return any(source is not None for source in sources) and not any(
        part.cluster_trust_bundle or part.pod_certificate for part in parts
    )


def _container(path: str, container: Container, features: Features) -> Iterator[str]:
    yield from _messages(path, container, _CONTAINER_REFUSED)
    yield from _messages(f"{path}.securityContext", container.security_context, _SECURITY_REFUSED)
    known = features.capabilities | features.ignored_capabilities
    if desired := sorted(container.security_context.capabilities.added - known):
        yield f"{path}.securityContext.capabilities.add: no container here may have {', '.join(desired)}."
    for index, variable in enumerate(container.env):
        if variable.value_from and variable.value_from.file_key_ref:
            yield f"{path}.env[{index}].valueFrom.fileKeyRef: files are not read for variables."
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
    asked: dict[str, Any] = {"httpGet": action.http_get, "tcpSocket": action.tcp_socket}
    for name, target in asked.items():
        if target is not None and target.host:
            yield f"{path}.{name}.host: this node asks the pod itself only; name a header Host instead."
    asked["grpc"] = action.grpc if isinstance(action, Probe) else None
    for name, target in asked.items():
        if target is not None and not features.port_forward:
            yield f"{path}.{name}: this node does not reach ports of its pods."
    if action.exec is not None and not features.exec:
        yield f"{path}.exec: this node runs no commands beside a container."


def _restarts(spec: PodSpec) -> Iterator[str]:
    """Of an init container it makes a sidecar, which is carried."""
    for path, container in _named("spec.containers", spec.containers):
        if container.restart_policy is not None:
            yield f"{path}.restartPolicy: the pod's own holds for all of its containers."


def _named(path: str, boxes: Iterable[Container]) -> Iterator[tuple[str, Container]]:
    return ((f"{path}[{index}]", container) for index, container in enumerate(boxes))
