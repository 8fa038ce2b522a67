"""Translation of a Kubernetes pod to the provider's types. Pure: referenced objects are passed in.

Fields that a provider does not support are ignored here: `sync/unsupported_fields.py` reports them before any start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from skysail.cloud import provider
from skysail.kube.api import quantities
from skysail.node.config import env as container_env
from skysail.node.config import field_values
from skysail.node.config.env import Data, ResolvedReferences
from skysail.node.config.errors import Missing
from skysail.node.config.field_values import Budget
from skysail.node.pod_types import (
    ConfigMapSource,
    Container,
    DownwardItem,
    DownwardSource,
    Handler,
    KeySelector,
    KeyToPath,
    NameSelector,
    Pod,
    Probe,
    ProjectedSource,
    SecretSource,
    TokenSource,
    Volume,
    VolumeMount,
)

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"  # noqa: S105 (a kind)
_GPU = "nvidia.com/gpu"
_STORAGE = "ephemeral-storage"
# Prefix of the volume in which the API server gives every pod its service account's token.
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 (a name)


class Reference(msgspec.Struct, frozen=True):
    """Reference of a pod to a ConfigMap or Secret."""

    kind: str
    name: str
    optional: bool


class RequiredRefs(msgspec.Struct, frozen=True):
    """Names of the objects that must be read before a pod can be translated."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    pvcs: frozenset[str]
    tokens: frozenset[TokenSource]


def required_refs(pod: Pod) -> RequiredRefs:
    found = list(references(pod))
    return RequiredRefs(
        config_maps=frozenset(reference.name for reference in found if reference.kind == CONFIG_MAP),
        secrets=frozenset(reference.name for reference in found if reference.kind == SECRET),
        pvcs=frozenset(v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim),
        tokens=frozenset(part for part in _parts(pod.spec.volumes) if isinstance(part, TokenSource)),
    )


def references(pod: Pod) -> Iterator[Reference]:
    """Yield each reference of the pod to a ConfigMap or Secret, in each field that has one."""
    for container in all_containers(pod):
        for source in container.env_from:
            yield from _reference(source.config_map_ref, source.secret_ref)
        for variable in container.env:
            if variable.value_from:
                yield from _reference(variable.value_from.config_map_key_ref, variable.value_from.secret_key_ref)
    for part in _parts(pod.spec.volumes):
        if isinstance(part, ConfigMapSource):
            yield Reference(CONFIG_MAP, part.name, part.optional)
        elif isinstance(part, SecretSource):
            yield Reference(SECRET, part.secret_name or part.name, part.optional)


def _reference(
    config_map: NameSelector | KeySelector | None, secret: NameSelector | KeySelector | None
) -> Iterator[Reference]:
    for kind, selector in ((CONFIG_MAP, config_map), (SECRET, secret)):
        if selector is not None:
            yield Reference(kind, selector.name, selector.optional)


def missing_optional_refs(pod: Pod, resolved: ResolvedReferences) -> list[Reference]:
    """Return optional references to missing objects: the pod runs without them, and an event names them."""
    stores = {CONFIG_MAP: resolved.config_maps, SECRET: resolved.secrets}
    absent = (row for row in references(pod) if row.optional and row.name not in stores[row.kind])
    return sorted(set(absent), key=lambda row: (row.kind, row.name))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def without_service_account(pod: Pod) -> Pod:
    """Return the pod without the volume of its service account token, which must not leave the cluster."""
    return without_volumes(pod, {volume.name for volume in pod.spec.volumes if volume.name.startswith(_TOKEN_VOLUME)})


def without_volumes(pod: Pod, names: set[str]) -> Pod:
    """Return the pod without these volumes and their mounts."""
    if not any(volume.name in names for volume in pod.spec.volumes):
        return pod
    spec = replace(
        pod.spec,
        volumes=tuple(volume for volume in pod.spec.volumes if volume.name not in names),
        containers=tuple(_without(container, names) for container in pod.spec.containers),
        init_containers=tuple(_without(container, names) for container in pod.spec.init_containers),
    )
    return replace(pod, spec=spec)


def _without(container: Container, volumes: set[str]) -> Container:
    mounts = tuple(mount for mount in container.volume_mounts if mount.name not in volumes)
    return replace(container, volume_mounts=mounts)


def sandbox(pod: Pod, resolved: ResolvedReferences) -> provider.Pod:
    """Return the sandbox of the pod, without containers. Raises `Missing`."""
    return provider.Pod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        hostname=field_values.host_name("spec.hostname", pod.hostname),
        subdomain=field_values.host_name("spec.subdomain", pod.spec.subdomain),
        volumes=tuple(provider.Volume(volume.name, _source(pod, volume, resolved)) for volume in pod.spec.volumes),
        hosts=tuple(_hosts(pod)),
        uses_host_network=pod.spec.host_network,
        fs_group=pod.spec.security_context.fs_group,
        keeps_matching_groups=pod.spec.security_context.fs_group_change_policy == "OnRootMismatch",
        groups=frozenset(pod.spec.security_context.supplemental_groups),
        ephemeral_storage=_ephemeral_storage(pod),
    )


def container(pod: Pod, source: Container, resolved: ResolvedReferences) -> provider.Container:
    """Return one container with all references resolved.

    Raises `Missing` if a referenced object is missing.
    Raises `InvalidField`, with the path of the field, if a value is invalid.
    """
    path, budget = field_values.container_path(pod, source), Budget()
    env = container_env.resolve(pod, source, resolved, budget)
    _check_commands(path, source)
    return provider.Container(
        name=source.name,
        image=field_values.image(f"{path}.image", source.image),
        command=_arguments(f"{path}.command", source.command, env, budget),
        args=_arguments(f"{path}.args", source.args, env, budget),
        env=tuple(env.items()),
        working_dir=_absolute(f"{path}.workingDir", source.working_dir),
        mounts=tuple(
            _mount(f"{path}.volumeMounts[{index}]", mount, env) for index, mount in enumerate(source.volume_mounts)
        ),
        limits=_limits(source),
        requests=_requests(source),
        stdin=source.stdin,
        stdin_once=source.stdin_once,
        tty=source.tty,
        rights=_security_context(pod, source),
        message_path=_absolute(f"{path}.terminationMessagePath", source.termination_message_path),
        ports=tuple(port.container_port for port in source.ports if port.protocol == "TCP"),
    )


def _arguments(path: str, texts: Iterable[str], env: Mapping[str, str], budget: Budget) -> tuple[str, ...]:
    found = []
    for index, text in enumerate(texts):
        where = f"{path}[{index}]"
        found.append(field_values.argument(where, field_values.expand(where, text, env), budget))
    return tuple(found)


def _absolute(path: str, text: str) -> str:
    """Return the path from the container's root; empty if the field is empty."""
    return field_values.absolute_path(path, text) if text else ""


def _mount(path: str, mount: VolumeMount, env: Mapping[str, str]) -> provider.Mount:
    named = f"{path}.subPath" if mount.sub_path else f"{path}.subPathExpr"
    sub_path = mount.sub_path or field_values.expand(named, mount.sub_path_expr, env)
    return provider.Mount(
        volume=mount.name,
        path=field_values.absolute_path(f"{path}.mountPath", mount.mount_path),
        sub_path=field_values.relative_path(named, sub_path),
        read_only=mount.read_only,
    )


def _check_commands(path: str, source: Container) -> None:
    """Raise InvalidField for the command of a probe or hook that cannot be executed."""
    actions: dict[str, Probe | Handler | None] = {
        "startupProbe": source.startup_probe,
        "readinessProbe": source.readiness_probe,
        "livenessProbe": source.liveness_probe,
        "lifecycle.postStart": source.lifecycle.post_start,
        "lifecycle.preStop": source.lifecycle.pre_stop,
    }
    for name, action in actions.items():
        budget = Budget()
        for index, text in enumerate(action.exec.command if action and action.exec else ()):
            field_values.argument(f"{path}.{name}.exec.command[{index}]", text, budget)


def _hosts(pod: Pod) -> Iterator[tuple[str, tuple[str, ...]]]:
    for index, alias in enumerate(pod.spec.host_aliases):
        path = f"spec.hostAliases[{index}]"
        names = tuple(field_values.host_name(f"{path}.hostnames", name) for name in alias.hostnames)
        yield field_values.host_name(f"{path}.ip", alias.ip), names


def files(pod: Pod, volume: Volume, resolved: ResolvedReferences) -> tuple[provider.File, ...]:
    """Return the files of a volume that consists of Kubernetes objects. Raises `Missing`."""
    files = tuple(file for part, mode in _with_modes(volume) for file in _files_of(pod, part, resolved, mode))
    for file in files:
        field_values.relative_path(f"spec.volumes ({volume.name})", file.path)
    return files


def _security_context(pod: Pod, source: Container) -> provider.SecurityContext:
    """Return the security context: fields of the container take precedence over those of the pod.

    Raises `Missing` if the fields contradict each other.
    """
    own, shared = source.security_context, pod.spec.security_context
    user = shared.run_as_user if own.run_as_user is None else own.run_as_user
    profile = own.seccomp_profile or shared.seccomp_profile
    non_root = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if non_root and user == 0:
        raise Missing(
            "RunAsNonRoot",
            f"Container {source.name} has runAsNonRoot but runs as root (runAsUser: 0). "
            "Set another user, or remove runAsNonRoot.",
        )
    return provider.SecurityContext(
        user=user,
        group=shared.run_as_group if own.run_as_group is None else own.run_as_group,
        run_as_non_root=bool(non_root),
        drop=own.capabilities.dropped,
        add=own.capabilities.added,
        read_only_root=own.read_only_root_filesystem,
        is_unconfined=profile is not None and profile.type == "Unconfined",
    )


def _limits(source: Container) -> provider.ResourceLimits:
    limits = source.resources.limits
    return provider.ResourceLimits(
        cpu=float(quantities.parse(limits["cpu"])) if "cpu" in limits else None,
        memory=int(quantities.parse(limits["memory"])) if "memory" in limits else None,
        ephemeral_storage=_storage_limit(source),
        gpus=int(quantities.parse(limits.get(_GPU, 0))),
    )


def _requests(source: Container) -> provider.ResourceLimits:
    requests = source.resources.requests
    return provider.ResourceLimits(
        cpu=float(quantities.parse(requests["cpu"])) if "cpu" in requests else None,
        memory=int(quantities.parse(requests["memory"])) if "memory" in requests else None,
    )


def machine_size(source: Container) -> provider.ResourceLimits:
    """Return the CPU and memory that a cloud provides for the container and bills."""
    return provider.machine_size(_limits(source), _requests(source))


def _storage_limit(source: Container) -> int | None:
    limit = source.resources.limits.get(_STORAGE)
    return None if limit is None else int(quantities.parse(limit))


def _ephemeral_storage(pod: Pod) -> int | None:
    """Return the pod's limit as Kubernetes counts it: init containers run before the others, sidecars beside them."""
    if not any(_STORAGE in container.resources.limits for container in all_containers(pod)):
        return None
    first = [c for c in pod.spec.init_containers if c.restart_policy != "Always"]
    sidecars = sum(_storage_limit(c) or 0 for c in pod.spec.init_containers if c not in first)
    together = sum(_storage_limit(c) or 0 for c in pod.spec.containers)
    return sidecars + max(together, *(_storage_limit(c) or 0 for c in first), 0)


def _source(
    pod: Pod, volume: Volume, resolved: ResolvedReferences
) -> provider.EmptyDir | provider.ProjectedFiles | provider.HostPath | provider.PersistentDisk | provider.CloudVolume:
    if volume.cloud_volume:
        return provider.CloudVolume(volume.cloud_volume)
    if volume.empty_dir is not None:
        limit = volume.empty_dir.size_limit
        size = None if limit is None else int(quantities.parse(limit))
        return provider.EmptyDir(in_memory=volume.empty_dir.medium == "Memory", size_limit=size)
    if volume.host_path is not None:
        path = field_values.host_path(f"spec.volumes ({volume.name}).hostPath.path", volume.host_path.path)
        return provider.HostPath(path, create=volume.host_path.type.endswith("OrCreate"))
    if volume.persistent_volume_claim is not None:
        pvc = volume.persistent_volume_claim
        if pvc.claim_name not in resolved.disks:
            raise Missing("ClaimNotBound", f"PersistentVolumeClaim {pvc.claim_name} is not bound yet.")
        return provider.PersistentDisk(resolved.disks[pvc.claim_name], read_only=pvc.read_only)
    return provider.ProjectedFiles(files(pod, volume, resolved))


Part = ConfigMapSource | SecretSource | DownwardSource | TokenSource


def _parts(volumes: Iterable[Volume]) -> Iterator[Part]:
    for volume in volumes:
        yield from (part for part, _ in _with_modes(volume))


def _with_modes(volume: Volume) -> Iterator[tuple[Part, int]]:
    """Yield the parts of a volume that come from Kubernetes objects, each with the default mode of its files."""
    if volume.projected is not None:
        yield from ((part, volume.projected.default_mode) for part in _projected(volume.projected))
    for part in (volume.config_map, volume.secret, volume.downward_api):
        if part is not None:
            yield part, part.default_mode


def _projected(source: ProjectedSource) -> Iterator[Part]:
    for row in source.sources:
        for part in (row.config_map, row.secret, row.downward_api, row.service_account_token):
            if part is not None:
                yield part


def _files_of(pod: Pod, part: Part, resolved: ResolvedReferences, mode: int) -> Iterator[provider.File]:
    if isinstance(part, TokenSource):
        if part not in resolved.tokens:
            raise Missing("TokenMissing", f"Service account {pod.spec.service_account_name} has no token yet.")
        yield provider.File(part.path, resolved.tokens[part].encode(), mode)
    elif isinstance(part, DownwardSource):
        for item in part.items:
            yield provider.File(item.path, _downward(pod, item, resolved).encode(), item.mode or mode)
    elif isinstance(part, SecretSource):
        name = part.secret_name or part.name
        yield from _selected(part, resolved.secrets.get(name), mode, (SECRET, name))
    else:
        yield from _selected(part, resolved.config_maps.get(part.name), mode, (CONFIG_MAP, part.name))


def _downward(pod: Pod, item: DownwardItem, resolved: ResolvedReferences) -> str:
    if item.field_ref:
        return container_env.field(pod, item.field_ref.field_path, resolved)
    assert item.resource_field_ref is not None, "the API server requires one of the two"
    return container_env.resource(pod, pod.spec.containers[0], item.resource_field_ref, resolved)


def _selected(
    part: ConfigMapSource | SecretSource, data: Data | None, mode: int, named: tuple[str, str]
) -> Iterator[provider.File]:
    """Yield all keys of an object as files, or the selected keys at their paths."""
    kind, name = named
    if data is None:
        if not part.optional:
            raise Missing(f"Mandatory{kind}NotFound", f"{kind} {name} not found: create it, and the pod starts.")
        return
    for item in part.items or tuple(KeyToPath(key, key) for key in data):
        if item.key in data:
            yield provider.File(item.path, data[item.key], item.mode or mode)
        elif not part.optional:
            raise Missing(
                f"Mandatory{kind}NotFound", f"{kind} {name} has no key {item.key}: add it, and the pod starts."
            )
