"""Builds the spec of a claim: the candidates among the offers of its cloud, and the limits of its launch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from skysail.base.names import Finalizer, Label, Reason
from skysail.claims.requirements import account_objects, candidates
from skysail.claims.requirements.candidates import Selection
from skysail.claims.requirements.cloud_requirements import CloudRequirements, OfferLimits
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceSpec, Gpu, MemberPod, OwnerRef
from skysail.cloud import web_app
from skysail.cloud.account import CloudAccount, GpuRequest
from skysail.cloud.errors import Rejected
from skysail.cloud.machine_prices import MachineRequest, price_offers
from skysail.cloud.offers import OfferList, OfferQuery
from skysail.core.actions import Manifest
from skysail.kube.api.objects import IndexKey
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import FIELD_MANAGER

# GPU type in a claim if the cloud chooses the type.
ANY_GPU = "any"
_MAX_IMAGE_LENGTH = 1024


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that shall be written. `member_pods` are the ranks of a gang, empty for a single pod."""

    owner: OwnerRef
    launch: int
    requirements: CloudRequirements
    member_pods: tuple[MemberPod, ...] = ()
    ends_together: bool = False

    @property
    def size(self) -> int:
        return len(self.member_pods) or self.requirements.replicas


# Whether another provider has an offer that fits a pod of this namespace.
HasOffer = Callable[[str, str, CloudRequirements], bool]


class ClaimSpecs:
    """Builds specs for one cloud. `limits` are those of a namespace, `offers` those of the cloud, None if unknown."""

    def __init__(self, account: CloudAccount, claims: Cache[CloudInstance]) -> None:
        self._account = account
        self._claims = claims
        self.limits: Callable[[str], OfferLimits] = lambda _: OfferLimits()
        self.has_offer: HasOffer = lambda _provider, _namespace, _requirements: True
        self.offers: Callable[[], Awaitable[OfferList | None]] = account.offers

    async def build(self, request: ClaimRequest) -> CloudInstanceSpec:
        """Return the spec. Raises `Rejected` with the reason if no offer fits, or if the offers are unknown."""
        requirements, size = request.requirements, request.size
        if self._account.features.web_apps:
            # The cloud may run all containers of an App at once.
            size *= web_app.container_count(requirements.options)
        limits = self.limits(request.owner.namespace)
        may_leave = self._may_leave(request.owner.namespace, requirements, limits)
        selection = await self._select(requirements, limits, may_leave=may_leave)
        terms = self._account.terms
        lifetime = min(requirements.seconds or terms.max_lifetime, limits.max_lifetime or terms.max_lifetime)
        return CloudInstanceSpec(
            provider=self._account.name,
            account=self._account.account,
            owner=request.owner,
            launch=request.launch,
            members=size,
            instances=request.size,
            member_pods=request.member_pods,
            ends_together=request.ends_together,
            gpu=Gpu(requirements.gpus.type or ANY_GPU, requirements.gpus.count) if requirements.gpus else None,
            candidates=tuple(
                msgspec.structs.replace(candidate, usd_per_hour=round(candidate.usd_per_hour * size, 6))
                for candidate in selection.candidates
            ),
            nearest_miss=selection.nearest_miss or selection.message,
            may_leave=may_leave,
            max_usd_per_hour=_cap(requirements, limits, size),
            max_cost_usd=requirements.max_cost_usd,
            max_cost_uid=requirements.max_cost_uid,
            max_lifetime_seconds=max(1, int(min(lifetime, terms.max_lifetime))),
            image=requirements.image[:_MAX_IMAGE_LENGTH],
            uses_secrets=requirements.uses_secrets,
            is_automatic=requirements.is_automatic,
            account_objects=account_objects.named(self._account.name, requirements.options),
            grace_seconds=int(requirements.grace),
        )

    def _may_leave(self, namespace: str, requirements: CloudRequirements, limits: OfferLimits) -> bool:
        """Return whether another provider is left that fits, and had capacity for all other pods of the controller.

        Without that check, the pods of a controller would end and be replaced without an end.
        """
        if not requirements.may_leave:
            return False
        ended = self._claims.by("exhausted", IndexKey(namespace, requirements.controller))
        others = limits.alternatives - {claim.spec.provider for claim in ended}
        return any(self.has_offer(provider, namespace, requirements) for provider in sorted(others))

    async def _select(self, requirements: CloudRequirements, limits: OfferLimits, *, may_leave: bool) -> Selection:
        """Rank the offers of this cloud. A pod that may leave gets a claim that ends if no offer fits."""
        name = self._account.name
        listed = await self.offers()
        if listed is None:
            raise Rejected(Reason.CLOUD_UNREACHABLE, f"{name} does not list its offers; retried.")
        selection = select(name, listed, requirements, limits)
        if not selection.candidates and not may_leave:
            raise Rejected(selection.reason, selection.message)
        return selection


def select(provider: str, listed: OfferList, requirements: CloudRequirements, limits: OfferLimits) -> Selection:
    """Rank the offers of a provider at the price of the machine that the pod needs. Raises Rejected."""
    priced = price_offers(listed, _machine(requirements))
    return candidates.select(provider, priced, _query(requirements, limits))


def manifest(name: str, spec: CloudInstanceSpec) -> Manifest:
    """Return the claim as it is created."""
    resource = CLOUD_INSTANCE.resource
    metadata = {"name": name, "finalizers": [Finalizer.CLAIM], "labels": {Label.MANAGED_BY: FIELD_MANAGER}}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }


def gpus(spec: CloudInstanceSpec) -> GpuRequest | None:
    """Return the GPUs of each member."""
    gpu = spec.gpu
    return None if gpu is None else GpuRequest("" if gpu.type == ANY_GPU else gpu.type, gpu.count)


def _machine(requirements: CloudRequirements) -> MachineRequest:
    gpus = requirements.gpus
    return MachineRequest(gpu_count=gpus.count if gpus else 0, size=requirements.size, options=requirements.options)


def _query(requirements: CloudRequirements, limits: OfferLimits) -> OfferQuery:
    gpus = requirements.gpus
    return OfferQuery(
        gpu_count=gpus.count if gpus else 0,
        gpu_type=gpus.type if gpus else "",
        gpu_types=limits.gpu_types,
        gpu_memory=requirements.gpu_memory if gpus else 0,
        regions=requirements.regions,
        allowed_regions=limits.regions,
        cloud_types=requirements.cloud_types,
        cuda_versions=requirements.cuda_versions if gpus else (),
        max_usd_per_hour=requirements.max_usd_per_hour,
        max_usd_per_gpu_hour=_gpu_cap(requirements, limits),
    )


def _gpu_cap(requirements: CloudRequirements, limits: OfferLimits) -> float | None:
    """Return the cap on each GPU. Machines without GPUs have none from the settings."""
    caps = [limits.max_usd_per_gpu_hour]
    if requirements.is_cheapest and requirements.gpus:
        caps.append(limits.cheapest_usd_per_gpu_hour)
    return min((cap for cap in caps if cap is not None), default=None)


def _cap(requirements: CloudRequirements, limits: OfferLimits, size: int) -> float | None:
    """Return the cap on all members: the lower one of each pod's cap and the policies' cap on all of its GPUs."""
    count = requirements.gpus.count if requirements.gpus else 1
    per_gpu = _gpu_cap(requirements, limits)
    caps = (requirements.max_usd_per_hour, None if per_gpu is None else per_gpu * count)
    return min((round(cap * size, 6) for cap in caps if cap is not None), default=None)
