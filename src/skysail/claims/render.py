"""The status of a claim, made from what a cloud says of its instance. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import from_seconds, timestamp
from skysail.claims.snapshot import Snapshot
from skysail.claims.types import CloudInstanceStatus, Exit
from skysail.cloud.contract import Ended
from skysail.cloud.instances import Instance
from skysail.core import conditions
from skysail.kube.fields import Condition

NEVER_PAID = 0.0
# What a cloud says may be a whole page; the API server takes no more of it than this.
_LONGEST_MESSAGE = 4096


def as_seen(snapshot: Snapshot, instance: Instance) -> CloudInstanceStatus:
    """The status with what the cloud says of the instance. What was told before is not taken back."""
    status = told(snapshot, Conditions.LAUNCHED, "True", Reason.LAUNCHED, "The cloud has made the instance.")
    runs = instance.state == "running" or instance.started is not None
    exit_ = instance.exit
    return msgspec.structs.replace(
        status,
        state=status.state if status.state in {"Running", "Terminating"} else ("Running" if runs else "Starting"),
        instance_id=instance.id,
        usd_per_hour=status.usd_per_hour if status.usd_per_hour is not None else instance.usd_per_hour,
        region=instance.region,
        start_time=status.start_time or time(instance.created),
        ready_time=status.ready_time or _ready(instance, snapshot.now),
        finish_time=status.finish_time or time(exit_.ended if exit_ else None),
        exit=status.exit or (None if exit_ is None else _exit(exit_)),
    )


def told(
    snapshot: Snapshot,
    type_: Conditions,
    value: Literal["True", "False", "Unknown"],
    reason: str,
    message: str,
    *,
    status: CloudInstanceStatus | None = None,
) -> CloudInstanceStatus:
    """This status, or the claim's own, with one condition told."""
    old, claim = status or snapshot.object.status, snapshot.object
    new = Condition(
        type=type_,
        status=value,
        last_transition_time=timestamp(snapshot.now),
        reason=reason,
        message=message[:_LONGEST_MESSAGE],
        observed_generation=claim.metadata.generation,
    )
    return msgspec.structs.replace(
        old,
        conditions=conditions.with_condition(old.conditions, new),
        observed_generation=claim.metadata.generation,
    )


def cost(status: CloudInstanceStatus, end: float) -> float:
    """What an instance has cost at its price, from the moment when the cloud began to charge."""
    if status.start_time is None or status.usd_per_hour is None:
        return NEVER_PAID
    seconds = end - datetime.fromisoformat(status.start_time).timestamp()
    return round(status.usd_per_hour * max(0.0, seconds) / 3600, 6)


def time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(from_seconds(seconds))


def _ready(instance: Instance, now: datetime) -> str | None:
    """A cloud that says that it runs, and not since when, is believed from now on."""
    return time(instance.started) or (timestamp(now) if instance.state == "running" else None)


def _exit(end: Ended) -> Exit:
    return Exit(code=end.code, reason=end.reason, message=end.message[-_LONGEST_MESSAGE:])
