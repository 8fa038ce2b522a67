"""A revision is made ready to be served, by one Job, while the one before goes on. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Apply, Plan
from skysail.core.obstacles import Wait
from skysail.kinds.model import failure, render, targets, upkeep, views, waiting
from skysail.kinds.model.failure import Mishap, Prepared
from skysail.kinds.model.revisions import Entry
from skysail.kinds.model.snapshot import Snapshot
from skysail.kinds.model.status import Fact, View, again, named
from skysail.kinds.model.targets import Target
from skysail.kinds.model.types import Failure
from skysail.kinds.model.upkeep import Actions
from skysail.kinds.model.workload import Job
from skysail.kube.resources import JOB, PERSISTENT_VOLUME_CLAIM

_SOON = Wait(Reason.DOWNLOADING, "The download begins soon.")
_OTHER = Wait(Reason.DOWNLOADING, "The download of another revision is ended first.")
_ENDS = Wait(Reason.DOWNLOADING, "The download has ended; its pod says in a moment what it came to.")
_LOST = Wait(Reason.DOWNLOADING, "The pod of the download went before its digest was noted, so it is done again.")


def prepare(snapshot: Snapshot, wanted: Target) -> Plan:
    job = snapshot.job
    if job is None:
        return _begin(snapshot, wanted)
    if job.revision != wanted.hash or job.metadata.is_deleting:
        return _under_way(snapshot, wanted, _OTHER, upkeep.ended(snapshot))
    if not job.is_over:
        return _under_way(snapshot, wanted, waiting.for_download(snapshot, wanted))
    if not job.is_complete:
        return _not_prepared(snapshot, wanted, failure.of_preparation(snapshot, job))
    return _done(snapshot, wanted, job)


def _done(snapshot: Snapshot, wanted: Target, job: Job) -> Plan:
    pods = snapshot.preparing(wanted.hash)
    pod = failure.ended_well(pods)
    if pod is None:
        # A pod of which it was not heard yet that it has ended is neither here nor gone.
        is_gone = all(each.is_over for each in pods)
        return _under_way(snapshot, wanted, *((_LOST, upkeep.ended(snapshot)) if is_gone else (_ENDS,)))
    found = failure.prepared(pod)
    if found is None:
        return _not_prepared(snapshot, wanted, failure.of_silence(snapshot, job, pod))
    return _found_good(snapshot, wanted, found)


def _begin(snapshot: Snapshot, wanted: Target) -> Plan:
    keep = _kept(snapshot)
    job = render.prepare_job(snapshot.serving, wanted.want, keep, snapshot.terms)
    if job is None:
        return _found_good(snapshot, wanted, Prepared())
    owner, claim = upkeep.owner(snapshot), render.claim(snapshot.serving)
    made: Actions = (Apply(JOB, job, owner, only_once=True),)
    if claim is not None:
        made = (Apply(PERSISTENT_VOLUME_CLAIM, claim, owner, only_once=True), *made)
    is_first = claim is not None and snapshot.claim is None
    wait = Wait(Reason.VOLUME_UNAVAILABLE, "The volume of the model is being made.") if is_first else _SOON
    return _under_way(snapshot, wanted, wait, made)


def _kept(snapshot: Snapshot) -> tuple[str, ...]:
    """Revisions whose folders stay on the claim: of the history, and of servers that have lost their place in it."""
    servers = {pod.revision for pod in snapshot.pods if pod.serves}
    aimed_at = {snapshot.deployment.revision} if snapshot.deployment is not None else set()
    return tuple(sorted({entry.hash for entry in snapshot.history} | servers | aimed_at))


def _under_way(snapshot: Snapshot, wanted: Target, wait: Wait, actions: Actions = ()) -> Plan:
    view = views.preparing(snapshot, wanted, wait)
    kept = upkeep.servers(snapshot, view.served)
    return views.told(snapshot, wanted, view, (*actions, *kept), look_again=views.until_asked(snapshot, wanted))


def _found_good(snapshot: Snapshot, wanted: Target, found: Prepared) -> Plan:
    """Into the history with it. What follows is the next pass's."""
    entry = Entry(
        # Also where the history was lost: a number never means something else than it did.
        number=max((entry.number for entry in snapshot.history), default=snapshot.object.status.revision) + 1,
        hash=wanted.hash,
        want=wanted.want,
        digest=found.digest,
        bytes=found.bytes,
        files=found.files,
    )
    wait = Wait(Reason.ROLLING_OUT, f"{named(snapshot, entry)} was found good, and is served next.")
    view = views.rolling(snapshot, wanted, entry, wait)
    kept = upkeep.servers(snapshot, view.served)
    return views.told(snapshot, wanted, view, (upkeep.recorded(snapshot, entry), *kept))


def _not_prepared(snapshot: Snapshot, wanted: Target, mishap: Mishap) -> Plan:
    before = snapshot.object.status.failure
    found = failure.counted(before, failure.with_log(mishap.failure, snapshot.log))
    # The number of tries is written down before the Job goes that it counts.
    is_known = failure.is_known(before, found)
    passes = failure.may_pass(found) if is_known else mishap.may_pass
    return _again(snapshot, wanted, found, is_known=is_known) if passes else _failed(snapshot, wanted, found)


def _again(snapshot: Snapshot, wanted: Target, found: Failure, *, is_known: bool) -> Plan:
    """What may pass is tried again when its time has come."""
    again = failure.again_at(found)
    left = max((again - snapshot.now).total_seconds(), 0.0)
    tries = "once" if found.attempts == 1 else f"{found.attempts} times"
    message = f"{found.message} It was tried {tries}, and is tried again at {timestamp(again)}."
    view = views.preparing(snapshot, wanted, Wait(Reason.RETRYING, message))
    view = msgspec.structs.replace(view, failure=found, download=None)
    actions = upkeep.ended(snapshot) if is_known and not left else ()
    return views.told(
        snapshot, wanted, view, (*actions, *upkeep.servers(snapshot, view.served)), look_again=None if actions else left
    )


def _failed(snapshot: Snapshot, wanted: Target, found: Failure) -> Plan:
    """For good, until somebody changes the spec. What is served stays."""
    before, reason = targets.replaces(snapshot, wanted), failure.reason(found)
    goes_on = "" if before is None else f" {named(snapshot, before)} goes on."
    message = f"{found.message}{goes_on} {again(snapshot)}"
    not_there = Fact("False", reason, found.message)
    view = View(
        stage="Failed",
        is_moving=False,
        reason=reason,
        message=message,
        served=before,
        downloaded=views.HERE if found.step == "Validate" else not_there,
        validated=not_there if wanted.want.script else None,
        failure=found,
        update_failed=None if before is None else Fact("True", reason, message),
    )
    return views.told(snapshot, wanted, view, upkeep.servers(snapshot, before))
