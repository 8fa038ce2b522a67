"""Translates a launch spec into the request that creates a pod. Pure. Raises Rejected with the fix."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from skysail.base.names import Reason
from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import Rejected, Unsupported
from skysail.cloud.provider import CloudVolume, Container, EmptyDir, File, Mount, Pod, ProjectedFiles
from skysail.cloud.runpod import api, marks
from skysail.cloud.runpod.catalogue import TIERS
from skysail.cloud.runpod.client import Endpoint
from skysail.runtimes.exit_code.script import WrappedFile, WrapperOptions, script

_MAX_VARIABLES = 50
_GIB = 2**30
_DEFAULT_VOLUME_PATH = "/workspace"
_MIN_VOLUME_GB = 10
# Ports that answer HTTP by convention; all others are mapped as TCP.
_HTTP_PORTS = frozenset({80, 443, 3000, 5000, 8000, 8080, 8888, 9000})
# An ended program keeps its pod this long for an operator that is down, and then deletes the pod itself.
HOLD_SECONDS = 900.0
# The same for a program that reached its deadline, after which nothing is to be billed.
_LATE_HOLD_SECONDS = 60.0
_DEFAULT_GRACE = 30.0
# The service replaces these by secrets of the account, which belong to no namespace of the cluster.
_ACCOUNT_SECRET = re.compile(r"\{\{\s*RUNPOD_SECRET_")


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Additions of the account to a launch spec: the machine, the nonce of the call, and registry credentials.

    `data_centers`: those in which the pod may run; empty if all of them are allowed.
    """

    gpu: str = ""
    cpu: api.CpuOrder | None = None
    data_centers: tuple[str, ...] = ()
    nonce: str
    registry: str = ""
    endpoint: Endpoint


def create_body(spec: LaunchSpec, placement: Placement) -> api.CreatePod:
    container, options = spec.container, dict(spec.options)
    return api.CreatePod(
        name=marks.pod_name(spec.cluster, spec.claim),
        image=container.image,
        cloud=spec.cloud_type or TIERS[0],
        gpu=_gpu(spec, placement.gpu, options) if placement.gpu else None,
        cpu=placement.cpu,
        entrypoint=("/bin/sh", "-c"),
        cmd=(_script(spec, placement), "skysail", *container.command, *container.args),
        env=_env(spec, placement.nonce),
        ports=tuple(_ports(container, options)),
        disk=int(options.get("container-disk-gb", "0")),
        mounts=_mounts(options, is_gpu=bool(placement.gpu)),
        data_center_ids=placement.data_centers,
        registry=options.get("container-registry-auth-id") or placement.registry or None,
        template_id=options.get("template-id", ""),
    )


def check(spec: LaunchSpec, max_lifetime: float) -> None:
    """Refuse a launch spec that RunPod cannot run. Raises Rejected or Unsupported."""
    if spec.size > 1:
        raise Unsupported(f"RunPod runs one container per launch, not {spec.size}: use another provider for gangs.")
    if spec.cloud_type and spec.cloud_type not in TIERS:
        raise Rejected("UnknownCloudType", f"RunPod has no tier {spec.cloud_type}: use {' or '.join(TIERS)}.")
    if not 0 < spec.max_lifetime <= max_lifetime:
        raise Rejected(
            "InvalidDeadline",
            f"The lifetime of {spec.max_lifetime:g} s is not between 0 and {max_lifetime:g} s: choose another one.",
        )
    if spec.pod.uses_host_network:
        raise Rejected("UnsupportedNetwork", "RunPod does not support hostNetwork: remove the field.")
    if not spec.container.command and not spec.container.args:
        raise Rejected(Reason.ENTRYPOINT_UNKNOWN, f"Container {spec.container.name} has no command: set `command`.")
    _check_volumes(spec)
    _mounts(dict(spec.options), is_gpu=spec.gpus is not None)
    for name, value in spec.container.env:
        if _ACCOUNT_SECRET.search(value):
            raise Rejected(
                "AccountSecret",
                f"Variable {name} refers to a secret of the RunPod account, which pods may not read: use a Secret.",
            )


def _check_volumes(spec: LaunchSpec) -> None:
    has_network_volume = "network-volume-id" in dict(spec.options)
    for volume in spec.pod.volumes:
        if isinstance(volume.source, CloudVolume) and not has_network_volume:
            raise Rejected(
                "UnsupportedVolume",
                f"Volume {volume.name} needs a network volume at RunPod: set runpod.io/network-volume-id.",
            )
        if not isinstance(volume.source, EmptyDir | ProjectedFiles | CloudVolume):
            raise Rejected(
                "UnsupportedVolume",
                f"Volume {volume.name} is on a machine of the cluster, where RunPod has no access: use an emptyDir, or "
                "the annotation runpod.io/network-volume-id.",
            )


def _gpu(spec: LaunchSpec, id_: str, options: Mapping[str, str]) -> api.GpuOrder:
    count, limits = spec.gpus.count if spec.gpus else 1, spec.container.limits
    return api.GpuOrder(
        id=id_,
        count=count,
        allowed_cuda_versions=_items(options, "allowed-cuda-versions"),
        min_ram_per_gpu=_share(limits.memory, _GIB * count),
        min_vcpu_count_per_gpu=_share(limits.cpu, count),
    )


def _share(amount: float | None, divisor: float) -> int:
    return 0 if not amount else max(1, math.ceil(amount / divisor))


def _script(spec: LaunchSpec, placement: Placement) -> str:
    container, endpoint = spec.container, placement.endpoint
    folders, files = _volumes(spec.pod, container)
    return script(
        WrapperOptions(
            nonce=placement.nonce,
            lifetime=spec.max_lifetime,
            grace=_DEFAULT_GRACE,
            hold=HOLD_SECONDS,
            late_hold=_LATE_HOLD_SECONDS,
            api="" if endpoint.socket else f"{endpoint.base}/v2",
            ca=endpoint.ca,
            working_dir=container.working_dir,
            message_path=container.message_path,
            folders=folders,
            files=files,
            links=tuple(_links(spec)),
        )
    )


def _volumes(pod: Pod, container: Container) -> tuple[tuple[str, ...], tuple[WrappedFile, ...]]:
    """Return the folders and files that the wrapper creates in place of the pod's volumes."""
    sources = {volume.name: volume.source for volume in pod.volumes}
    folders: list[str] = []
    files: list[WrappedFile] = []
    for mount in container.mounts:
        source = sources.get(mount.volume)
        if isinstance(source, ProjectedFiles):
            files += _mounted_files(mount, source.files)
        elif not isinstance(source, CloudVolume):
            folders.append(mount.path)
    return tuple(folders), tuple(files)


def _links(spec: LaunchSpec) -> Iterator[tuple[str, str]]:
    """Yield folder on the network volume and mount path of each volume of the cloud.

    Each has a folder of its own, because several jobs may use one network volume.
    """
    base = dict(spec.options).get("volume-mount-path", _DEFAULT_VOLUME_PATH)
    sources = {volume.name: volume.source for volume in spec.pod.volumes}
    for mount in spec.container.mounts:
        source = sources.get(mount.volume)
        if isinstance(source, CloudVolume):
            yield str(PurePosixPath(base) / source.id / mount.sub_path), mount.path


def _mounted_files(mount: Mount, files: tuple[File, ...]) -> Iterator[WrappedFile]:
    for file in files:
        if not mount.sub_path:
            yield WrappedFile(str(PurePosixPath(mount.path) / file.path), file.content, file.mode)
        elif file.path == mount.sub_path:
            yield WrappedFile(mount.path, file.content, file.mode)
        elif file.path.startswith(f"{mount.sub_path}/"):
            rest = file.path.removeprefix(f"{mount.sub_path}/")
            yield WrappedFile(str(PurePosixPath(mount.path) / rest), file.content, file.mode)


def _env(spec: LaunchSpec, nonce: str) -> dict[str, str]:
    """Return the variables with our marks, which a pod cannot replace."""
    marked = marks.env(marks.Mark(spec.cluster, spec.claim, nonce), spec.max_lifetime)
    env = dict(spec.container.env) | marked
    if len(env) > _MAX_VARIABLES:
        allowed = _MAX_VARIABLES - len(marked)
        raise Rejected(
            "TooManyVariables",
            f"The container has {len(env) - len(marked)} variables, and RunPod takes {allowed}: put some of them into "
            "a ConfigMap, and mount it.",
        )
    return env


def _ports(container: Container, options: Mapping[str, str]) -> Iterator[str]:
    if "ports" in options:
        yield from dict.fromkeys(port.strip() for port in options["ports"].split(","))
        return
    for port in dict.fromkeys(container.ports):
        yield f"{port}/{'http' if port in _HTTP_PORTS else 'tcp'}"


def _mounts(options: Mapping[str, str], *, is_gpu: bool) -> api.Mounts | None:
    size, network = int(options.get("volume-gb", "0")), options.get("network-volume-id", "")
    path = options.get("volume-mount-path", _DEFAULT_VOLUME_PATH)
    if size and network:
        raise Rejected(
            "InvalidMounts", "A RunPod pod has one volume: remove runpod.io/volume-gb or runpod.io/network-volume-id."
        )
    if network:
        return api.Mounts(network=(api.NetworkMount(volume_id=network, path=path),))
    if not size:
        return None
    if not is_gpu:
        raise Rejected("InvalidMounts", "RunPod has no volumes on machines without GPU: remove runpod.io/volume-gb.")
    return api.Mounts(persistent=api.PersistentMount(size=max(size, _MIN_VOLUME_GB), path=path))


def _items(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, options.get(name, "").split(",")))
