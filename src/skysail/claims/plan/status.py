"""The status of a claim, made from what a cloud says of its instance. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import from_seconds, timestamp
from skysail.claims.snapshot import Snapshot
from skysail.claims.types import CloudInstanceStatus, Exit
from skysail.cloud.account import Instance
from skysail.cloud.provider import Ended
from skysail.core import conditions
from skysail.kube.api.fields import Condition

NEVER_PAID = 0.0
# What a cloud says may be a whole page, or nonsense such as milliseconds for seconds. The API server takes no more than
# this, and what it would not take is left out: a claim whose status cannot be written would never end.
_LONGEST_MESSAGE = 4096
_LONGEST_WORD = 256
_DEAREST = 1e9
_FIRST_MOMENT = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
_LAST_MOMENT = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
_CODES = range(-(2**31), 2**31)
_NO_CODE = 255


def as_seen(snapshot: Snapshot, instance: Instance) -> CloudInstanceStatus:
    """The status with what the cloud says of the instance. What was told before is not taken back."""
    status = told(snapshot, Conditions.LAUNCHED, "True", Reason.LAUNCHED, "The cloud has made the instance.")
    runs = instance.state == "running" or instance.started is not None
    exit_ = instance.exit
    start = status.start_time or time(instance.created) or _called(snapshot)
    return msgspec.structs.replace(
        status,
        state=status.state if status.state in {"Running", "Terminating"} else ("Running" if runs else "Starting"),
        instance_id=instance.id,
        usd_per_hour=status.usd_per_hour if status.usd_per_hour is not None else usd(instance.usd_per_hour),
        region=instance.region[:_LONGEST_WORD],
        deadline_time=status.deadline_time or _deadline(snapshot, start),
        start_time=start,
        ready_time=status.ready_time or _ready(instance, snapshot.now),
        finish_time=status.finish_time or (exit_ and (time(exit_.ended) or timestamp(snapshot.now))),
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
    return min(_DEAREST, round(status.usd_per_hour * max(0.0, seconds) / 3600, 6))


def time(seconds: float | None) -> str | None:
    """None also where it cannot be one."""
    if seconds is None or not _FIRST_MOMENT <= seconds < _LAST_MOMENT:
        return None
    return timestamp(from_seconds(seconds))


def usd(told: float | None) -> float | None:
    """None also where it cannot be a price."""
    return told if told is not None and 0 <= told <= _DEAREST else None


def _called(snapshot: Snapshot) -> str:
    launching = snapshot.object.status.launching
    return launching.at if launching else timestamp(snapshot.now)


def _deadline(snapshot: Snapshot, start: str) -> str:
    """Of an instance that was found after it was given up: the cloud has counted since it made it."""
    seconds = snapshot.order.seconds if snapshot.order else snapshot.terms.longest
    return timestamp(datetime.fromisoformat(start) + timedelta(seconds=seconds))


def _ready(instance: Instance, now: datetime) -> str | None:
    """A cloud that says that it runs, and not since when, is believed from now on."""
    return time(instance.started) or (timestamp(now) if instance.state == "running" else None)


def _exit(end: Ended) -> Exit:
    code = end.code if end.code in _CODES else _NO_CODE
    return Exit(code=code, reason=end.reason[:_LONGEST_WORD], message=end.message[-_LONGEST_MESSAGE:])
