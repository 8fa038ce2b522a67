"""Views of a model while a revision is prepared or rolled out, shared by the planner's branches. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from skysail.base.names import Condition as Type
from skysail.base.names import Reason
from skysail.core import conditions
from skysail.core.actions import Plan
from skysail.core.pod_pending import Wait
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
from skysail.kinds.serving.plan.status import Fact, View
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry

# Time until every node has applied a change of a Service.
_EVERY_NODE = timedelta(seconds=10)
HERE = Fact("True", Reason.DOWNLOADED, "The model was downloaded.")
_BEFORE = " Last of "
_AWAITED = Fact("Unknown", Reason.DOWNLOADING, "The download has not finished.")


def told(snapshot: Snapshot, wanted: Target, view: View, actions: Actions, *, look_again: float | None = None) -> Plan:
    """Return a plan that executes the actions and writes the status for this view."""
    shown = status.shown(snapshot, view)
    return Plan(
        # The PVC expansion is last, because the API server may reject it and must not block the rest.
        actions=(*child_actions.forgiven(snapshot, wanted), *actions, *child_actions.grown(snapshot)),
        status=shown,
        notes=events.news(snapshot, wanted, shown),
        look_again=look_again,
    )


def preparing(snapshot: Snapshot, wanted: Target, wait: Wait) -> View:
    """Return the view while a revision is downloaded and validated."""
    known, is_here = snapshot.object.status, wait.reason == Reason.VALIDATING
    awaited = Fact("Unknown", Reason.VALIDATING, "The validation script has not finished.")
    download = snapshot.download or (known.download if known.candidate == wanted.hash else None)
    view = View(
        stage="Storage" if wait.reason == Reason.VOLUME_UNAVAILABLE else "Prepare",
        is_moving=True,
        reason=wait.reason,
        message=wait.message,
        served=target_revision.served(snapshot),
        candidate=wanted.hash,
        downloaded=HERE if is_here else _AWAITED,
        validated=awaited if wanted.want.script else None,
        download=None if is_here else download,
    )
    # Keep the recorded failure: it holds the number of attempts.
    before = known.failure if known.failure is not None and known.failure.revision == wanted.hash else None
    return view if before is None else after(snapshot, view, before)


def after(snapshot: Snapshot, view: View, failed: Failure) -> View:
    """Return the view after a failed attempt.

    A lasting failure is shown as failed, also while the next attempt runs.
    """
    view = msgspec.structs.replace(view, failure=failed)
    if not failure.is_lasting(failed):
        return view
    # The message may be that of the previous status, which already ends with the failure.
    now = view.message.partition(_BEFORE)[0]
    message = now if view.reason == Reason.RETRYING else f"{now}{_BEFORE}{failed.attempts} failures: {failed.message}"
    view = msgspec.structs.replace(view, stage="Failed", message=message)
    if view.served is None:
        return view
    why = (
        f"{failed.message} After {failed.attempts} attempts, Skysail keeps retrying and "
        f"{status.named(snapshot, view.served)} is still served."
    )
    return msgspec.structs.replace(view, update_failed=Fact("True", failure.reason(failed), why))


def rolling(snapshot: Snapshot, wanted: Target, entry: Entry, wait: Wait) -> View:
    """Return the view while the servers of a revision start."""
    before = target_revision.served(snapshot)
    return View(
        stage="Deploy",
        is_moving=True,
        reason=wait.reason,
        message=wait.message,
        served=before,
        candidate=wanted.hash if before is None or before.hash != entry.hash else "",
        downloaded=downloaded(entry),
        validated=validated(entry),
        rolled_back=_pinned(snapshot, entry) if wanted.is_pinned else None,
    )


def downloaded(entry: Entry) -> Fact:
    if not entry.digest:
        return Fact("True", Reason.DOWNLOADED, "The model is part of the server image.")
    amount = f"{entry.files} files" if entry.files > 1 else "1 file"
    return Fact("True", Reason.DOWNLOADED, f"Downloaded {pending.size(entry.bytes)} in {amount}, {entry.digest}.")


def validated(entry: Entry) -> Fact | None:
    return Fact("True", Reason.VALIDATED, "The validation script succeeded.") if entry.want.script else None


def _pinned(snapshot: Snapshot, entry: Entry) -> Fact:
    what = f"{status.named(snapshot, entry)} is being rolled out because spec.rollbackTo names it."
    return Fact("False", Reason.ROLLING_OUT, what)


def until_known(snapshot: Snapshot) -> float:
    """Return the seconds until every node routes requests to the new servers after a take-over."""
    ready = conditions.find(snapshot.object.status.conditions, Type.READY)
    if ready is None or ready.status != "True":
        return _EVERY_NODE.total_seconds()
    since = snapshot.now - datetime.fromisoformat(ready.last_transition_time)
    return max((_EVERY_NODE - since).total_seconds(), 0.0)


def until_asked(snapshot: Snapshot, wanted: Target) -> float | None:
    """Return the seconds until the next look at the download's progress or at the reason why a pod is pending."""
    pods = (*snapshot.preparing(wanted.hash), *snapshot.serving_pods(wanted.hash))
    if not pods and wanted.entry is not None:
        return None
    soon = download_progress.until_asked(snapshot, pods)
    return pending.until_silent(snapshot, pods) if soon is None else soon
