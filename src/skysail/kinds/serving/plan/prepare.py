"""Preparation of a revision by one Job, while the previous revision stays served. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Create, Plan
from skysail.core.pod_pending import Wait
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.objects import Job
from skysail.kinds.serving.plan import child_actions, failure, model_state, pending, target_revision
from skysail.kinds.serving.plan.child_actions import Actions
from skysail.kinds.serving.plan.failure import Mishap, Prepared
from skysail.kinds.serving.plan.status import Fact, View, again, named
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api.resources import JOB, PERSISTENT_VOLUME_CLAIM

_OTHER = Wait(Reason.DOWNLOADING, "The download of another revision is being stopped first.")
_ENDS = Wait(Reason.DOWNLOADING, "The download has finished and its result is being read.")
_BEFORE = Wait(Reason.DOWNLOADING, "A pod of an earlier download must terminate first.")
_GOES = Wait(
    Reason.VOLUME_UNAVAILABLE,
    "The model's PVC is being deleted and will be recreated. Servers that mount it delay the deletion: set "
    "spec.replicas to 0 until it is gone.",
)
_CHANGED = Wait(Reason.DOWNLOADING, "Settings or the size of the PVC changed, so the download is retried.")
_LOST = Wait(Reason.DOWNLOADING, "The download pod was deleted before its digest was recorded; downloading again.")


def prepare(snapshot: Snapshot, wanted: Target) -> Plan:
    job = snapshot.job
    if job is None:
        return _begin(snapshot, wanted)
    if job.revision != wanted.hash or job.metadata.is_deleting or _is_of_another_claim(snapshot, job):
        return _under_way(snapshot, wanted, pending.STARTS if job.is_over else _OTHER, child_actions.ended(snapshot))
    if not job.is_over:
        return _under_way(snapshot, wanted, pending.for_download(snapshot, wanted))
    if not job.is_complete and _is_otherwise_now(snapshot, job):
        return _under_way(snapshot, wanted, _CHANGED, child_actions.ended(snapshot))
    if not job.is_complete:
        return _not_prepared(snapshot, wanted, failure.of_preparation(snapshot, job))
    return _done(snapshot, wanted, job)


def _is_of_another_claim(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the PVC was recreated after this Job, so that its download is lost."""
    if snapshot.serving.storage is None:
        return False
    claim = snapshot.claim
    return claim is None or (job.metadata.creation_timestamp or "") < (claim.metadata.creation_timestamp or "")


def _is_otherwise_now(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the cause of the failure may be gone. A larger size counts once the PVC has grown."""
    storage, claim = snapshot.serving.storage, snapshot.claim
    has_room = storage is None or (claim is not None and claim.has(storage.size))
    return has_room and job.circumstances != manifests.circumstances(snapshot.serving, snapshot.terms)


def _done(snapshot: Snapshot, wanted: Target, job: Job) -> Plan:
    pods = snapshot.preparing(wanted.hash)
    pod = failure.ended_well(pods)
    if pod is None:
        # The pod may have finished without the cache knowing: treat it as neither running nor deleted.
        is_gone = all(each.is_over for each in pods)
        return _under_way(snapshot, wanted, *((_LOST, child_actions.ended(snapshot)) if is_gone else (_ENDS,)))
    found = failure.prepared(pod)
    if found is None:
        return _not_prepared(snapshot, wanted, failure.of_silence(snapshot, job, pod))
    return _found_good(snapshot, wanted, found)


def _begin(snapshot: Snapshot, wanted: Target) -> Plan:
    digest = wanted.lost.digest if wanted.lost is not None and wanted.is_pinned else ""
    is_shared = _has_shared_source(snapshot)
    job = manifests.prepare_job(
        snapshot.serving, wanted.want, _kept(snapshot), snapshot.terms, digest=digest, is_shared=is_shared
    )
    if job is None:
        return _found_good(snapshot, wanted, Prepared())
    if any(pod.prepares and not pod.is_over for pod in snapshot.pods):
        return _under_way(snapshot, wanted, _BEFORE)
    if snapshot.claim is not None and snapshot.claim.metadata.is_deleting:
        return _under_way(snapshot, wanted, _GOES)
    owner, claim = child_actions.owner(snapshot), manifests.claim(snapshot.serving)
    made: Actions = (Create(JOB, job, owner),)
    if claim is not None:
        made = (Create(PERSISTENT_VOLUME_CLAIM, claim, owner), *made)
    is_first = claim is not None and snapshot.claim is None
    wait = pending.MADE if is_first else pending.STARTS
    return _under_way(snapshot, wanted, wait, made)


def _has_shared_source(snapshot: Snapshot) -> bool:
    """Return whether pods on several nodes can mount the source PVC.

    A missing PVC counts as not shared: its pods then share a node, which every PVC allows.
    """
    return snapshot.source is not None and snapshot.source.is_shared


def _kept(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the revisions whose folders stay on the PVC: the history, and those of servers that left the history."""
    servers = {pod.revision for pod in snapshot.pods if pod.serves}
    aimed_at = {snapshot.deployment.revision} if snapshot.deployment is not None else set()
    return tuple(sorted({entry.hash for entry in snapshot.history} | servers | aimed_at))


def _under_way(snapshot: Snapshot, wanted: Target, wait: Wait, actions: Actions = ()) -> Plan:
    view = model_state.preparing(snapshot, wanted, wait)
    kept = child_actions.servers(snapshot, view.served)
    return model_state.told(
        snapshot, wanted, view, (*actions, *kept), look_again=model_state.until_asked(snapshot, wanted)
    )


def _found_good(snapshot: Snapshot, wanted: Target, found: Prepared) -> Plan:
    """Record the revision in the history. The next reconcile creates its servers, after the preflight."""
    entry = Entry(
        number=_number(snapshot, wanted, found),
        hash=wanted.hash,
        want=wanted.want,
        digest=found.digest,
        bytes=found.bytes,
        files=found.files,
        claim=snapshot.claim.metadata.uid if snapshot.claim is not None else "",
        seconds=found.seconds,
        is_shared=_has_shared_source(snapshot),
    )
    view = model_state.rolling(snapshot, wanted, entry, pending.for_servers(snapshot, entry))
    return model_state.told(snapshot, wanted, view, child_actions.recorded(snapshot, entry), look_again=0.0)


def _number(snapshot: Snapshot, wanted: Target, found: Prepared) -> int:
    """Return the number of the revision. A number is never reused for other content, even if the history was lost."""
    lost = wanted.lost
    if lost is not None and lost.digest == found.digest:
        return lost.number
    known = [entry.number for entry in snapshot.history] + [stray.revision for stray in snapshot.strays]
    return max((snapshot.object.status.revision, *known)) + 1


def _not_prepared(snapshot: Snapshot, wanted: Target, mishap: Mishap) -> Plan:
    before = snapshot.object.status.failure
    failed = failure.with_log(mishap.failure, snapshot.log)
    found = failure.counted(before, failed, is_attempt=mishap.is_counted)
    # Record the number of attempts before the Job is deleted.
    is_known = failure.is_known(before, found)
    passes = failure.may_pass(found) if is_known else mishap.may_pass
    return _again(snapshot, wanted, found, is_known=is_known) if passes else _failed(snapshot, wanted, found)


def _again(snapshot: Snapshot, wanted: Target, found: Failure, *, is_known: bool) -> Plan:
    """Retry a transient failure when its backoff has passed."""
    again = failure.again_at(found)
    left = max((again - snapshot.now).total_seconds(), 0.0)
    wait = _until(found, timestamp(again))
    view = model_state.after(snapshot, model_state.preparing(snapshot, wanted, wait), found)
    view = msgspec.structs.replace(view, download=None)
    actions = child_actions.ended(snapshot) if is_known and not left else ()
    return model_state.told(
        snapshot,
        wanted,
        view,
        (*actions, *child_actions.servers(snapshot, view.served)),
        look_again=None if actions else left,
    )


def _until(found: Failure, again: str) -> Wait:
    """Return the pending reason until the next attempt. An interrupted download has not failed."""
    if not found.attempts:
        return Wait(Reason.DOWNLOADING, f"{found.message} The download restarts at {again}.")
    return Wait(Reason.RETRYING, f"{found.message} Attempt {found.attempts} failed; the next one starts at {again}.")


def _failed(snapshot: Snapshot, wanted: Target, found: Failure) -> Plan:
    """Report a permanent failure, until the spec changes or the failed Job is deleted. The served revision is kept."""
    before, reason = target_revision.replaces(snapshot, wanted), failure.reason(found)
    fix = again(snapshot, snapshot.serving.names.job)
    if before is None:
        message = f"{found.message} {fix}"
    else:
        message = f"The update failed and {named(snapshot, before)} is still served: {found.message} {fix}"
    not_there = Fact("False", reason, found.message)
    view = View(
        stage="Failed",
        is_moving=False,
        reason=reason,
        message=message,
        served=before,
        downloaded=model_state.HERE if found.step == "Validate" else not_there,
        validated=not_there if wanted.want.script else None,
        failure=found,
        update_failed=None if before is None else Fact("True", reason, message),
    )
    return model_state.told(snapshot, wanted, view, child_actions.servers(snapshot, before))
