"""Validation of a launch spec by a simulated cloud, and the first ledger row of its instance."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import NoCapacity, Rejected, Unsupported
from skysail.cloud.offers import Offer
from skysail.cloud.provider import Features, HostPath, PersistentDisk, Pod
from skysail.cloud.simulated import options
from skysail.cloud.simulated.faults import NOTHING, Fault
from skysail.cloud.simulated.ledger import Row
from skysail.cloud.simulated.options import SimulationOptions
from skysail.cloud.simulated.vendors import Vendor


def validate(spec: LaunchSpec, vendor: Vendor, features: Features) -> SimulationOptions:
    """Return the simulation options of the launch spec.

    Raises an error of `cloud.errors` if the cloud would not accept the launch spec.
    """
    vendor.price(spec.gpus)
    vendor.check_place(spec.gpus, spec.region, spec.cloud_type)
    if not 0 < spec.max_lifetime <= vendor.terms.max_lifetime:
        limit = f"{vendor.terms.max_lifetime:g}"
        raise Rejected(
            "InvalidDeadline",
            f"The lifetime of {spec.max_lifetime:g} s is not between 0 and {limit} s: choose another one.",
        )
    if spec.size > 1 and not features.gang:
        raise Unsupported(
            f"The simulated {vendor.name} has no private network for {spec.size} members: use a cloud that has one."
        )
    for member in spec.members:
        _check_pod(member.pod, vendor)
    return options.from_container(spec.container)


def _check_pod(pod: Pod, vendor: Vendor) -> None:
    if pod.uses_host_network:
        raise Rejected(
            "UnsupportedNetwork", f"The simulated {vendor.name} does not support hostNetwork: remove the field."
        )
    for volume in pod.volumes:
        if isinstance(volume.source, HostPath | PersistentDisk):
            raise Rejected(
                "UnsupportedVolume",
                f"Volume {volume.name} is on this machine, where the simulated {vendor.name} has no access: use an "
                "emptyDir.",
            )


def requested_fault(spec: LaunchSpec, requested: SimulationOptions, rows: Iterable[Row]) -> Fault:
    """Return the fault that the launch spec requests for this create call.

    Raises `NoCapacity` if the launch spec requests that this call finds no capacity.
    """
    gpu_type = spec.gpus.type.casefold() if spec.gpus else ""
    if gpu_type and gpu_type in {name.casefold() for name in requested.no_capacity_types}:
        raise NoCapacity(f"The simulated cloud has no {gpu_type.upper()} free, as requested.")
    if requested.no_capacity == 0 and requested.create == "nothing":
        return NOTHING
    previous = [row for row in rows if row.pod == spec.pod.uid and row.verb in {"create", "refused"}]
    if len(previous) < requested.no_capacity:
        raise NoCapacity("The simulated cloud has no capacity, as requested.")
    return Fault(on="create", what=requested.create) if len(previous) == requested.no_capacity else NOTHING


def offers(vendor: Vendor, fault: Fault) -> tuple[Offer, ...]:
    """Return the offers of the vendor, as the fault changes them."""
    return () if fault.what == "empty" else tuple(_changed_offer(offer, fault) for offer in vendor.offers)


def _changed_offer(offer: Offer, fault: Fault) -> Offer:
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


def first_row(spec: LaunchSpec, vendor: Vendor, requested: SimulationOptions, fault: Fault) -> Row:
    """Return the first row of an instance, without id and time."""
    price = vendor.price(spec.gpus, spec.size) if requested.usd is None else requested.usd
    return Row(
        at=0.0,
        verb="create",
        claim=spec.claim,
        cluster=spec.cluster,
        pod=spec.pod.uid,
        region=vendor.region,
        usd=2 * price if fault.what == "dear" else price,
        seconds=spec.max_lifetime,
        options=_with_fault(requested, fault),
        members=spec.size,
        is_one_pod=spec.replicas > 1,
    )


def _with_fault(requested: SimulationOptions, fault: Fault) -> SimulationOptions:
    match fault.what:
        case "late":
            return msgspec.structs.replace(requested, lag=fault.seconds)
        case "hidden":
            return msgspec.structs.replace(requested, hidden=fault.seconds)
        case "slow-start":
            return msgspec.structs.replace(requested, start=fault.seconds)
        case "slow-end":
            return msgspec.structs.replace(requested, end=fault.seconds)
        case "preempted":
            return msgspec.structs.replace(requested, preempt=fault.seconds)
        case _:
            return requested
