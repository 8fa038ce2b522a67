"""Plan of a model: prepare the target revision, roll it out beside the old one, then switch over. Pure.

A failure is written to the status first. Only the next reconcile restores the servers of the last good revision. So a
restart after a crash finds either the evidence or the recorded failure, and the served revision stays served.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.core import finalizers
from skysail.core.actions import Delete, Event, Plan
from skysail.core.pod_pending import PendingReason
from skysail.kinds.serving.admission.validation import validate
from skysail.kinds.serving.plan import (
    child_actions,
    claim_period,
    failure,
    model_state,
    pending,
    prepare,
    status,
    target_revision,
)
from skysail.kinds.serving.plan.child_actions import Actions
from skysail.kinds.serving.plan.failure import RevisionFailure
from skysail.kinds.serving.plan.status import ConditionValue, ModelState, Status, revision_name
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import DEPLOYMENT

_ANOTHER_CHANCE = PendingReason(Reason.ROLLING_OUT, "No earlier revision to roll back to; retrying this one.")


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return _end(snapshot)
    made = _plan(snapshot)
    waits = [each for each in (made.requeue_after, claim_period.until_due(snapshot)) if each is not None]
    return msgspec.structs.replace(made, requeue_after=min(waits, default=None))


def _plan(snapshot: Snapshot) -> Plan:
    errors = validate(snapshot.object, snapshot.config)
    if errors:
        return _unfit(snapshot, " ".join(errors))
    target = target_revision.target(snapshot)
    if target is None:
        return _unpinned(snapshot)
    if target.entry is None:
        return prepare.plan_prepare(snapshot, target)
    return _serve(snapshot, target, target.entry)


def refused(snapshot: Snapshot, event: Event) -> Plan:
    """Return the plan after a rejected write. A PVC that cannot grow must not hide the rest of the status."""
    names, pvc = snapshot.serving.names, snapshot.claim
    if pvc is None or not child_actions.expand_pvc(snapshot) or names.claim not in event.message:
        return Plan(status=status.write_rejected(snapshot, event), events=(event,))
    new_status = plan(snapshot).status
    assert isinstance(new_status, Status), "the plan of a model that owns a PVC has a status"
    return Plan(status=status.expansion_failed(snapshot, new_status, pvc, event.message), events=(event,))


def _end(snapshot: Snapshot) -> Plan:
    """Remove our finalizers; the garbage collector deletes the children. Other finalizers may still hold the model."""
    model = snapshot.object
    freed = finalizers.remove_legacy_finalizers(snapshot.serving.kind.resource, model)
    is_held = bool(freed[0].finalizers if freed else model.metadata.finalizers)
    return Plan(actions=freed, status=status.terminating(snapshot) if is_held else None)


def _serve(snapshot: Snapshot, target: Target, revision: Revision) -> Plan:
    """Roll out a prepared revision: its servers replace those of the previous one, one by one."""
    if revision.outcome == "failed" or target_revision.has_failed(snapshot, target):
        return _go_back(snapshot, target, revision)
    if snapshot.preflight_error is not None:
        unwanted = failure.rejected_spec(snapshot, revision, snapshot.preflight_error)
        return _failing(
            snapshot,
            target,
            unwanted,
            model_state.rolling_out(snapshot, target, revision, _failure_reason(unwanted)),
            (),
        )
    actions = (*child_actions.cancel_obsolete_job(snapshot, target), *child_actions.deploy(snapshot, revision))
    if child_actions.is_rolled_out(snapshot, revision):
        return _served(snapshot, target, revision, actions)
    failed = failure.rollout_failure(snapshot, revision)
    if failed is not None:
        return _failing(
            snapshot,
            target,
            failed,
            model_state.rolling_out(snapshot, target, revision, _failure_reason(failed)),
            actions,
        )
    state = model_state.rolling_out(snapshot, target, revision, pending.rollout_pending(snapshot, revision))
    return model_state.to_plan(snapshot, target, state, actions, look_again=model_state.until_asked(snapshot, target))


def _served(snapshot: Snapshot, target: Target, revision: Revision, actions: Actions) -> Plan:
    revision = child_actions.renumber(snapshot, target, revision)
    pinned = (
        f"{revision_name(snapshot, revision)} is served because spec.rollbackTo names it: remove spec.rollbackTo "
        "to serve the "
        "current spec."
    )
    state = ModelState(
        stage="Ready",
        is_moving=False,
        reason=Reason.SERVED,
        message=f"All servers run revision {revision.number}.",
        served=revision,
        downloaded=model_state.downloaded(revision),
        validated=model_state.validated(revision),
        rolled_back=ConditionValue("True", Reason.PINNED, pinned) if target.is_pinned else None,
    )
    # With zero replicas no server was ever ready, so the revision is not yet known to be good.
    has_answered = snapshot.deployment is not None and snapshot.deployment.status.available_replicas > 0
    marked = child_actions.mark_outcome(snapshot, revision, "served") if has_answered else ()
    done = (*marked, *actions, *child_actions.prune_history(snapshot, target))
    if snapshot.predecessor is None:
        return model_state.to_plan(snapshot, target, state, done)
    return _succeed(snapshot, target, state, done, snapshot.predecessor)


def _succeed(snapshot: Snapshot, target: Target, state: ModelState, actions: Actions, previous: Object) -> Plan:
    """Delete the Deployment of the previous operator once every node routes requests to our servers."""
    seconds_left = model_state.until_known(snapshot)
    if not seconds_left:
        return model_state.to_plan(snapshot, target, state, (*actions, Delete(DEPLOYMENT, previous)))
    message = (
        f"Deployment {previous.metadata.name} of the previous operator will be deleted, because the Services now route "
        "to new servers."
    )
    state = msgspec.structs.replace(state, is_moving=True, reason=Reason.ADOPTING, message=message)
    return model_state.to_plan(snapshot, target, state, actions, look_again=seconds_left)


def _failing(snapshot: Snapshot, target: Target, failed: RevisionFailure, state: ModelState, actions: Actions) -> Plan:
    """Record that the servers failed. The next reconcile rolls back if it can; otherwise the servers may recover."""
    found, previous = failure.with_log(failed.failure, snapshot.log), target_revision.recorded_failure(snapshot, target)
    if previous is not None and (previous.reason, previous.exit_code) == (found.reason, found.exit_code):
        found = previous
    state = msgspec.structs.replace(state, stage="Failed", is_moving=False, failure=found)
    if target_revision.served_instead(snapshot, target) is not None:
        return model_state.to_plan(snapshot, target, state, (), look_again=0.0)
    return model_state.to_plan(snapshot, target, state, actions)


def _go_back(snapshot: Snapshot, target: Target, revision: Revision) -> Plan:
    """Restore the servers of the last good revision, until the spec asks for another one."""
    previous, found = (
        target_revision.served_instead(snapshot, target),
        target_revision.recorded_failure(snapshot, target),
    )
    if previous is None:
        state = model_state.rolling_out(snapshot, target, revision, _ANOTHER_CHANCE)
        return model_state.to_plan(snapshot, target, state, child_actions.mark_outcome(snapshot, revision, ""))
    why_text = found.message if found is not None else "Its servers failed."
    reason = failure.reason(found) if found is not None else Reason.UPDATE_FAILED
    message = (
        f"{revision_name(snapshot, revision)} failed and {revision_name(snapshot, previous)} is still "
        f"served: {why_text} {status.retry_hint(snapshot)}"
    )
    again = f"{revision_name(snapshot, previous)} is served again because revision {revision.number} failed."
    is_back = child_actions.is_rolled_out(snapshot, previous)
    state = ModelState(
        stage="Deploy",
        is_moving=not is_back,
        reason=Reason.UPDATE_FAILED if is_back else Reason.ROLLING_OUT,
        message=message,
        served=previous,
        downloaded=model_state.downloaded(revision),
        validated=model_state.validated(revision),
        failure=found,
        update_failed=ConditionValue("True", reason, message),
        rolled_back=ConditionValue("True", Reason.UPDATE_FAILED, again),
    )
    marked, cleared = (
        child_actions.mark_outcome(snapshot, revision, "failed"),
        child_actions.cancel_obsolete_job(snapshot, target),
    )
    tidied = (*cleared, *child_actions.deploy(snapshot, previous), *child_actions.prune_history(snapshot, target))
    return model_state.to_plan(snapshot, target, state, (*marked, *tidied))


def _unfit(snapshot: Snapshot, message: str) -> Plan:
    """Report a spec that bypassed admission. Nothing starts until it is fixed; the served revision is kept."""
    new_status = status.invalid_spec(snapshot, message)
    events = (Event(Reason.INVALID_SPEC, message, warning=True),) if new_status != snapshot.object.status else ()
    return Plan(
        actions=child_actions.deploy(snapshot, target_revision.served(snapshot)), status=new_status, events=events
    )


def _unpinned(snapshot: Snapshot) -> Plan:
    """Report that the revision in spec.rollbackTo does not exist. The served revision is kept."""
    previous, number = target_revision.served(snapshot), snapshot.serving.rollback_to
    numbers = ", ".join(str(revision.number) for revision in snapshot.history)
    if numbers:
        message = f"spec.rollbackTo is {number}, but the history has {numbers}: name one of them or remove the field."
    else:
        message = f"spec.rollbackTo is {number}, but no revision was served yet: remove the field."
    state = ModelState(
        stage="Failed",
        is_moving=False,
        reason=Reason.REVISION_NOT_FOUND,
        message=message,
        served=previous,
        downloaded=None if previous is None else model_state.downloaded(previous),
        validated=None if previous is None else model_state.validated(previous),
        failure=snapshot.object.status.failure,
        update_failed=None if previous is None else ConditionValue("True", Reason.REVISION_NOT_FOUND, message),
    )
    new_status = status.build(snapshot, state)
    events = (Event(Reason.REVISION_NOT_FOUND, message, warning=True),) if new_status != snapshot.object.status else ()
    return Plan(actions=child_actions.deploy(snapshot, previous), status=new_status, events=events)


def _failure_reason(failed: RevisionFailure) -> PendingReason:
    return PendingReason(failure.reason(failed.failure), failed.failure.message)
