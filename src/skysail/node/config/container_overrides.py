"""Container mode on a node that stands for a cloud: annotations replace fields of the first container. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from skysail.claims.requirements.annotations import parse
from skysail.claims.requirements.gpu_types import GPU_RESOURCE
from skysail.claims.requirements.machine_size import CORES_PER_PHYSICAL_CORE
from skysail.claims.requirements.types import OffloadRequest, PodSpecView
from skysail.node.pod_types import Container, Pod


def offload_request(pod: Pod) -> OffloadRequest:
    """Return what the pod asks of clouds."""
    spec = msgspec.convert(pod.spec, PodSpecView, from_attributes=True)
    return parse(pod.metadata.annotations or {}, pod.metadata.labels or {}, spec)


def apply(pod: Pod) -> Pod:
    """Return the pod with the fields that container mode replaces, except variables."""
    request = offload_request(pod)
    if request.overrides is None or not pod.spec.containers:
        return pod
    first, *others = pod.spec.containers
    return replace(pod, spec=replace(pod.spec, containers=(_replaced(first, request), *others)))


def variables(pod: Pod) -> dict[str, str]:
    """Return the variables of container mode. Those of the container have precedence."""
    overrides = offload_request(pod).overrides
    return dict(overrides.env) if overrides else {}


def _replaced(container: Container, request: OffloadRequest) -> Container:
    overrides = request.overrides
    assert overrides is not None, "the caller checked it"
    if overrides.image is not None:
        container = replace(container, image=overrides.image)
    if overrides.command is not None:
        # The annotation is verbatim, and `$(NAME)` in a command would be expanded.
        command = tuple(word.replace("$", "$$") for word in overrides.command)
        container = replace(container, command=command, args=())
    limits: dict[str, str | int] = {}
    if overrides.cpu is not None:
        limits["cpu"] = f"{overrides.cpu * CORES_PER_PHYSICAL_CORE:f}"
    if overrides.memory is not None:
        limits["memory"] = overrides.memory
    if request.gpus is not None:
        limits[GPU_RESOURCE] = request.gpus.count
    return replace(container, resources=replace(container.resources, limits={**container.resources.limits, **limits}))
