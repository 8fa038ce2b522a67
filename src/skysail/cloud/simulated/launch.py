"""Whether a simulated cloud takes an order, and what becomes of it by the user's wishes and the script."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skysail.cloud.account import Order
from skysail.cloud.errors import NoCapacity, Refused, Unsupported
from skysail.cloud.provider import Abilities, Disk, Folder
from skysail.cloud.simulated import options
from skysail.cloud.simulated.faults import NOTHING, Fault
from skysail.cloud.simulated.ledger import Row
from skysail.cloud.simulated.options import Wishes
from skysail.cloud.simulated.vendors import Vendor


def check(order: Order, vendor: Vendor, abilities: Abilities) -> Wishes:
    """What the order wishes; an error of `cloud.errors` where the cloud would not take it."""
    vendor.price(order.gpus)
    if not 0 < order.seconds <= vendor.terms.longest:
        longest = f"{vendor.terms.longest:g}"
        raise Refused(
            "InvalidDeadline", f"An instance may live up to {longest} s, not {order.seconds:g}: ask for less."
        )
    if order.members > 1 and not abilities.gang:
        raise Unsupported(f"The simulated {vendor.name} runs one member on this machine, not {order.members}.")
    if order.pod.uses_host_network:
        raise Refused("UnsupportedNetwork", f"The simulated {vendor.name} has no network of a host: drop hostNetwork.")
    for volume in order.pod.volumes:
        if isinstance(volume.source, Folder | Disk):
            raise Refused(
                "UnsupportedVolume",
                f"Volume {volume.name} is of the machine, which the simulated {vendor.name} has not: use an emptyDir.",
            )
    return options.of(order.container)


def wished_fault(order: Order, wished: Wishes, rows: Iterable[Row]) -> Fault:
    """What the order itself asks to befall this create; raises where it asks to be turned away."""
    if wished.no_capacity == 0 and wished.create == "nothing":
        return NOTHING
    before = [row for row in rows if row.pod == order.pod.uid and row.verb in {"create", "refused"}]
    if len(before) < wished.no_capacity:
        raise NoCapacity("The simulated cloud has no such machine free, as was wished.")
    return Fault(on="create", what=wished.create) if len(before) == wished.no_capacity else NOTHING


def beginning(order: Order, vendor: Vendor, wished: Wishes, fault: Fault) -> Row:
    """The first row of an instance, but for its id and its time."""
    price = vendor.price(order.gpus, order.members) if wished.usd is None else wished.usd
    return Row(
        at=0.0,
        verb="create",
        claim=order.claim,
        cluster=order.cluster,
        pod=order.pod.uid,
        region=vendor.region,
        usd=2 * price if fault.what == "dear" else price,
        seconds=order.seconds,
        wishes=_befallen(wished, fault),
    )


def _befallen(wished: Wishes, fault: Fault) -> Wishes:
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
