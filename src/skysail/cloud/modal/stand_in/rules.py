"""Rules of the service for names, tags and sandbox definitions. Each function raises INVALID_ARGUMENT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from modal_proto import api_pb2

from skysail.cloud.modal.stand_in.errors import invalid
from skysail.cloud.modal.stand_in.prices import GPU_PRICES, max_gpus

_NAME = re.compile(r"[a-zA-Z0-9-_.]{1,64}")
_TAG = re.compile(r"[a-zA-Z0-9._-]{1,63}")
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MAX_TIMEOUT = 24 * 3600
_MAX_ARGUMENT_BYTES = 2**16
_MAX_PORT = 65535
# Broad regions, and the beginnings of narrow ones, such as us-east or eu-west-1.
_REGIONS = ("us", "eu", "uk", "ca", "ap", "jp", "me", "sa", "af", "mx")
# Fields that the service honours and the stand-in cannot: a sandbox that sets one of them is refused.
UNKNOWN_FIELDS = (
    "s3_mounts",
    "cloud_bucket_mounts",
    "nfs_mounts",
    "proxy_id",
    "enable_snapshot",
    "idle_timeout_secs",
    "custom_domain",
    "include_oidc_identity_token",
    "experimental_outbound_policy",
    "inbound_cidr_allowlist",
    "mount_ids",
)


def check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise invalid(f"{what} name {name!r} must have 1 to 64 characters of a-z, A-Z, 0-9, '-', '_' and '.'.")


def check_tags(tags: Mapping[str, str]) -> None:
    for text in (*tags.keys(), *tags.values()):
        if not _TAG.fullmatch(text):
            raise invalid(f"Tag {text!r} must have 1 to 63 characters of a-z, A-Z, 0-9, '.', '_' and '-'.")


def check_variables(names: Iterable[str]) -> None:
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise invalid(f"Secret key name {name!r} is invalid for environment variables.")


def check_sandbox(definition: api_pb2.Sandbox, version: int) -> None:
    """Check a definition, except for the objects that it names."""
    if definition.name:
        check_name(definition.name, "Sandbox")
    if not 1 <= definition.timeout_secs <= _MAX_TIMEOUT:
        raise invalid(f"timeout must be from 1 to {_MAX_TIMEOUT} seconds, not {definition.timeout_secs}.")
    if sum(len(argument.encode()) for argument in definition.entrypoint_args) > _MAX_ARGUMENT_BYTES:
        raise invalid(f"Total length of arguments cannot exceed {_MAX_ARGUMENT_BYTES} bytes.")
    if definition.workdir and not definition.workdir.startswith("/"):
        raise invalid(f"workdir must be an absolute path, not {definition.workdir!r}.")
    _check_version(definition, version)
    check_gpu(definition.resources.gpu_config)
    _check_regions(definition.scheduler_placement.regions)
    for port in definition.open_ports.ports:
        if not 1 <= port.port <= _MAX_PORT:
            raise invalid(f"Port {port.port} is out of range.")


def check_gpu(gpu: api_pb2.GPUConfig) -> None:
    if not gpu.gpu_type and not gpu.count:
        return
    kind = gpu.gpu_type.upper()
    if kind not in GPU_PRICES:
        raise invalid(f"Unknown GPU type {gpu.gpu_type!r}: use one of {', '.join(GPU_PRICES)}.")
    if not 1 <= gpu.count <= max_gpus(kind):
        raise invalid(f"{kind} comes in counts from 1 to {max_gpus(kind)}, not {gpu.count}.")


def _check_version(definition: api_pb2.Sandbox, version: int) -> None:
    has_gpu = bool(definition.resources.gpu_config.count)
    if version == 1 and definition.i6pn_enabled:
        raise invalid("i6pn is not supported by V1 Sandboxes.")
    if version != 1 and has_gpu:
        raise invalid("GPUs are not supported by V2 Sandboxes.")


def _check_regions(regions: Iterable[str]) -> None:
    for region in regions:
        if region.partition("-")[0] not in _REGIONS:
            raise invalid(f"Unknown region {region!r}.")
