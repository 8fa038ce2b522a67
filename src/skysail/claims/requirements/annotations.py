"""Reads what a pod asks of clouds from annotations, labels and containers. Pure, and total: no input raises.

Malformed numbers that only shape the container fall back to a default, with a warning. Anything malformed, unknown or
contradictory that decides about place, GPU or money is an error, and nothing is launched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from skysail.base.names import Annotation, Label
from skysail.claims.requirements import container_mode, gpu_types
from skysail.claims.requirements.annotation_reader import AnnotationReader, quoted
from skysail.claims.requirements.types import (
    CHEAPEST,
    MODAL,
    PROVIDERS,
    RUNPOD,
    OffloadRequest,
    OwnerLink,
    PodSpecView,
)
from skysail.cloud import web_app
from skysail.cloud.account import GpuRequest

_PREFIXES = ("modal-operator.io/", "modal.com/", "runpod.io/")
_FUNCTION = "function"
_WORKLOADS = ("job", _FUNCTION)
_TIERS = ("SECURE", "COMMUNITY")
_DEFAULT_TIERS = ("SECURE",)
_DEFAULT_GPU_MEMORY = 16
_DEFAULT_TUNNEL_PORT = 8000
_MAX_SECONDS = 999_999_999
_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])/(?:tcp|http)"
_GIGABYTES = r"(?:0|[1-9][0-9]{0,5})"
_MOUNT_PATH = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]{1,64}){1,8}"
_MODAL_VOLUME = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,39}}:{_MOUNT_PATH}(?::ro)?"

# Settings that only one cloud knows: the name of the option, the pattern of the value, and the expected value.
_OPTIONS = {
    Annotation.RUNPOD_TEMPLATE: ("template-id", _ID, "the id of a template"),
    Annotation.RUNPOD_TEMPLATE_ID: ("template-id", _ID, "the id of a template"),
    Annotation.RUNPOD_REGISTRY_AUTH: ("container-registry-auth-id", _ID, "the id of registry credentials"),
    Annotation.MODAL_REGION: ("modal-region", _ID, "a region such as us-east"),
    Annotation.MODAL_APP: (web_app.OPTION, web_app.PATTERN, "a name and numbers, such as web,min=0,max=3"),
    Annotation.MODAL_VOLUMES: (
        "modal-volumes",
        rf"{_MODAL_VOLUME}(?:, ?{_MODAL_VOLUME}){{0,31}}",
        "a list such as data:/data,models:/models:ro",
    ),
    Annotation.RUNPOD_PORTS: ("ports", rf"{_PORT}(?:, ?{_PORT}){{0,31}}", "a list such as 8080/tcp,9000/http"),
    Annotation.RUNPOD_CONTAINER_DISK: ("container-disk-gb", _GIGABYTES, "a number of GB"),
    Annotation.RUNPOD_VOLUME: ("volume-gb", _GIGABYTES, "a number of GB"),
    Annotation.RUNPOD_VOLUME_PATH: ("volume-mount-path", _MOUNT_PATH, "an absolute path"),
    Annotation.RUNPOD_NETWORK_VOLUME: ("network-volume-id", _ID, "the id of a network volume"),
}
# Annotations that Skysail writes. They are never read: tenants could forge them.
_WRITTEN = frozenset(
    {
        Annotation.DEADLINE,
        Annotation.MODAL_TUNNEL_URL,
        Annotation.MODAL_LOG_URL,
        Annotation.MODAL_APP_ID,
        Annotation.MODAL_FUNCTION_ID,
        Annotation.MODAL_FUNCTION_URL,
        Annotation.RUNPOD_POD_ID,
        Annotation.RUNPOD_OFFLOADED,
        Annotation.RUNPOD_COST,
    }
)
# Annotations that ask for a cloud, in the order in which messages name them.
_ASKING = (
    Annotation.OFFLOAD,
    Annotation.MODAL_USE,
    Annotation.MODAL_OFFLOAD,
    Annotation.MODAL_ENABLED,
    Annotation.MODAL_WORKLOAD_TYPE,
    Annotation.RUNPOD_OFFLOAD,
)
_GPU = (Annotation.MODAL_GPU, Annotation.MODAL_GPU_TYPE)
# Labels that mean the same as the annotation with this name.
_LABELS = (Label.MODAL_WORKLOAD_TYPE, Label.RUNPOD_OFFLOAD, Label.RUNPOD_MANAGED)
_READ = frozenset(
    {
        *_ASKING,
        *_GPU,
        *container_mode.FIELDS,
        *_OPTIONS,
        Annotation.MAX_COST,
        Annotation.MODAL_TIMEOUT,
        Annotation.MODAL_RETRIES,
        Annotation.MODAL_REPLICAS,
        Annotation.MODAL_I6PN,
        Annotation.MODAL_HANDLER,
        Annotation.MODAL_TUNNEL,
        Annotation.MODAL_TUNNEL_PORT,
        Annotation.RUNPOD_MANAGED,
        Annotation.RUNPOD_GPU_MEMORY,
        Annotation.RUNPOD_MAX_PRICE,
        Annotation.RUNPOD_CLOUD_TYPE,
        Annotation.RUNPOD_DATACENTERS,
        Annotation.RUNPOD_CUDA,
        Annotation.RUNPOD_INTERRUPTIBLE,
    }
)

# Annotations of a model that its servers get. The others describe a program, which the model's runtime decides.
_OF_SERVERS = _READ - {
    *container_mode.FIELDS,
    Annotation.MODAL_APP,
    Annotation.MODAL_HANDLER,
    Annotation.MODAL_I6PN,
    Annotation.MODAL_REPLICAS,
    Annotation.MODAL_RETRIES,
    Annotation.MODAL_TUNNEL,
    Annotation.MODAL_TUNNEL_PORT,
    Annotation.MODAL_USE,
    Annotation.MODAL_WORKLOAD_TYPE,
    Annotation.RUNPOD_MANAGED,
}


def parse(
    metadata_annotations: Mapping[str, str],
    labels: Mapping[str, str],
    spec: PodSpecView,
    *,
    providers: Collection[str] = PROVIDERS,
) -> OffloadRequest:
    """Return what the pod asks of clouds. `providers` are the names that `skysail.dev/offload` may have."""
    reader = AnnotationReader(metadata_annotations, labels)
    provider, asked_by = _provider(reader, providers)
    gpus = gpu_types.read(reader, spec)
    overrides = container_mode.read(reader)
    tiers = reader.items(Annotation.RUNPOD_CLOUD_TYPE, "(?i:SECURE|COMMUNITY)", f"tiers ({', '.join(_TIERS)})")
    regions = reader.items(Annotation.RUNPOD_DATACENTERS, _ID, "data center ids such as EU-RO-1")
    cuda_versions = reader.items(Annotation.RUNPOD_CUDA, r"[0-9]{1,2}\.[0-9]{1,2}", "CUDA versions such as 12.4")
    return OffloadRequest(
        provider=provider,
        asked_by=asked_by,
        is_managed=reader.is_true(Annotation.RUNPOD_MANAGED, or_label=True),
        gpus=gpus,
        gpu_memory=_gpu_memory(reader, gpus),
        regions=regions,
        cloud_types=tuple(dict.fromkeys(tier.upper() for tier in tiers)) or _DEFAULT_TIERS,
        cuda_versions=cuda_versions,
        max_usd_per_hour=_max_price(reader, gpus),
        max_cost_usd=reader.dollars(Annotation.MAX_COST),
        max_lifetime=_max_lifetime(reader, is_container_mode=overrides is not None),
        retries=reader.integer(Annotation.MODAL_RETRIES, default=0, least=0, most=1000) or 0,
        overrides=overrides,
        options=_options(reader, {"datacenter-ids": regions, "allowed-cuda-versions": cuda_versions}),
        tunnel_port=_tunnel_port(reader),
        replicas=_replicas(reader),
        not_honoured=tuple(_not_honoured(reader)),
        unknown=tuple(name for name in reader.names if _is_unknown(name)),
        warnings=tuple(reader.warnings),
        errors=tuple(reader.errors),
    )


def tunnel_port(metadata_annotations: Mapping[str, str], labels: Mapping[str, str]) -> int | None:
    """Return the port that the pod's tunnel leads to, or None if the pod asks for no tunnel."""
    return _tunnel_port(AnnotationReader(metadata_annotations, labels))


def of_servers(metadata_annotations: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations with which servers of a model ask for a cloud, empty if the model asks for none."""
    link = OwnerLink(kind="", name="", annotations=metadata_annotations, labels=labels)
    found = {name: value for name, value in sorted(inherit((link,)).items()) if name in _OF_SERVERS}
    # A provider that does not exist is a request, too: it is an error, and not the same as none.
    return found if Annotation.OFFLOAD in found or parse(found, {}, PodSpecView()).provider else {}


def inherit(chain: Sequence[OwnerLink]) -> dict[str, str]:
    """Return the annotations that a pod inherits from its owners, nearest first. The nearest owner wins.

    Annotations that choose the cloud belong together, and so do those that choose the GPU: if an owner has one of
    them, those of farther owners do not count. Labels that mean the same as an annotation count as annotations. The
    pod itself may be the first link.
    """
    found: dict[str, str] = {}
    for link in chain:
        taken = {name for group in (_ASKING, _GPU) if any(name in found for name in group) for name in group}
        for name, value in _inheritable(link):
            if name not in found and name not in taken:
                found[name] = value
    return found


def _inheritable(link: OwnerLink) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in link.annotations.items() if _is_read(name))
    yield from ((name.value, link.labels[name]) for name in _LABELS if name in link.labels)


def _provider(reader: AnnotationReader, providers: Collection[str]) -> tuple[str, str]:
    """Return the provider and the annotation that asks for it. Two providers are an error."""
    asks = list(_asks(reader, providers))
    if not asks:
        return "", ""
    provider, name = asks[0]
    for other, by in asks[1:]:
        if other != provider:
            reader.fail(by, f"asks for {other}, and {name} asks for {provider}. Remove one of them.")
    return provider, name


def _asks(reader: AnnotationReader, providers: Collection[str]) -> Iterator[tuple[str, str]]:
    written = reader.text(Annotation.OFFLOAD)
    names = ", ".join((*sorted(providers), CHEAPEST))
    if written == "":
        reader.fail(Annotation.OFFLOAD, f"the value is empty. Write one of {names}, or remove the annotation.")
    elif written is not None and written not in {CHEAPEST, *providers}:
        reader.fail(Annotation.OFFLOAD, f"{quoted(written)} is no provider. Use one of {names}.")
    elif written is not None:
        yield written, Annotation.OFFLOAD
    for name in (Annotation.MODAL_USE, Annotation.MODAL_OFFLOAD, Annotation.MODAL_ENABLED):
        if reader.is_true(name):
            yield MODAL, name
    workload = reader.text_or_label(Annotation.MODAL_WORKLOAD_TYPE)
    if workload in _WORKLOADS:
        yield MODAL, Annotation.MODAL_WORKLOAD_TYPE
    elif workload:
        reader.warn(Annotation.MODAL_WORKLOAD_TYPE, f"{quoted(workload)} is neither job nor function and is ignored.")
    if reader.is_true(Annotation.RUNPOD_OFFLOAD, or_label=True):
        yield RUNPOD, Annotation.RUNPOD_OFFLOAD


def _gpu_memory(reader: AnnotationReader, gpus: GpuRequest | None) -> int:
    """Return the least GiB of each GPU. The default holds for pods that leave the type to the ranking."""
    written = reader.integer(Annotation.RUNPOD_GPU_MEMORY, default=_DEFAULT_GPU_MEMORY, least=1, most=4096)
    if gpus is None:
        return 0
    return written or (0 if gpus.type else _DEFAULT_GPU_MEMORY)


def _max_price(reader: AnnotationReader, gpus: GpuRequest | None) -> float | None:
    """Return the cap on the price of all GPUs. The annotation is about one GPU."""
    price = reader.dollars(Annotation.RUNPOD_MAX_PRICE)
    return None if price is None else round(price * (gpus.count if gpus else 1), 6)


def _max_lifetime(reader: AnnotationReader, *, is_container_mode: bool) -> float | None:
    default = container_mode.DEFAULT_TIMEOUT
    seconds = reader.integer(Annotation.MODAL_TIMEOUT, default=default, least=1, most=_MAX_SECONDS)
    if seconds is None:
        return float(default) if is_container_mode else None
    return float(seconds)


def _options(reader: AnnotationReader, lists: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, str], ...]:
    """Return the settings that only RunPod knows. `lists` also choose the offers."""
    found: dict[str, str] = {}
    for name, (option, pattern, expected) in _OPTIONS.items():
        value = reader.matching(name, pattern, expected)
        if value is not None and found.setdefault(option, value) != value:
            reader.fail(name, f"{quoted(value)} contradicts {quoted(found[option])} of {option}. Remove one of them.")
    for option, items in lists.items():
        if items:
            found[option] = ",".join(items)
    return tuple(sorted(found.items()))


def _tunnel_port(reader: AnnotationReader) -> int | None:
    """Return the port of the tunnel. A function runs as a server, so it always has one."""
    port = reader.integer(Annotation.MODAL_TUNNEL_PORT, default=_DEFAULT_TUNNEL_PORT, least=1, most=65535)
    is_function = reader.text_or_label(Annotation.MODAL_WORKLOAD_TYPE) == _FUNCTION
    if reader.is_true(Annotation.MODAL_TUNNEL) or is_function:
        return port or _DEFAULT_TUNNEL_PORT
    if port is not None:
        reader.warn(Annotation.MODAL_TUNNEL_PORT, f"has no effect without {Annotation.MODAL_TUNNEL}: true.")
    return None


def _replicas(reader: AnnotationReader) -> int:
    """Return how many containers run together. More than one need a private network."""
    count = reader.integer(Annotation.MODAL_REPLICAS, default=1, least=1, most=10_000) or 1
    if count > 1 and not reader.is_true(Annotation.MODAL_I6PN):
        reader.fail(
            Annotation.MODAL_REPLICAS,
            f"{count} replicas need a private network. Set {Annotation.MODAL_I6PN} to true, or replicas to 1.",
        )
    return count


def _not_honoured(reader: AnnotationReader) -> Iterator[str]:
    """Yield annotations that would change the pod and have no effect yet."""
    if reader.is_true(Annotation.RUNPOD_INTERRUPTIBLE):
        yield Annotation.RUNPOD_INTERRUPTIBLE
    if reader.text(Annotation.MODAL_HANDLER):
        yield Annotation.MODAL_HANDLER


def _is_unknown(name: str) -> bool:
    return name.startswith(_PREFIXES) and not _is_read(name) and name not in _WRITTEN


def _is_read(name: str) -> bool:
    return name in _READ or name.startswith(Annotation.MODAL_ENV)
