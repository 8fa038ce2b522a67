"""Strict validation of requests, as the documented schema and the service's handlers do it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

from skysail.cloud.runpod import api
from skysail.cloud.runpod.stand_in.catalogue import DATA_CENTERS, Catalogue

T = TypeVar("T")

_PORT = re.compile(r"([1-9][0-9]{0,4})/(http|tcp)")
_CUDA = re.compile(r"[0-9]+\.[0-9]+")
_MAX_NAME = 191
_MAX_ENV = 50
_MIN_PERSISTENT_GB = 10
_MAX_PORT = 65535
_MAX_COMMAND = 256
_MAX_WORD = 4096
_MAX_EXEC_SECONDS = 25
_CLOUDS = ("SECURE", "COMMUNITY")


class Refusal(Exception):
    """A refused request: status of the answer, detail, and single validation errors."""

    def __init__(self, status: int, detail: str, errors: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a body. Unknown fields, missing fields and wrong types are refused with 422."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, "request validation failed", (f"$: {error}",)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "invalid JSON body") from error


def check_pod(body: api.CreatePod, catalogue: Catalogue) -> None:
    """Refuse a body of `POST /v2/pods` that breaks a rule. Capacity is checked elsewhere."""
    errors = tuple(_schema_errors(body))
    if errors:
        raise Refusal(422, "request validation failed", errors)
    if (body.gpu is None) == (body.cpu is None):
        raise Refusal(400, "exactly one of gpu or cpu must be set")
    _check_compute(body, catalogue)
    _check_mounts(body)
    unknown = [center for center in body.data_center_ids if center not in DATA_CENTERS]
    if unknown:
        raise Refusal(400, f"unknown data center {unknown[0]}")


def check_exec(command: api.ExecCommand) -> None:
    words = command.command
    if not 1 <= len(words) <= _MAX_COMMAND or any(len(word) > _MAX_WORD or "\0" in word for word in words):
        raise Refusal(422, "request validation failed", ("$.command: must have 1-256 arguments of 4096 characters",))
    if not words[0].strip() or not 1 <= command.timeout_seconds <= _MAX_EXEC_SECONDS:
        raise Refusal(422, "request validation failed", ("$.timeoutSeconds: must be from 1 to 25",))


def _schema_errors(body: api.CreatePod) -> Collection[str]:
    found = []
    if not 1 <= len(body.name) <= _MAX_NAME:
        found.append("$.name: must have 1-191 characters")
    if not body.image and not body.template_id:
        found.append("$: missing property 'image'")
    if body.cloud not in _CLOUDS:
        found.append("$.cloud: value must be one of 'SECURE', 'COMMUNITY'")
    if len(body.env) > _MAX_ENV:
        found.append("$.env: maximum 50 properties")
    found += [f"$.ports: {port!r} is not port/protocol" for port in body.ports if not _is_port(port)]
    if body.disk < 0:
        found.append("$.disk: minimum 1")
    if body.gpu is not None:
        found += [
            f"$.gpu: {version!r} is no version" for version in _versions(body.gpu) if not _CUDA.fullmatch(version)
        ]
    return found


def _check_compute(body: api.CreatePod, catalogue: Catalogue) -> None:
    if body.cpu is not None:
        cpu, count = catalogue.cpus.get(body.cpu.id), body.cpu.vcpu_count
        if cpu is None:
            raise Refusal(400, f"unknown cpu flavor {body.cpu.id}")
        if not 2 <= count <= cpu.max_vcpu or count & (count - 1):  # noqa: PLR2004 (the least of the service)
            raise Refusal(400, f"vcpuCount {count} is not valid for {cpu.id}")
        if body.cloud != "SECURE":
            raise Refusal(400, "cpu pods run on the secure cloud only")
        return
    assert body.gpu is not None, "one of both is set"
    gpu = catalogue.gpus.get(body.gpu.id)
    if gpu is None:
        raise Refusal(400, f"unknown gpu type {body.gpu.id}")
    if body.gpu.allowed_cuda_versions and body.gpu.min_cuda_version:
        raise Refusal(400, "allowedCudaVersions and minCudaVersion are mutually exclusive")
    if body.gpu.count < 1:
        raise Refusal(422, "request validation failed", ("$.gpu.count: minimum 1",))


def _check_mounts(body: api.CreatePod) -> None:
    if body.mounts is None:
        return
    persistent, network = body.mounts.persistent, body.mounts.network
    if persistent and network:
        raise Refusal(400, "mounts.persistent and mounts.network are mutually exclusive")
    if persistent and body.cpu is not None:
        raise Refusal(400, "mounts.persistent is not supported on cpu pods")
    if persistent and persistent.size < _MIN_PERSISTENT_GB:
        raise Refusal(422, "request validation failed", ("$.mounts.persistent.size: minimum 10",))
    if len(network) > 1:
        raise Refusal(422, "request validation failed", ("$.mounts.network: maximum 1 item",))


def _versions(gpu: api.GpuOrder) -> tuple[str, ...]:
    return (*gpu.allowed_cuda_versions, *((gpu.min_cuda_version,) if gpu.min_cuda_version else ()))


def _is_port(text: str) -> bool:
    match = _PORT.fullmatch(text)
    return match is not None and int(match[1]) <= _MAX_PORT
