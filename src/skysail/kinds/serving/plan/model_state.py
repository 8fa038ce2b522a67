"""Views of a model while a revision is prepared or rolled out, shared by the planner's branches. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.core.actions import Plan
from skysail.core.pod_pending import PendingReason
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.plan import (
    child_actions,
    download_progress,
    events,
    failure,
    pending,
    status,
    target_revision,
)
from skysail.kinds.serving.plan.child_actions import Actions
from skysail.kinds.serving.plan.status import ConditionValue, ModelState
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision

# Time until every node has applied a change of a Service.
_EVERY_NODE = timedelta(seconds=10)
DOWNLOADED = ConditionValue("True", Reason.DOWNLOADED, "The model was downloaded.")
_BEFORE = " Last of "
_AWAITED = ConditionValue("Unknown", Reason.DOWNLOADING, "The download has not finished.")


def to_plan(
    snapshot: Snapshot, target: Target, state: ModelState, actions: Actions, *, look_again: float | None = None
) -> Plan:
    """Return a plan that executes the actions and writes the status for this view."""
    new_status = status.build(snapshot, state)
    return Plan(
        # The PVC expansion is last, because the API server may reject it and must not block the rest.
        actions=(*child_actions.reset_failed(snapshot, target), *actions, *child_actions.expand_pvc(snapshot)),
        status=new_status,
        events=events.plan_events(snapshot, target, new_status),
        requeue_after=look_again,
    )


def preparing(snapshot: Snapshot, target: Target, pending: PendingReason) -> ModelState:
    """Return the view while a revision is downloaded and validated."""
    known, is_here = snapshot.object.status, pending.reason == Reason.VALIDATING
    awaited = ConditionValue("Unknown", Reason.VALIDATING, "The validation script has not finished.")
    download = snapshot.download or (known.download if known.candidate == target.hash else None)
    state = ModelState(
        stage="Storage" if pending.reason == Reason.VOLUME_UNAVAILABLE else "Prepare",
        is_moving=True,
        reason=pending.reason,
        message=pending.message,
        served=target_revision.served(snapshot),
        candidate=target.hash,
        downloaded=DOWNLOADED if is_here else _AWAITED,
        validated=awaited if target.want.script else None,
        download=None if is_here else download,
    )
    # Keep the recorded failure: it holds the number of attempts.
    previous = known.failure if known.failure is not None and known.failure.revision == target.hash else None
    return state if previous is None else with_failure(snapshot, state, previous)


def with_failure(snapshot: Snapshot, state: ModelState, failed: Failure) -> ModelState:
    """Return the view after a failed attempt.

    A lasting failure is shown as failed, also while the next attempt runs.
    """
    state = msgspec.structs.replace(state, failure=failed, downloaded=_not_downloaded(state, failed))
    if not failure.is_persistent(failed):
        return state
    # The message may be that of the previous status, which already ends with the failure.
    now = state.message.partition(_BEFORE)[0]
    message = now if state.reason == Reason.RETRYING else f"{now}{_BEFORE}{failed.attempts} failures: {failed.message}"
    state = msgspec.structs.replace(state, stage="Failed", message=message)
    if state.served is None:
        return state
    reason = (
        f"{failed.message} After {failed.attempts} attempts, Skysail keeps retrying and "
        f"{status.revision_name(snapshot, state.served)} is still served."
    )
    return msgspec.structs.replace(state, update_failed=ConditionValue("True", failure.reason(failed), reason))


def _not_downloaded(state: ModelState, failed: Failure) -> ConditionValue | None:
    """Return the condition after a failed attempt: it shows at once, and stays while the next attempt runs.

    An interruption from outside is no failed attempt, and a download that is being validated has succeeded.
    """
    if not failed.attempts or state.downloaded == DOWNLOADED or failed.step == "Validate":
        return state.downloaded
    return ConditionValue("False", failure.reason(failed), failed.message)


def rolling_out(snapshot: Snapshot, target: Target, revision: Revision, pending: PendingReason) -> ModelState:
    """Return the view while the servers of a revision start."""
    previous = target_revision.served(snapshot)
    return ModelState(
        stage="Deploy",
        is_moving=True,
        reason=pending.reason,
        message=pending.message,
        served=previous,
        candidate=target.hash if previous is None or previous.hash != revision.hash else "",
        downloaded=downloaded(revision),
        validated=validated(revision),
        rolled_back=_pinned(snapshot, revision) if target.is_pinned else None,
    )


def downloaded(revision: Revision) -> ConditionValue:
    if not revision.digest:
        return ConditionValue("True", Reason.DOWNLOADED, "The model is part of the server image.")
    amount = f"{revision.files} files" if revision.files > 1 else "1 file"
    return ConditionValue(
        "True", Reason.DOWNLOADED, f"Downloaded {pending.size(revision.bytes)} in {amount}, {revision.digest}."
    )


def validated(revision: Revision) -> ConditionValue | None:
    return (
        ConditionValue("True", Reason.VALIDATED, "The validation script succeeded.") if revision.want.script else None
    )


def _pinned(snapshot: Snapshot, revision: Revision) -> ConditionValue:
    what = f"{status.revision_name(snapshot, revision)} is being rolled out because spec.rollbackTo names it."
    return ConditionValue("False", Reason.ROLLING_OUT, what)


def until_known(snapshot: Snapshot) -> float:
    """Return the seconds until every node routes requests to the new servers after a take-over."""
    ready = conditions.find_condition(snapshot.object.status.conditions, Type.READY)
    if ready is None or ready.status != "True":
        return _EVERY_NODE.total_seconds()
    since = snapshot.now - datetime.fromisoformat(ready.last_transition_time)
    return max((_EVERY_NODE - since).total_seconds(), 0.0)


def until_asked(snapshot: Snapshot, target: Target) -> float | None:
    """Return the seconds until the next look at the download's progress or at the reason why a pod is pending."""
    pods = (*snapshot.preparing(target.hash), *snapshot.serving_pods(target.hash))
    if not pods and target.entry is not None:
        return None
    soon = download_progress.next_poll(snapshot, pods)
    return pending.until_unresponsive(snapshot, pods) if soon is None else soon
