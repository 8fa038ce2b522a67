"""Whether a simulated cloud takes an order, and what becomes of it by the user's wishes and the script."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import NoCapacity, Rejected, Unsupported
from skysail.cloud.offers import Offer
from skysail.cloud.provider import Features, HostPath, PersistentDisk
from skysail.cloud.simulated import options
from skysail.cloud.simulated.faults import NOTHING, Fault
from skysail.cloud.simulated.ledger import Row
from skysail.cloud.simulated.options import SimulationOptions
from skysail.cloud.simulated.vendors import Vendor


def validate(spec: LaunchSpec, vendor: Vendor, features: Features) -> SimulationOptions:
    """What the order wishes; an error of `cloud.errors` where the cloud would not take it."""
    vendor.price(spec.gpus)
    vendor.check_place(spec.gpus, spec.region, spec.cloud_type)
    if not 0 < spec.max_lifetime <= vendor.terms.max_lifetime:
        longest = f"{vendor.terms.max_lifetime:g}"
        raise Rejected(
            "InvalidDeadline", f"An instance may live up to {longest} s, not {spec.max_lifetime:g}: ask for less."
        )
    if spec.replicas > 1 and not features.gang:
        raise Unsupported(f"The simulated {vendor.name} runs one member on this machine, not {spec.replicas}.")
    if spec.pod.uses_host_network:
        raise Rejected("UnsupportedNetwork", f"The simulated {vendor.name} has no network of a host: drop hostNetwork.")
    for volume in spec.pod.volumes:
        if isinstance(volume.source, HostPath | PersistentDisk):
            raise Rejected(
                "UnsupportedVolume",
                f"Volume {volume.name} is of the machine, which the simulated {vendor.name} has not: use an emptyDir.",
            )
    return options.from_container(spec.container)


def requested_fault(spec: LaunchSpec, wished: SimulationOptions, rows: Iterable[Row]) -> Fault:
    """What the order itself asks to befall this create; raises where it asks to be turned away."""
    gpu_type = spec.gpus.type.casefold() if spec.gpus else ""
    if gpu_type and gpu_type in {name.casefold() for name in wished.no_capacity_types}:
        raise NoCapacity(f"The simulated cloud has no {gpu_type.upper()} free, as was wished.")
    if wished.no_capacity == 0 and wished.create == "nothing":
        return NOTHING
    previous = [row for row in rows if row.pod == spec.pod.uid and row.verb in {"create", "refused"}]
    if len(previous) < wished.no_capacity:
        raise NoCapacity("The simulated cloud has no such machine free, as was wished.")
    return Fault(on="create", what=wished.create) if len(previous) == wished.no_capacity else NOTHING


def offers(vendor: Vendor, fault: Fault) -> tuple[Offer, ...]:
    """Return the offers of the vendor, as the fault changes them."""
    return () if fault.what == "empty" else tuple(_befallen_offer(offer, fault) for offer in vendor.offers)


def _befallen_offer(offer: Offer, fault: Fault) -> Offer:
    if not fault.is_about(offer.gpu_type):
        return offer
    match fault.what:
        case "dear":
            return msgspec.structs.replace(offer, usd_per_hour=2 * offer.usd_per_hour)
        case "low-stock":
            return msgspec.structs.replace(offer, stock="Low")
        case "out-of-stock":
            return msgspec.structs.replace(offer, stock="None")
        case _:
            return offer


def first_row(spec: LaunchSpec, vendor: Vendor, wished: SimulationOptions, fault: Fault) -> Row:
    """The first row of an instance, but for its id and its time."""
    price = vendor.price(spec.gpus, spec.replicas) if wished.usd is None else wished.usd
    return Row(
        at=0.0,
        verb="create",
        claim=spec.claim,
        cluster=spec.cluster,
        pod=spec.pod.uid,
        region=vendor.region,
        usd=2 * price if fault.what == "dear" else price,
        seconds=spec.max_lifetime,
        options=_befallen(wished, fault),
    )


def _befallen(wished: SimulationOptions, fault: Fault) -> SimulationOptions:
    match fault.what:
        case "late":
            return msgspec.structs.replace(wished, lag=fault.seconds)
        case "hidden":
            return msgspec.structs.replace(wished, hidden=fault.seconds)
        case "slow-start":
            return msgspec.structs.replace(wished, start=fault.seconds)
        case "slow-end":
            return msgspec.structs.replace(wished, end=fault.seconds)
        case "preempted":
            return msgspec.structs.replace(wished, preempt=fault.seconds)
        case _:
            return wished
