"""Arguments of a sandbox, from a launch spec. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

import msgspec

from skysail.cloud.account import LaunchSpec, Timings
from skysail.cloud.errors import Rejected, Unsupported
from skysail.cloud.modal import files, identity
from skysail.cloud.modal.prices import REGION, PriceTable, cores, memory_mib
from skysail.cloud.provider import CloudVolume

# Options of a launch spec that Modal knows.
VOLUMES = "modal-volumes"
# Set in every sandbox, so that its program can be found among its processes.
CLAIM_VARIABLE = "SKYSAIL_CLAIM"

_MAX_ARGV_BYTES = 65_536
_VOLUME = re.compile(r"([A-Za-z0-9._-]{1,64}):(/[^:,]{1,255})(:ro)?")


class VolumeMount(msgspec.Struct, frozen=True):
    """A Modal Volume by its name, mounted at a path. A shared one is the same in all namespaces."""

    name: str
    path: str
    is_read_only: bool = False
    is_shared: bool = False


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of launches. `capacity_timeout`: seconds that a launch waits for GPUs."""

    prices: PriceTable
    timings: Timings
    capacity_timeout: float
    shared_volumes: tuple[str, ...] = ()


class SandboxArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of `modal.Sandbox.create`. `gpu` is empty without GPUs.

    `cores` (physical ones) and `memory_mib` are the request and the upper bound.
    """

    app: str
    name: str
    tags: dict[str, str]
    argv: tuple[str, ...]
    env: dict[str, str]
    image: str
    workdir: str
    gpu: str
    cores: tuple[float, float]
    memory_mib: tuple[int, int]
    timeout: int
    region: str
    volumes: tuple[VolumeMount, ...]
    has_tty: bool
    usd_per_hour: float


def sandbox_arguments(
    spec: LaunchSpec,
    prices: PriceTable,
    timings: Timings,
    *,
    now: float,
    shared_volumes: Collection[str] = (),
) -> SandboxArguments:
    """Return the arguments. Raises Rejected or Unsupported if Modal cannot run the launch spec."""
    container, size = spec.container, spec.container.machine_size
    check(spec, timings)
    if spec.size > 1:
        raise Unsupported(f"A sandbox of Modal is one container, not {spec.size}.")
    place = region(spec)
    usd_per_hour = prices.usd_per_hour(spec.gpus, size, place)
    check_price(spec, usd_per_hour)
    unpacked = files.unpacking(spec, (*container.command, *container.args))
    check_argv(unpacked.argv)
    return SandboxArguments(
        app=identity.app_name(spec.cluster, spec.pod.namespace),
        name=identity.sandbox_name(spec.claim),
        tags=identity.encode_tags(spec, created=now, usd_per_hour=usd_per_hour, region=place),
        argv=unpacked.argv,
        env={**dict(container.env), **dict(unpacked.env), CLAIM_VARIABLE: spec.claim},
        image=container.image,
        workdir=container.working_dir,
        gpu=gpu(spec, prices),
        cores=cores(size),
        memory_mib=memory_mib(size),
        timeout=max(1, math.ceil(spec.max_lifetime)),
        region=place,
        volumes=volume_mounts(spec, shared_volumes),
        has_tty=container.tty,
        usd_per_hour=usd_per_hour,
    )


def region(spec: LaunchSpec) -> str:
    """Return the region of the offer or of the options, empty if Modal chooses."""
    return spec.region or dict(spec.options).get(REGION, "")


def volume_mounts(spec: LaunchSpec, shared: Collection[str]) -> tuple[VolumeMount, ...]:
    """Return the Modal Volumes of the option `name:/path` or `name:/path:ro`, and of the pod. Raises Rejected."""
    found = []
    for part in filter(None, (part.strip() for part in dict(spec.options).get(VOLUMES, "").split(","))):
        match = _VOLUME.fullmatch(part)
        if match is None:
            raise Rejected("InvalidVolume", f"{part!r} is no Modal Volume: write name:/path or name:/path:ro.")
        name = identity.volume_name(spec.cluster, spec.pod.namespace, match[1], shared)
        found.append(VolumeMount(name, match[2], match[3] is not None, is_shared=match[1] in shared))
    return (*found, *_cloud_volumes(spec))


def _cloud_volumes(spec: LaunchSpec) -> Iterator[VolumeMount]:
    """Yield the Modal Volumes for the pod's volumes of the cloud, such as checkpoints."""
    ids = {volume.name: volume.source.id for volume in spec.pod.volumes if isinstance(volume.source, CloudVolume)}
    for mount in spec.container.mounts:
        if mount.volume in ids:
            name = identity.volume_name(spec.cluster, spec.pod.namespace, ids[mount.volume], ())
            yield VolumeMount(name, mount.path, mount.read_only)


def check(spec: LaunchSpec, timings: Timings) -> None:
    """Check what a sandbox and a gang have in common. Raises Rejected."""
    if not 0 < spec.max_lifetime <= timings.max_lifetime:
        raise Rejected(
            "InvalidDeadline",
            f"The lifetime of {spec.max_lifetime:g} s is not between 0 and {timings.max_lifetime:g} s, Modal's limit: "
            "set activeDeadlineSeconds.",
        )
    if spec.cloud_type:
        raise Rejected("UnknownCloudType", f"Modal has no tier {spec.cloud_type}: leave it empty.")
    if spec.pod.uses_host_network:
        raise Rejected("UnsupportedNetwork", "Modal has no hostNetwork: remove the field.")
    if not spec.container.command:
        raise Rejected("EntrypointUnknown", "Modal needs a command line: set `command` of the container.")


def gpu(spec: LaunchSpec, prices: PriceTable) -> str:
    """Return the GPUs of one container as Modal writes them, empty without GPUs. Raises Rejected."""
    if spec.gpus is None:
        return ""
    row, count = prices.gpu(spec.gpus.type), spec.gpus.count
    if count > row.max_count:
        raise Rejected("TooManyGpus", f"Modal has at most {row.max_count} {row.type} in a container, not {count}.")
    exact = {"H100!", "B200+"} & {spec.gpus.type.upper()}
    return f"{next(iter(exact), row.type)}:{count}"


def check_price(spec: LaunchSpec, usd_per_hour: float) -> None:
    """Reject an instance above the cap before it is created."""
    cap = spec.max_usd_per_hour
    if cap is not None and usd_per_hour > cap + 1e-6:
        raise Rejected(
            "PriceAboveCap",
            f"The instance costs {usd_per_hour:g} USD/h with its CPU and memory, above the cap of {cap:g}: set "
            "lower limits of the container or raise the cap.",
        )


def check_argv(argv: tuple[str, ...]) -> None:
    size = sum(len(word.encode()) for word in argv)
    if size > _MAX_ARGV_BYTES:
        raise Rejected("CommandTooLong", f"The command line has {size} bytes, and Modal takes {_MAX_ARGV_BYTES}.")
