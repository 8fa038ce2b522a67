"""Types of what a pod asks of a cloud."""

from __future__ import annotations

import msgspec

from skysail.cloud.account import GpuRequest

# Value of skysail.dev/offload that leaves the choice of the provider to the ranking of offers.
CHEAPEST = "cheapest"


class Warned(msgspec.Struct, frozen=True):
    """A malformed annotation that falls back to a default. The message names annotation, value and default."""

    annotation: str
    message: str


class ContainerOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that container mode replaces in the first container. None leaves the container's own.

    `cpu` is in Modal's physical cores as written. `env` has lower precedence than the container's own variables.
    """

    image: str | None = None
    command: tuple[str, ...] | None = None
    cpu: float | None = None
    memory: int | None = None
    env: tuple[tuple[str, str], ...] = ()


class OffloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod asks of clouds, read from its annotations, labels and containers.

    `provider`: the provider that the pod asks for, `cheapest`, or empty if the pod asks for none.
    `asked_by`: the annotation or label that asks, for messages.
    `is_managed`: the pod belongs to a Job that may be offloaded after a wait (`runpod.io/managed`).
    `gpus`: number and type; the type is a name that users write, empty if any type fits.
    `max_lifetime`: seconds. `max_cost_usd`: cap on the money for this object.
    `options`: further settings of one provider by their annotation's name without its prefix, such as `template-id`.
    `not_honoured`: annotations that are understood and have no effect yet.
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
    not_honoured: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    errors: tuple[str, ...] = ()
