"""From a pod as Kubernetes describes it to what a provider runs. Pure: what is referred to comes in as facts.

What a provider cannot carry is not looked at here: `burden` has told it before anything is started.
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
# The volume by which the API server gives every pod its service account's token.
_LOGIN = "kube-api-access-"


class Reference(msgspec.Struct, frozen=True):
    """A ConfigMap or Secret that a pod names."""

    kind: str
    name: str
    optional: bool


class RequiredRefs(msgspec.Struct, frozen=True):
    """What must be looked up before a pod can be translated."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    claims: frozenset[str]
    tokens: frozenset[TokenSource]


def needs(pod: Pod) -> RequiredRefs:
    named = list(references(pod))
    return RequiredRefs(
        config_maps=frozenset(reference.name for reference in named if reference.kind == CONFIG_MAP),
        secrets=frozenset(reference.name for reference in named if reference.kind == SECRET),
        claims=frozenset(v.persistent_volume_claim.claim_name for v in pod.spec.volumes if v.persistent_volume_claim),
        tokens=frozenset(part for part in _parts(pod.spec.volumes) if isinstance(part, TokenSource)),
    )


def references(pod: Pod) -> Iterator[Reference]:
    """Every ConfigMap and Secret that the pod names, once for each place that names it."""
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
    """Optional references to what does not exist: the pod runs without them, and its owner should know."""
    stores = {CONFIG_MAP: resolved.config_maps, SECRET: resolved.secrets}
    absent = (row for row in references(pod) if row.optional and row.name not in stores[row.kind])
    return sorted(set(absent), key=lambda row: (row.kind, row.name))


def all_containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def without_service_account(pod: Pod) -> Pod:
    """Without the login at the cluster that nearly every pod is given: it stays in the cluster."""
    names = {volume.name for volume in pod.spec.volumes if volume.name.startswith(_LOGIN)}
    if not names:
        return pod
    lighter = replace(
        pod.spec,
        volumes=tuple(volume for volume in pod.spec.volumes if volume.name not in names),
        containers=tuple(_without(container, names) for container in pod.spec.containers),
        init_containers=tuple(_without(container, names) for container in pod.spec.init_containers),
    )
    return replace(pod, spec=lighter)


def _without(container: Container, volumes: set[str]) -> Container:
    mounts = tuple(mount for mount in container.volume_mounts if mount.name not in volumes)
    return replace(container, volume_mounts=mounts)


def sandbox(pod: Pod, resolved: ResolvedReferences) -> provider.Pod:
    """The pod without its containers. Raises `Missing`."""
    return provider.Pod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        hostname=field_values.host_name("spec.hostname", pod.hostname),
        subdomain=field_values.host_name("spec.subdomain", pod.spec.subdomain),
        volumes=tuple(provider.Volume(volume.name, _carried(pod, volume, resolved)) for volume in pod.spec.volumes),
        hosts=tuple(_hosts(pod)),
        uses_host_network=pod.spec.host_network,
        fs_group=pod.spec.security_context.fs_group,
        keeps_matching_groups=pod.spec.security_context.fs_group_change_policy == "OnRootMismatch",
        groups=frozenset(pod.spec.security_context.supplemental_groups),
        ephemeral_storage=_ephemeral_storage(pod),
    )


def container(pod: Pod, source: Container, resolved: ResolvedReferences) -> provider.Container:
    """One container with everything resolved. Raises `Missing`, and InvalidField with the path of the field."""
    path, budget = field_values.container_path(pod, source), Budget()
    env = container_env.resolve(pod, source, resolved, budget)
    _check_commands(path, source)
    return provider.Container(
        name=source.name,
        image=field_values.image(f"{path}.image", source.image),
        command=_words(f"{path}.command", source.command, env, budget),
        args=_words(f"{path}.args", source.args, env, budget),
        env=tuple(env.items()),
        working_dir=_inside(f"{path}.workingDir", source.working_dir),
        mounts=tuple(
            _mount(f"{path}.volumeMounts[{index}]", mount, env) for index, mount in enumerate(source.volume_mounts)
        ),
        limits=_limits(source),
        stdin=source.stdin,
        stdin_once=source.stdin_once,
        tty=source.tty,
        rights=_rights(pod, source),
        message_path=_inside(f"{path}.terminationMessagePath", source.termination_message_path),
    )


def _words(path: str, words: Iterable[str], env: Mapping[str, str], budget: Budget) -> tuple[str, ...]:
    found = []
    for index, word in enumerate(words):
        where = f"{path}[{index}]"
        found.append(field_values.argument(where, field_values.expand(where, word, env), budget))
    return tuple(found)


def _inside(path: str, text: str) -> str:
    """Return the path from the container's root; nothing where none is named."""
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
    """Raise InvalidField for a command of a probe or hook that cannot be executed: it runs beside the container."""
    actions: dict[str, Probe | Handler | None] = {
        "startupProbe": source.startup_probe,
        "readinessProbe": source.readiness_probe,
        "livenessProbe": source.liveness_probe,
        "lifecycle.postStart": source.lifecycle.post_start,
        "lifecycle.preStop": source.lifecycle.pre_stop,
    }
    for name, action in actions.items():
        budget = Budget()
        for index, word in enumerate(action.exec.command if action and action.exec else ()):
            field_values.argument(f"{path}.{name}.exec.command[{index}]", word, budget)


def _hosts(pod: Pod) -> Iterator[tuple[str, tuple[str, ...]]]:
    for index, alias in enumerate(pod.spec.host_aliases):
        path = f"spec.hostAliases[{index}]"
        names = tuple(field_values.host_name(f"{path}.hostnames", name) for name in alias.hostnames)
        yield field_values.host_name(f"{path}.ip", alias.ip), names


def files(pod: Pod, volume: Volume, resolved: ResolvedReferences) -> tuple[provider.File, ...]:
    """The content of a volume that is made of Kubernetes objects. Raises `Missing`."""
    files = tuple(file for part, mode in _with_modes(volume) for file in _files_of(pod, part, resolved, mode))
    for file in files:
        field_values.relative_path(f"spec.volumes ({volume.name})", file.path)
    return files


def _rights(pod: Pod, source: Container) -> provider.SecurityContext:
    """What a container says of itself comes before what its pod says for all. Raises `Missing` where both cannot be."""
    own, shared = source.security_context, pod.spec.security_context
    user = shared.run_as_user if own.run_as_user is None else own.run_as_user
    profile = own.seccomp_profile or shared.seccomp_profile
    non_root = shared.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
    if non_root and user == 0:
        raise Missing(
            "RunAsNonRoot",
            f"Container {source.name} must not run as root (runAsNonRoot) and asks for it (runAsUser: 0). "
            "Name another user, or drop runAsNonRoot.",
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


def _storage_limit(source: Container) -> int | None:
    limit = source.resources.limits.get(_STORAGE)
    return None if limit is None else int(quantities.parse(limit))


def _ephemeral_storage(pod: Pod) -> int | None:
    """Return the pod's own limit as Kubernetes counts it: init containers run before the others, sidecars beside."""
    if not any(_STORAGE in container.resources.limits for container in all_containers(pod)):
        return None
    first = [c for c in pod.spec.init_containers if c.restart_policy != "Always"]
    sidecars = sum(_storage_limit(c) or 0 for c in pod.spec.init_containers if c not in first)
    together = sum(_storage_limit(c) or 0 for c in pod.spec.containers)
    return sidecars + max(together, *(_storage_limit(c) or 0 for c in first), 0)


def _carried(
    pod: Pod, volume: Volume, resolved: ResolvedReferences
) -> provider.EmptyDir | provider.ProjectedFiles | provider.HostPath | provider.PersistentDisk:
    if volume.empty_dir is not None:
        limit = volume.empty_dir.size_limit
        size = None if limit is None else int(quantities.parse(limit))
        return provider.EmptyDir(in_memory=volume.empty_dir.medium == "Memory", size_limit=size)
    if volume.host_path is not None:
        path = field_values.host_path(f"spec.volumes ({volume.name}).hostPath.path", volume.host_path.path)
        return provider.HostPath(path, create=volume.host_path.type.endswith("OrCreate"))
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim
        if claim.claim_name not in resolved.disks:
            raise Missing("ClaimNotBound", f"PersistentVolumeClaim {claim.claim_name} is not bound yet.")
        return provider.PersistentDisk(resolved.disks[claim.claim_name], read_only=claim.read_only)
    return provider.ProjectedFiles(files(pod, volume, resolved))


Part = ConfigMapSource | SecretSource | DownwardSource | TokenSource


def _parts(volumes: Iterable[Volume]) -> Iterator[Part]:
    for volume in volumes:
        yield from (part for part, _ in _with_modes(volume))


def _with_modes(volume: Volume) -> Iterator[tuple[Part, int]]:
    """The parts of a volume that come from Kubernetes, each with the mode that its files have by default."""
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
            raise Missing("TokenMissing", f"There is no token for the service account {pod.spec.service_account_name}.")
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
    assert item.resource_field_ref is not None, "the API server lets one of the two pass"
    return container_env.resource(pod, pod.spec.containers[0], item.resource_field_ref, resolved)


def _selected(
    part: ConfigMapSource | SecretSource, data: Data | None, mode: int, named: tuple[str, str]
) -> Iterator[provider.File]:
    """All keys of an object as files, or those that are named, at the paths that are named."""
    kind, name = named
    if data is None:
        if not part.optional:
            raise Missing(f"Mandatory{kind}NotFound", f"{kind} {name} does not exist. Create it, and the pod starts.")
        return
    for item in part.items or tuple(KeyToPath(key, key) for key in data):
        if item.key in data:
            yield provider.File(item.path, data[item.key], item.mode or mode)
        elif not part.optional:
            raise Missing(
                f"Mandatory{kind}NotFound", f"{kind} {name} has no key {item.key}. Add it, and the pod starts."
            )
