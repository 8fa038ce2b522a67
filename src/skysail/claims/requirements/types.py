"""Types of what a pod asks of a cloud."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skysail.cloud.account import GpuRequest

# Value of skysail.dev/offload that leaves the choice of the provider to the ranking of offers.
CHEAPEST = "cheapest"
MODAL = "modal"
RUNPOD = "runpod"
PROVIDERS = (MODAL, RUNPOD)


class _View(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a pod spec that is only read. Unknown fields are ignored."""


class ResourcesView(_View, frozen=True):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class ContainerView(_View, frozen=True):
    name: str = ""
    resources: ResourcesView | None = None


class NodeExpression(_View, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_View, frozen=True):
    match_expressions: tuple[NodeExpression, ...] | None = None


class RequiredNodeAffinity(_View, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(_View, frozen=True):
    required_during_scheduling_ignored_during_execution: RequiredNodeAffinity | None = None


class Affinity(_View, frozen=True):
    node_affinity: NodeAffinity | None = None


class PodSpecView(_View, frozen=True):
    """The fields of a pod spec that say which GPUs the pod needs."""

    containers: tuple[ContainerView, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None


class OwnerLink(msgspec.Struct, frozen=True, kw_only=True):
    """One object of an owner chain, such as the Job of a pod."""

    kind: str
    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Warned(msgspec.Struct, frozen=True):
    """An annotation whose value has no effect or falls back to a default. The message names annotation and value."""

    annotation: str
    message: str


class ContainerOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that container mode replaces in the first container. None leaves the container's own.

    `command` replaces command and args, and is verbatim: `$(NAME)` is not expanded.
    `cpu` is in Modal's physical cores as written; a physical core is two of Kubernetes' cores. `memory` is in bytes.
    `env` is verbatim and has lower precedence than the container's own variables.
    """

    image: str | None = None
    command: tuple[str, ...] | None = None
    cpu: float | None = None
    memory: int | None = None
    env: tuple[tuple[str, str], ...] = ()


class OffloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a pod to clouds, read from its annotations, labels and containers.

    `provider`: the provider that the pod asks for, `cheapest`, or empty if the pod asks for none.
    `asked_by`: the annotation or label that asks, for messages.
    `is_managed`: the pod belongs to a Job that may be offloaded after a wait (`runpod.io/managed`).
    `gpus`: number and type; the type is a name that users write, empty if any type fits.
    `gpu_memory`: least GiB of each GPU, 0 without GPUs.
    `max_usd_per_hour`: cap on the price of all GPUs of the pod. `max_cost_usd`: cap on the money for this object.
    `max_lifetime`: seconds; None if the pod sets none.
    `options`: further settings of one provider by their annotation's name without its prefix, such as `template-id`.
    `tunnel_port`: the port that a tunnel leads to; None without a tunnel.
    `replicas`: containers that run together behind the pod, as a gang.
    `not_honoured`: annotations that are understood and have no effect yet. `unknown`: annotations of the clouds'
    prefixes that are not understood.
    `errors`: reasons why nothing may be launched, each a sentence with its fix. `warnings`: values that fell back.
    """

    provider: str = ""
    asked_by: str = ""
    is_managed: bool = False
    gpus: GpuRequest | None = None
    gpu_memory: int = 0
    regions: tuple[str, ...] = ()
    cloud_types: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_cost_usd: float | None = None
    max_lifetime: float | None = None
    retries: int = 0
    overrides: ContainerOverrides | None = None
    options: tuple[tuple[str, str], ...] = ()
    tunnel_port: int | None = None
    replicas: int = 1
    not_honoured: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    errors: tuple[str, ...] = ()
