"""Requirements of a pod at its cloud, and limits of the policies of its namespace."""

from __future__ import annotations

import msgspec

from skysail.cloud.account import GpuRequest, RegistryCredentials
from skysail.cloud.provider import ResourceLimits


class CloudRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of a pod beyond its containers.

    `work` is the key of the work, which only one instance at a time may do. `job` is the UID of the Job whose pods
    replace each other. `controller` is the UID of the Job or ReplicaSet of the pod. `gpus` and the fields
    from `gpu_memory` to `options` are those of the pod's `OffloadRequest`; `max_usd_per_hour` is a cap on the whole
    machine.
    `max_cost_uid`: UID of the object whose launches share `max_cost_usd`; empty if the pod's Job or the pod does.
    `replicas`: copies of the container that run together behind the pod.
    `size`: CPU and memory that the cloud provides and bills.
    `is_cheapest`: the pod leaves the choice of the provider to the ranking of offers.
    `may_leave`: the pod has a controller that replaces it, and its replacement may go to another provider. Then the
    pod ends if no candidate has capacity, instead of waiting.
    """

    gpus: GpuRequest | None = None
    replicas: int = 1
    size: ResourceLimits = ResourceLimits()
    seconds: float | None = None
    grace: float = 30.0
    work: str = ""
    job: str = ""
    controller: str = ""
    gpu_memory: int = 0
    regions: tuple[str, ...] = ()
    cloud_types: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_cost_usd: float | None = None
    max_cost_uid: str = ""
    options: tuple[tuple[str, str], ...] = ()
    image: str = ""
    uses_secrets: bool = False
    is_automatic: bool = False
    registry_credentials: RegistryCredentials | None = None
    is_cheapest: bool = False
    may_leave: bool = False


class OfferLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that the policies of a namespace set on offers and launches. Empty fields do not restrict.

    `cheapest_usd_per_gpu_hour`: a further cap for pods that ask for the cheapest provider.
    `alternatives`: other providers that the policies allow, and at which there is an account.
    """

    gpu_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    max_usd_per_gpu_hour: float | None = None
    max_lifetime: float | None = None
    cheapest_usd_per_gpu_hour: float | None = None
    alternatives: frozenset[str] = frozenset()
