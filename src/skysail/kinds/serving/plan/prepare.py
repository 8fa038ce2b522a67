"""Preparation of a revision by one Job, while the previous revision stays served. Pure."""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Create, Plan
from skysail.core.pod_pending import PendingReason
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.objects import Job
from skysail.kinds.serving.plan import child_actions, failure, model_state, pending, target_revision
from skysail.kinds.serving.plan.child_actions import Actions
from skysail.kinds.serving.plan.failure import FetchResult, RevisionFailure
from skysail.kinds.serving.plan.status import ConditionValue, ModelState, retry_hint, revision_name
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.resources import JOB, PERSISTENT_VOLUME_CLAIM

_OTHER = PendingReason(Reason.DOWNLOADING, "The download of another revision is being stopped first.")
_ENDS = PendingReason(Reason.DOWNLOADING, "The download has finished and its result is being read.")
_BEFORE = PendingReason(Reason.DOWNLOADING, "A pod of an earlier download must terminate first.")
_GOES = PendingReason(
    Reason.VOLUME_UNAVAILABLE,
    "The model's PVC is being deleted and will be recreated. Servers that mount it delay the deletion: set "
    "spec.replicas to 0 until it is gone.",
)
_CHANGED = PendingReason(Reason.DOWNLOADING, "Settings or the size of the PVC changed, so the download is retried.")
_LOST = PendingReason(
    Reason.DOWNLOADING, "The download pod was deleted before its digest was recorded; downloading again."
)


def plan_prepare(snapshot: Snapshot, target: Target) -> Plan:
    job = snapshot.job
    if job is None:
        return _start(snapshot, target)
    if job.revision != target.hash or job.metadata.is_deleting or _is_of_another_claim(snapshot, job):
        return _in_progress(
            snapshot, target, pending.JOB_STARTING if job.is_over else _OTHER, child_actions.delete_job(snapshot)
        )
    if not job.is_over:
        return _in_progress(snapshot, target, pending.download_pending(snapshot, target))
    if not job.is_complete and _is_otherwise_now(snapshot, job):
        return _in_progress(snapshot, target, _CHANGED, child_actions.delete_job(snapshot))
    if not job.is_complete:
        return _not_prepared(snapshot, target, failure.prepare_failure(snapshot, job))
    return _done(snapshot, target, job)


def _is_of_another_claim(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the PVC was recreated after this Job, so that its download is lost."""
    if snapshot.serving.storage is None:
        return False
    pvc = snapshot.claim
    return pvc is None or (job.metadata.creation_timestamp or "") < (pvc.metadata.creation_timestamp or "")


def _is_otherwise_now(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the cause of the failure may be gone. A larger size counts once the PVC has grown."""
    model_storage, pvc = snapshot.serving.storage, snapshot.claim
    has_room = model_storage is None or (pvc is not None and pvc.has_capacity(model_storage.size))
    return has_room and job.circumstances != manifests.prepare_config_hash(snapshot.serving, snapshot.config)


def _done(snapshot: Snapshot, target: Target, job: Job) -> Plan:
    pods = snapshot.preparing(target.hash)
    pod = failure.succeeded_pod(pods)
    if pod is None:
        # The pod may have finished without the cache knowing: treat it as neither running nor deleted.
        is_gone = all(each.is_finished for each in pods)
        return _in_progress(snapshot, target, *((_LOST, child_actions.delete_job(snapshot)) if is_gone else (_ENDS,)))
    result = failure.prepared(pod)
    if result is None:
        return _not_prepared(snapshot, target, failure.missing_digest(snapshot, job, pod))
    return _succeeded(snapshot, target, result)


def _start(snapshot: Snapshot, target: Target) -> Plan:
    digest = target.lost.digest if target.lost is not None and target.is_pinned else ""
    is_shared = _has_shared_source(snapshot)
    desired = msgspec.structs.replace(snapshot.serving, ignores_cloud=snapshot.has_cloud_revision)
    job = manifests.prepare_job(
        desired, target.want, _kept(snapshot), snapshot.config, digest=digest, is_shared=is_shared
    )
    if job is None:
        return _succeeded(snapshot, target, FetchResult())
    if any(pod.prepares and not pod.is_finished for pod in snapshot.pods):
        return _in_progress(snapshot, target, _BEFORE)
    if snapshot.claim is not None and snapshot.claim.metadata.is_deleting:
        return _in_progress(snapshot, target, _GOES)
    owner, claim = child_actions.owner(snapshot), manifests.pvc(snapshot.serving)
    made: Actions = (Create(JOB, job, owner),)
    if claim is not None:
        made = (Create(PERSISTENT_VOLUME_CLAIM, claim, owner), *made)
    is_first = claim is not None and snapshot.claim is None
    pending_reason = pending.PVC_CREATED if is_first else pending.JOB_STARTING
    return _in_progress(snapshot, target, pending_reason, made)


def _has_shared_source(snapshot: Snapshot) -> bool:
    """Return whether pods on several nodes can mount the source PVC.

    A missing PVC counts as not shared: its pods then share a node, which every PVC allows.
    """
    return snapshot.source is not None and snapshot.source.is_multi_node


def _kept(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the revisions whose folders stay on the PVC: the history, and those of servers that left the history."""
    servers = {pod.revision for pod in snapshot.pods if pod.serves}
    aimed_at = {snapshot.deployment.revision} if snapshot.deployment is not None else set()
    return tuple(sorted({revision.hash for revision in snapshot.history} | servers | aimed_at))


def _in_progress(snapshot: Snapshot, target: Target, pending: PendingReason, actions: Actions = ()) -> Plan:
    state = model_state.preparing(snapshot, target, pending)
    kept = child_actions.deploy(snapshot, state.served)
    return model_state.to_plan(
        snapshot, target, state, (*actions, *kept), look_again=model_state.until_asked(snapshot, target)
    )


def _succeeded(snapshot: Snapshot, target: Target, result: FetchResult) -> Plan:
    """Record the revision in the history. The next reconcile creates its servers, after the preflight."""
    revision = Revision(
        number=_number(snapshot, target, result),
        hash=target.hash,
        want=target.want,
        digest=result.digest,
        bytes=result.bytes,
        files=result.files,
        claim=snapshot.claim.metadata.uid if snapshot.claim is not None else "",
        seconds=result.seconds,
        is_shared=_has_shared_source(snapshot),
    )
    state = model_state.rolling_out(snapshot, target, revision, pending.rollout_pending(snapshot, revision))
    return model_state.to_plan(
        snapshot, target, state, child_actions.record_revision(snapshot, revision), look_again=0.0
    )


def _number(snapshot: Snapshot, target: Target, result: FetchResult) -> int:
    """Return the number of the revision. A number is never reused for other content, even if the history was lost."""
    lost = target.lost
    if lost is not None and lost.digest == result.digest:
        return lost.number
    known = [revision.number for revision in snapshot.history] + [
        unlisted.revision for unlisted in snapshot.unlisted_revisions
    ]
    return max((snapshot.object.status.revision, *known)) + 1


def _not_prepared(snapshot: Snapshot, target: Target, failed_: RevisionFailure) -> Plan:
    previous = snapshot.object.status.failure
    failed = failure.with_log(failed_.failure, snapshot.log)
    found = failure.with_attempt_count(previous, failed, is_attempt=failed_.is_counted)
    # Record the number of attempts before the Job is deleted.
    is_known = failure.is_recorded(previous, found)
    passes = failure.is_transient(found) if is_known else failed_.is_transient
    return _retry(snapshot, target, found, is_known=is_known) if passes else _fail(snapshot, target, found)


def _retry(snapshot: Snapshot, target: Target, found: Failure, *, is_known: bool) -> Plan:
    """Retry a transient failure when its backoff has passed."""
    again = failure.next_retry(found)
    seconds_left = max((again - snapshot.now).total_seconds(), 0.0)
    pending = _until(found, timestamp(again))
    state = model_state.with_failure(snapshot, model_state.preparing(snapshot, target, pending), found)
    state = msgspec.structs.replace(state, download=None)
    actions = child_actions.delete_job(snapshot) if is_known and not seconds_left else ()
    return model_state.to_plan(
        snapshot,
        target,
        state,
        (*actions, *child_actions.deploy(snapshot, state.served)),
        look_again=None if actions else seconds_left,
    )


def _until(failure: Failure, again: str) -> PendingReason:
    """Return the pending reason until the next attempt. An interrupted download has not failed."""
    if not failure.attempts:
        return PendingReason(Reason.DOWNLOADING, f"{failure.message} The download restarts at {again}.")
    return PendingReason(
        Reason.RETRYING, f"{failure.message} Attempt {failure.attempts} failed; the next one starts at {again}."
    )


def _fail(snapshot: Snapshot, target: Target, found: Failure) -> Plan:
    """Report a permanent failure, until the spec changes or the failed Job is deleted. The served revision is kept."""
    previous, reason = target_revision.served_instead(snapshot, target), failure.reason(found)
    fix = retry_hint(snapshot, snapshot.serving.names.job)
    if previous is None:
        message = f"{found.message} {fix}"
    else:
        message = f"The update failed and {revision_name(snapshot, previous)} is still served: {found.message} {fix}"
    not_there = ConditionValue("False", reason, found.message)
    state = ModelState(
        stage="Failed",
        is_moving=False,
        reason=reason,
        message=message,
        served=previous,
        downloaded=model_state.DOWNLOADED if found.step == "Validate" else not_there,
        validated=not_there if target.want.script else None,
        failure=found,
        update_failed=None if previous is None else ConditionValue("True", reason, message),
    )
    return model_state.to_plan(snapshot, target, state, child_actions.deploy(snapshot, previous))
