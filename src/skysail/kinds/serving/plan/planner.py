"""Plan of a model: prepare the target revision, roll it out beside the old one, then switch over. Pure.

A failure is written to the status first. Only the next reconcile restores the servers of the last good revision. So a
restart after a crash finds either the evidence or the recorded failure, and the served revision stays served.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.core import finalizers
from skysail.core.actions import Delete, Note, Plan
from skysail.core.pod_pending import Wait
from skysail.kinds.serving.admission.validation import objections
from skysail.kinds.serving.plan import child_actions, failure, model_state, pending, prepare, status, target_revision
from skysail.kinds.serving.plan.child_actions import Actions
from skysail.kinds.serving.plan.failure import Mishap
from skysail.kinds.serving.plan.status import Fact, Status, View, named
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import DEPLOYMENT

_ANOTHER_CHANCE = Wait(Reason.ROLLING_OUT, "No earlier revision to roll back to; retrying this one.")


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return _end(snapshot)
    wrong = objections(snapshot.object, snapshot.terms)
    if wrong:
        return _unfit(snapshot, " ".join(wrong))
    wanted = target_revision.target(snapshot)
    if wanted is None:
        return _unpinned(snapshot)
    if wanted.entry is None:
        return prepare.prepare(snapshot, wanted)
    return _serve(snapshot, wanted, wanted.entry)


def refused(snapshot: Snapshot, why: Note) -> Plan:
    """Return the plan after a rejected write. A PVC that cannot grow must not hide the rest of the status."""
    names, claim = snapshot.serving.names, snapshot.claim
    if claim is None or not child_actions.grown(snapshot) or names.claim not in why.message:
        return Plan(status=status.refused(snapshot, why), notes=(why,))
    shown = plan(snapshot).status
    assert isinstance(shown, Status), "the plan of a model that owns a PVC has a status"
    return Plan(status=status.not_grown(snapshot, shown, claim, why.message), notes=(why,))


def _end(snapshot: Snapshot) -> Plan:
    """Remove our finalizers; the garbage collector deletes the children. Other finalizers may still hold the model."""
    model = snapshot.object
    freed = finalizers.let_go(snapshot.serving.kind.resource, model)
    is_held = bool(freed[0].finalizers if freed else model.metadata.finalizers)
    return Plan(actions=freed, status=status.ending(snapshot) if is_held else None)


def _serve(snapshot: Snapshot, wanted: Target, entry: Entry) -> Plan:
    """Roll out a prepared revision: its servers replace those of the previous one, one by one."""
    if entry.outcome == "failed" or target_revision.is_condemned(snapshot, wanted):
        return _go_back(snapshot, wanted, entry)
    if snapshot.refusal is not None:
        unwanted = failure.of_refusal(snapshot, entry, snapshot.refusal)
        return _failing(snapshot, wanted, unwanted, model_state.rolling(snapshot, wanted, entry, _said(unwanted)), ())
    actions = (*child_actions.cleared(snapshot, wanted), *child_actions.servers(snapshot, entry))
    if child_actions.is_rolled_out(snapshot, entry):
        return _served(snapshot, wanted, entry, actions)
    mishap = failure.of_servers(snapshot, entry)
    if mishap is not None:
        return _failing(snapshot, wanted, mishap, model_state.rolling(snapshot, wanted, entry, _said(mishap)), actions)
    view = model_state.rolling(snapshot, wanted, entry, pending.for_servers(snapshot, entry))
    return model_state.told(snapshot, wanted, view, actions, look_again=model_state.until_asked(snapshot, wanted))


def _served(snapshot: Snapshot, wanted: Target, entry: Entry, actions: Actions) -> Plan:
    entry = child_actions.renewed(snapshot, wanted, entry)
    pinned = (
        f"{named(snapshot, entry)} is served because spec.rollbackTo names it: remove spec.rollbackTo to serve the "
        "current spec."
    )
    view = View(
        stage="Ready",
        is_moving=False,
        reason=Reason.SERVED,
        message=f"All servers run revision {entry.number}.",
        served=entry,
        downloaded=model_state.downloaded(entry),
        validated=model_state.validated(entry),
        rolled_back=Fact("True", Reason.PINNED, pinned) if wanted.is_pinned else None,
    )
    # With zero replicas no server was ever ready, so the revision is not yet known to be good.
    has_answered = snapshot.deployment is not None and snapshot.deployment.status.available_replicas > 0
    marked = child_actions.marked(snapshot, entry, "served") if has_answered else ()
    done = (*marked, *actions, *child_actions.pruned(snapshot, wanted))
    if snapshot.predecessor is None:
        return model_state.told(snapshot, wanted, view, done)
    return _succeed(snapshot, wanted, view, done, snapshot.predecessor)


def _succeed(snapshot: Snapshot, wanted: Target, view: View, actions: Actions, before: Object) -> Plan:
    """Delete the Deployment of the previous operator once every node routes requests to our servers."""
    left = model_state.until_known(snapshot)
    if not left:
        return model_state.told(snapshot, wanted, view, (*actions, Delete(DEPLOYMENT, before)))
    message = (
        f"Deployment {before.metadata.name} of the previous operator will be deleted, because the Services now route "
        "to new servers."
    )
    view = msgspec.structs.replace(view, is_moving=True, reason=Reason.TAKING_OVER, message=message)
    return model_state.told(snapshot, wanted, view, actions, look_again=left)


def _failing(snapshot: Snapshot, wanted: Target, mishap: Mishap, view: View, actions: Actions) -> Plan:
    """Record that the servers failed. The next reconcile rolls back if it can; otherwise the servers may recover."""
    found, known = failure.with_log(mishap.failure, snapshot.log), target_revision.verdict(snapshot, wanted)
    if known is not None and (known.reason, known.exit_code) == (found.reason, found.exit_code):
        found = known
    view = msgspec.structs.replace(view, stage="Failed", is_moving=False, failure=found)
    if target_revision.replaces(snapshot, wanted) is not None:
        return model_state.told(snapshot, wanted, view, (), look_again=0.0)
    return model_state.told(snapshot, wanted, view, actions)


def _go_back(snapshot: Snapshot, wanted: Target, entry: Entry) -> Plan:
    """Restore the servers of the last good revision, until the spec asks for another one."""
    before, found = target_revision.replaces(snapshot, wanted), target_revision.verdict(snapshot, wanted)
    if before is None:
        view = model_state.rolling(snapshot, wanted, entry, _ANOTHER_CHANCE)
        return model_state.told(snapshot, wanted, view, child_actions.marked(snapshot, entry, ""))
    why = found.message if found is not None else "Its servers failed."
    reason = failure.reason(found) if found is not None else Reason.UPDATE_FAILED
    message = (
        f"{named(snapshot, entry)} failed and {named(snapshot, before)} is still served: {why} {status.again(snapshot)}"
    )
    again = f"{named(snapshot, before)} is served again because revision {entry.number} failed."
    is_back = child_actions.is_rolled_out(snapshot, before)
    view = View(
        stage="Deploy",
        is_moving=not is_back,
        reason=Reason.UPDATE_FAILED if is_back else Reason.ROLLING_OUT,
        message=message,
        served=before,
        downloaded=model_state.downloaded(entry),
        validated=model_state.validated(entry),
        failure=found,
        update_failed=Fact("True", reason, message),
        rolled_back=Fact("True", Reason.UPDATE_FAILED, again),
    )
    marked, cleared = child_actions.marked(snapshot, entry, "failed"), child_actions.cleared(snapshot, wanted)
    tidied = (*cleared, *child_actions.servers(snapshot, before), *child_actions.pruned(snapshot, wanted))
    return model_state.told(snapshot, wanted, view, (*marked, *tidied))


def _unfit(snapshot: Snapshot, why: str) -> Plan:
    """Report a spec that bypassed admission. Nothing starts until it is fixed; the served revision is kept."""
    shown = status.unfit(snapshot, why)
    notes = (Note(Reason.INVALID_SPEC, why, warning=True),) if shown != snapshot.object.status else ()
    return Plan(actions=child_actions.servers(snapshot, target_revision.served(snapshot)), status=shown, notes=notes)


def _unpinned(snapshot: Snapshot) -> Plan:
    """Report that the revision in spec.rollbackTo does not exist. The served revision is kept."""
    before, number = target_revision.served(snapshot), snapshot.serving.rollback_to
    numbers = ", ".join(str(entry.number) for entry in snapshot.history)
    if numbers:
        message = f"spec.rollbackTo is {number}, but the history has {numbers}: name one of them or remove the field."
    else:
        message = f"spec.rollbackTo is {number}, but no revision was served yet: remove the field."
    view = View(
        stage="Failed",
        is_moving=False,
        reason=Reason.REVISION_NOT_FOUND,
        message=message,
        served=before,
        downloaded=None if before is None else model_state.downloaded(before),
        validated=None if before is None else model_state.validated(before),
        failure=snapshot.object.status.failure,
        update_failed=None if before is None else Fact("True", Reason.REVISION_NOT_FOUND, message),
    )
    shown = status.shown(snapshot, view)
    notes = (Note(Reason.REVISION_NOT_FOUND, message, warning=True),) if shown != snapshot.object.status else ()
    return Plan(actions=child_actions.servers(snapshot, before), status=shown, notes=notes)


def _said(mishap: Mishap) -> Wait:
    return Wait(failure.reason(mishap.failure), mishap.failure.message)
