"""Events of a pod at a cloud, from the changes of its claim. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from skysail.base.names import EventReason, Reason
from skysail.claims.limits import budget
from skysail.claims.plan.termination import lifetime
from skysail.claims.types import CloudInstance, CloudInstanceStatus
from skysail.core.actions import Event


def events_of(old: CloudInstance | None, new: CloudInstance) -> tuple[Event, ...]:
    """Return the events of one change. A claim that is seen for the first time has none: its events were recorded."""
    return () if old is None else tuple(_changes(old.status, new))


def _changes(before: CloudInstanceStatus, claim: CloudInstance) -> Iterator[Event]:
    cloud, now = claim.spec.provider, claim.status
    if now.state == "Launching" and now.launching != before.launching:
        yield Event(Reason.LAUNCHING, f"{cloud} is called for {_offer(claim)}.")
        if now.lifetime_limit:
            note = budget.lifetime_limited(lifetime(now) or 0.0, now.lifetime_limit)
            yield Event(EventReason.LIFETIME_LIMITED, note, warning=True)
    if len(now.refused_candidates) > len(before.refused_candidates):
        refused = now.refused_candidates[-1]
        yield Event(refused.reason, f"{cloud}: {refused.message}", warning=True)
    if now.instance_id and now.instance_id != before.instance_id:
        price = "" if now.usd_per_hour is None else f" for {now.usd_per_hour:g} USD/h"
        yield Event(Reason.LAUNCHED, f"{cloud} has created instance {now.instance_id}{price}.")
    if now.ready_time and not before.ready_time:
        yield Event(EventReason.STARTED, f"Instance {now.instance_id} at {cloud} runs the container.")
    if now.state == "Terminated" and before.state != "Terminated" and now.instance_id:
        yield Event(EventReason.TERMINATED, f"Instance {now.instance_id} at {cloud} has ended{_end(now)}.")


def _offer(claim: CloudInstance) -> str:
    candidates = claim.spec.candidates
    if claim.status.candidate >= len(candidates):
        return "an instance"
    candidate = candidates[claim.status.candidate]
    count = claim.spec.gpu.count if claim.spec.gpu else 0
    machine = f"{count} {candidate.gpu_type}" if candidate.gpu_type else "a machine without GPUs"
    return f"{machine} from {candidate.usd_per_hour:g} USD/h"


def _end(status: CloudInstanceStatus) -> str:
    code = f" with exit code {status.exit.code}" if status.exit else ""
    return code if status.usd_total is None else f"{code}; it cost {status.usd_total:.4f} USD"
