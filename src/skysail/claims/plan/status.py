"""Builds the status of a claim from its instance. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from skysail.base.names import Condition as Conditions
from skysail.base.names import Reason
from skysail.base.timestamps import from_seconds, timestamp
from skysail.claims.snapshot import Snapshot
from skysail.claims.types import CloudInstanceStatus, Exit, RankStatus
from skysail.cloud.account import Instance
from skysail.cloud.provider import Ended
from skysail.core.conditions import MAX_MESSAGE_LENGTH, set_condition

NEVER_PAID = 0.0
# Truncate or drop values that the API server would reject, such as long texts or milliseconds instead of seconds: a
# claim whose status cannot be written would never be terminated.
_MAX_WORD_LENGTH = 256
_MAX_URL_LENGTH = 1024
_DEAREST = 1e9
_FIRST_MOMENT = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
_LAST_MOMENT = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
_CODES = range(-(2**31), 2**31)
_NO_CODE = 255


def mirror_instance(snapshot: Snapshot, instance: Instance) -> CloudInstanceStatus:
    """Copy the instance into the status. Times that are already set are kept, and a price only rises."""
    status, message = snapshot.object.status, "The cloud has created the instance."
    status = set_condition(snapshot, status, Conditions.LAUNCHED, "True", Reason.LAUNCHED, message)
    runs = instance.state == "running" or instance.started is not None
    exit_ = instance.exit
    start = status.start_time or time(instance.created) or _called(snapshot)
    return msgspec.structs.replace(
        status,
        state=status.state if status.state in {"Running", "Terminating"} else ("Running" if runs else "Starting"),
        instance_id=instance.id,
        app_id=instance.app[:_MAX_WORD_LENGTH],
        url=instance.url if len(instance.url) <= _MAX_URL_LENGTH else "",
        usd_per_hour=_highest_price(status, instance),
        region=instance.region[:_MAX_WORD_LENGTH],
        deadline_time=status.deadline_time or _deadline(snapshot, start),
        start_time=start,
        ready_time=status.ready_time or _ready(instance, snapshot.now),
        finish_time=status.finish_time or (exit_ and (time(exit_.ended) or timestamp(snapshot.now))),
        exit=status.exit or (None if exit_ is None else _exit(exit_)),
        ranks=_ranks(snapshot, instance),
    )


def reset_to_claimed(
    snapshot: Snapshot, reason: Reason, message: str, *, status: CloudInstanceStatus | None = None
) -> CloudInstanceStatus:
    """Reset the status to Claimed, because the cloud certainly has no instance of this claim any more."""
    old = status or snapshot.object.status
    new = set_condition(snapshot, old, Conditions.LAUNCHED, "False", reason, message)
    new = msgspec.structs.replace(
        without_instance(new), state="Claimed", launching=None, deadline_time=None, lifetime_limit=""
    )
    # A condition of a termination is about an earlier instance of this claim.
    rest = tuple(row for row in new.conditions if row.type != Conditions.TERMINATED)
    return msgspec.structs.replace(new, conditions=rest)


def without_instance(status: CloudInstanceStatus) -> CloudInstanceStatus:
    """Remove the fields of an instance that is terminated and does not count as the claim's own."""
    return msgspec.structs.replace(
        status,
        instance_id="",
        app_id="",
        url="",
        usd_per_hour=None,
        region="",
        start_time=None,
        ready_time=None,
        finish_time=None,
        exit=None,
        ranks=(),
        end_time=None,
        usd_total=None,
    )


def accrued_cost(status: CloudInstanceStatus, end: float) -> float:
    """Return the cost of an instance at its price since billing started."""
    if status.start_time is None or status.usd_per_hour is None:
        return NEVER_PAID
    seconds = end - datetime.fromisoformat(status.start_time).timestamp()
    return min(_DEAREST, round(status.usd_per_hour * max(0.0, seconds) / 3600, 6))


def time(seconds: float | None) -> str | None:
    """Convert Unix seconds to a timestamp. Returns None if the value is missing or implausible."""
    if seconds is None or not _FIRST_MOMENT <= seconds < _LAST_MOMENT:
        return None
    return timestamp(from_seconds(seconds))


def usd(amount: float | None) -> float | None:
    """Return the price. Returns None if the value is missing or implausible."""
    return amount if amount is not None and 0 <= amount <= _DEAREST else None


def _highest_price(status: CloudInstanceStatus, instance: Instance) -> float | None:
    """Return the highest price so far, so that the cost is not understated. A price of 0 may not be known yet.

    An App of Modal that a newer claim has changed goes back to its claim at the price of the newer one.
    """
    prices = (status.usd_per_hour, usd(instance.usd_per_hour))
    return max((price for price in prices if price is not None), default=None)


def _called(snapshot: Snapshot) -> str:
    launching = snapshot.object.status.launching
    return launching.at if launching else timestamp(snapshot.now)


def _deadline(snapshot: Snapshot, start: str) -> str:
    """Compute the deadline from the creation time, for an instance found after its launch was reset."""
    seconds = snapshot.launch_spec.max_lifetime if snapshot.launch_spec else snapshot.timings.max_lifetime
    return timestamp(datetime.fromisoformat(start) + timedelta(seconds=seconds))


def _ready(instance: Instance, now: datetime) -> str | None:
    """Return the start time of the program, or now if the cloud reports only that the program runs."""
    return time(instance.started) or (timestamp(now) if instance.state == "running" else None)


def _ranks(snapshot: Snapshot, instance: Instance) -> tuple[RankStatus, ...]:
    """Return the exits of all ranks. An exit that is set is kept, and only the ranks of the claim count."""
    members = len(snapshot.object.spec.member_pods)
    before, found = snapshot.object.status.ranks, instance.ranks[:members]
    if members == 0 or not (before or any(rank.exit for rank in found)):
        return ()
    known = (*before, *(RankStatus(),) * members)[:members]
    seen = (*(rank.exit for rank in found), *(None,) * members)[:members]
    return tuple(
        rank if rank.exit is not None or exit_ is None else _rank(exit_, snapshot.now)
        for rank, exit_ in zip(known, seen, strict=True)
    )


def _rank(end: Ended, now: datetime) -> RankStatus:
    return RankStatus(finish_time=time(end.ended) or timestamp(now), exit=_exit(end))


def _exit(end: Ended) -> Exit:
    code = end.code if end.code in _CODES else _NO_CODE
    return Exit(code=code, reason=end.reason[:_MAX_WORD_LENGTH], message=end.message[-MAX_MESSAGE_LENGTH:])
