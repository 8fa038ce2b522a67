"""Chooses the machine of a launch, and provides the objects of the account that the launch refers to.

Everything here happens before a pod is created, so no error means that a pod may exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import NoCapacity, ProviderError, Rejected, Throttled
from skysail.cloud.machine_rates import FlavorRates
from skysail.cloud.offers import Offer, OfferList
from skysail.cloud.runpod import answers, api, catalogue
from skysail.cloud.runpod.client import RunPodClient
from skysail.cloud.runpod.launch import Placement
from skysail.cloud.runpod.registry_store import RegistryStore

# A launch is prepared within this time. A create that starts later could be repeated by its caller.
_PREPARE_SECONDS = 30.0
_RETRY_SECONDS = 10.0
_MAX_NAMES = 12
_VOLUME = "network-volume-id"


class Placer:
    """Places the launches of one account. `now` is in seconds since 1970."""

    def __init__(self, client: RunPodClient, registries: RegistryStore, now: Callable[[], float]) -> None:
        self._client = client
        self._registries = registries
        self._now = now
        self._cpus: tuple[api.CpuType, ...] = ()
        self._volumes: dict[str, api.NetworkVolume] = {}
        self._offers = OfferList((), 0.0)

    async def refresh(self) -> OfferList:
        """Read the catalogue and the network volumes, and return the offers."""
        found: list[Offer] = []
        for tier in catalogue.TIERS:
            found += catalogue.gpu_offers(await self._client.gpu_types(tier), tier)
        self._cpus = await self._client.cpu_types()
        found += catalogue.cpu_offers(self._cpus)
        with contextlib.suppress(ProviderError):  # a key may lack the permission, which only launches with volumes need
            await self._refresh_volumes()
        rates = FlavorRates(
            flavors=catalogue.flavors(self._cpus),
            # A network volume is in one data center: without the offers elsewhere, no machine is tried in vain.
            volumes={id_: volume.data_center for id_, volume in self._volumes.items()},
            volume_option=_VOLUME,
            disk_options=catalogue.DISK_OPTIONS,
            usd_per_disk_gb=catalogue.USD_PER_DISK_GB,
        )
        self._offers = OfferList(tuple(found), self._now(), rates)
        return self._offers

    async def prepare(self, spec: LaunchSpec) -> Placement:
        """Return the placement of a launch. No error of this step means that a pod may exist."""
        try:
            async with asyncio.timeout(_PREPARE_SECONDS):
                return await self._place(spec)
        except TimeoutError as error:
            message = f"RunPod did not answer within {_PREPARE_SECONDS:.0f} seconds before the launch."
            raise Throttled(message, _RETRY_SECONDS) from error
        except ProviderError as error:
            raise answers.before_create(error) from error

    async def check_registry(self, spec: LaunchSpec, placement: Placement) -> None:
        """Raise `Throttled` if the account does not have the credential of a rejected launch any more."""
        try:
            has_it = await self._registries.has(spec.cluster, placement.registry)
        except ProviderError as error:
            raise answers.before_create(error) from error
        if not has_it:
            raise Throttled("The registry credential at RunPod was deleted: it is created again.", _RETRY_SECONDS)

    async def _place(self, spec: LaunchSpec) -> Placement:
        if not self._offers.offers:
            await self.refresh()
        self._check_region(spec.region)
        gpu, cpu = self._gpu(spec), None
        if not gpu:
            cpu = catalogue.cpu_order(catalogue.flavors(self._cpus), spec.container.machine_size, spec.region)
            if cpu is None:
                raise Rejected("NoMachine", "RunPod has no machine without GPU of this size: lower the limits.")
        options, registry = dict(spec.options), ""
        data_centers = await self._data_centers(spec)
        if spec.registry_credentials is not None and "container-registry-auth-id" not in options:
            registry = await self._registries.ensure(spec.cluster, spec.registry_credentials)
        return Placement(
            gpu=gpu,
            cpu=cpu,
            data_centers=data_centers,
            nonce=secrets.token_hex(16),
            registry=registry,
            endpoint=self._client.endpoint,
        )

    def _gpu(self, spec: LaunchSpec) -> str:
        """Return RunPod's id of the GPU type, the cheapest if the launch spec names none, or an empty string."""
        if spec.gpus is None:
            return ""
        known = [offer for offer in self._offers.offers if offer.gpu_type]
        fitting = [
            offer
            for offer in known
            if (offer.is_called(spec.gpus.type) if spec.gpus.type else not offer.is_only_by_name)
            and offer.cloud_type == (spec.cloud_type or catalogue.TIERS[0])
        ]
        if not fitting:
            names = ", ".join(sorted({offer.gpu_type for offer in known})[:_MAX_NAMES])
            raise Rejected("UnknownGpu", f"RunPod has no GPU {spec.gpus.type} in this tier: use one of {names}.")
        return min(fitting, key=lambda offer: (offer.usd_per_hour, offer.gpu_type)).gpu_type

    def _check_region(self, region: str) -> None:
        regions = sorted({offer.region for offer in self._offers.offers if offer.region})
        if region and region not in regions:
            raise Rejected("UnknownRegion", f"RunPod has no data center {region}: use one of {', '.join(regions)}.")

    async def _data_centers(self, spec: LaunchSpec) -> tuple[str, ...]:
        """Return the data centers in which the pod may run: that of its network volume, if it has one.

        Raises Rejected if the account does not have the volume, and NoCapacity if the volume is elsewhere.
        """
        options = dict(spec.options)
        allowed = (spec.region,) if spec.region else _items(options.get("datacenter-ids", ""))
        id_ = options.get(_VOLUME, "")
        if not id_:
            return allowed
        if id_ not in self._volumes:
            await self._refresh_volumes()
        volume = self._volumes.get(id_)
        if volume is None:
            raise Rejected(
                "UnknownVolume",
                f"The RunPod account has no network volume {id_}: create it, or correct runpod.io/network-volume-id.",
            )
        if allowed and volume.data_center not in allowed:
            raise NoCapacity(
                f"Network volume {id_} is in data center {volume.data_center}, not {' or '.join(allowed)}."
            )
        return (volume.data_center,)

    async def _refresh_volumes(self) -> None:
        self._volumes = {volume.id: volume for volume in await self._client.network_volumes()}


def _items(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))
