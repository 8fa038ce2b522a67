"""The life of a model: the revision that is wanted is made ready, served beside the old one, and takes over. Pure.

What goes wrong is written into the status first; only then the servers of the last good revision are asked for again.
So whoever comes after a crash finds either the evidence or the verdict, and what is served stays served.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Reason
from skysail.core import finalizers
from skysail.core.actions import Delete, Note, Plan
from skysail.core.obstacles import Wait
from skysail.kinds.model import failure, preparation, status, targets, upkeep, views, waiting
from skysail.kinds.model.failure import Mishap
from skysail.kinds.model.objections import objections
from skysail.kinds.model.revisions import Entry
from skysail.kinds.model.snapshot import Snapshot
from skysail.kinds.model.status import Fact, Status, View, named
from skysail.kinds.model.targets import Target
from skysail.kinds.model.upkeep import Actions
from skysail.kube.objects import Object
from skysail.kube.resources import DEPLOYMENT

_ANOTHER_CHANCE = Wait(Reason.ROLLING_OUT, "Nothing is left to go back to, so its servers are asked for again.")


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return _end(snapshot)
    wrong = objections(snapshot.object, snapshot.terms)
    if wrong:
        return _unfit(snapshot, " ".join(wrong))
    wanted = targets.target(snapshot)
    if wanted is None:
        return _unpinned(snapshot)
    if wanted.entry is None:
        return preparation.prepare(snapshot, wanted)
    return _serve(snapshot, wanted, wanted.entry)


def refused(snapshot: Snapshot, why: Note) -> Plan:
    """A claim that cannot grow keeps nothing else from being done, and so from being told."""
    names, claim = snapshot.serving.names, snapshot.claim
    if claim is None or not upkeep.grown(snapshot) or names.claim not in why.message:
        return Plan(status=status.refused(snapshot, why), notes=(why,))
    shown = plan(snapshot).status
    assert isinstance(shown, Status), "whoever has a claim is told of"
    return Plan(status=status.not_grown(snapshot, shown, claim, why.message), notes=(why,))


def _end(snapshot: Snapshot) -> Plan:
    """Its children go with it. Somebody else may hold it."""
    model = snapshot.object
    freed = finalizers.let_go(snapshot.serving.kind.resource, model)
    is_held = bool(freed[0].finalizers if freed else model.metadata.finalizers)
    return Plan(actions=freed, status=status.ending(snapshot) if is_held else None)


def _serve(snapshot: Snapshot, wanted: Target, entry: Entry) -> Plan:
    """The revision was found good: its servers replace those of the one before, one by one."""
    if entry.outcome == "failed" or targets.is_condemned(snapshot, wanted):
        return _go_back(snapshot, wanted, entry)
    if snapshot.refusal is not None:
        unwanted = failure.of_refusal(snapshot, entry, snapshot.refusal)
        return _failing(snapshot, wanted, unwanted, views.rolling(snapshot, wanted, entry, _said(unwanted)), ())
    actions = (*upkeep.cleared(snapshot, wanted), *upkeep.servers(snapshot, entry))
    if upkeep.is_rolled_out(snapshot, entry):
        return _served(snapshot, wanted, entry, actions)
    mishap = failure.of_servers(snapshot, entry)
    if mishap is not None:
        return _failing(snapshot, wanted, mishap, views.rolling(snapshot, wanted, entry, _said(mishap)), actions)
    view = views.rolling(snapshot, wanted, entry, waiting.for_servers(snapshot, entry))
    return views.told(snapshot, wanted, view, actions, look_again=views.until_asked(snapshot, wanted))


def _served(snapshot: Snapshot, wanted: Target, entry: Entry, actions: Actions) -> Plan:
    entry = upkeep.renewed(snapshot, wanted, entry)
    pinned = (
        f"{named(snapshot, entry)} is served because spec.rollbackTo names it. Remove that to serve what the spec says."
    )
    view = View(
        stage="Ready",
        is_moving=False,
        reason=Reason.SERVED,
        message=f"All servers are of revision {entry.number}.",
        served=entry,
        downloaded=views.downloaded(entry),
        validated=views.validated(entry),
        rolled_back=Fact("True", Reason.PINNED, pinned) if wanted.is_pinned else None,
    )
    # Where no server is wanted, none has answered: nobody knows yet whether it is one to go back to.
    has_answered = snapshot.deployment is not None and snapshot.deployment.status.available_replicas > 0
    marked = upkeep.marked(snapshot, entry, "served") if has_answered else ()
    done = (*marked, *actions, *upkeep.pruned(snapshot, wanted))
    if snapshot.predecessor is None:
        return views.told(snapshot, wanted, view, done)
    return _succeed(snapshot, wanted, view, done, snapshot.predecessor)


def _succeed(snapshot: Snapshot, wanted: Target, view: View, actions: Actions, before: Object) -> Plan:
    """What an operator before us served the model by ends, a while after every request leads to ours."""
    left = views.until_known(snapshot)
    if not left:
        return views.told(snapshot, wanted, view, (*actions, Delete(DEPLOYMENT, before)))
    message = (
        f"The Services lead to servers of ours. Deployment {before.metadata.name} is not needed any more, and ends."
    )
    view = msgspec.structs.replace(view, is_moving=True, reason=Reason.TAKING_OVER, message=message)
    return views.told(snapshot, wanted, view, actions, look_again=left)


def _failing(snapshot: Snapshot, wanted: Target, mishap: Mishap, view: View, actions: Actions) -> Plan:
    """Servers that will not answer. Where there is a revision to go back to, the next pass does; else they may heal."""
    found, known = failure.with_log(mishap.failure, snapshot.log), targets.verdict(snapshot, wanted)
    if known is not None and (known.reason, known.exit_code) == (found.reason, found.exit_code):
        found = known
    view = msgspec.structs.replace(view, stage="Failed", is_moving=False, failure=found)
    if targets.replaces(snapshot, wanted) is not None:
        return views.told(snapshot, wanted, view, (), look_again=0.0)
    return views.told(snapshot, wanted, view, actions)


def _go_back(snapshot: Snapshot, wanted: Target, entry: Entry) -> Plan:
    """It failed: the servers are those of the last good revision again, until the spec asks for another one."""
    before, found = targets.replaces(snapshot, wanted), targets.verdict(snapshot, wanted)
    if before is None:
        view = views.rolling(snapshot, wanted, entry, _ANOTHER_CHANCE)
        return views.told(snapshot, wanted, view, upkeep.marked(snapshot, entry, ""))
    why = found.message if found is not None else "Its servers failed."
    reason = failure.reason(found) if found is not None else Reason.UPDATE_FAILED
    message = f"{named(snapshot, entry)} failed: {why} {named(snapshot, before)} goes on. {status.again(snapshot)}"
    again = f"{named(snapshot, before)} is served again, because revision {entry.number} failed."
    is_back = upkeep.is_rolled_out(snapshot, before)
    view = View(
        stage="Deploy",
        is_moving=not is_back,
        reason=Reason.UPDATE_FAILED if is_back else Reason.ROLLING_OUT,
        message=message,
        served=before,
        downloaded=views.downloaded(entry),
        validated=views.validated(entry),
        failure=found,
        update_failed=Fact("True", reason, message),
        rolled_back=Fact("True", Reason.UPDATE_FAILED, again),
    )
    marked, cleared = upkeep.marked(snapshot, entry, "failed"), upkeep.cleared(snapshot, wanted)
    tidied = (*cleared, *upkeep.servers(snapshot, before), *upkeep.pruned(snapshot, wanted))
    return views.told(snapshot, wanted, view, (*marked, *tidied))


def _unfit(snapshot: Snapshot, why: str) -> Plan:
    """Nobody was asked before this was stored. Nothing begins until it is changed; what is served is looked after."""
    shown = status.unfit(snapshot, why)
    notes = (Note(Reason.INVALID_SPEC, why, warning=True),) if shown != snapshot.object.status else ()
    return Plan(actions=upkeep.servers(snapshot, targets.served(snapshot)), status=shown, notes=notes)


def _unpinned(snapshot: Snapshot) -> Plan:
    """The revision to go back to is not there. What is served stays."""
    before = targets.served(snapshot)
    numbers = ", ".join(str(entry.number) for entry in snapshot.history)
    there = f"the history has {numbers}: name one of them, or remove it" if numbers else "nothing was served: remove it"
    message = f"spec.rollbackTo is {snapshot.serving.rollback_to}, and {there}."
    view = View(
        stage="Failed",
        is_moving=False,
        reason=Reason.REVISION_NOT_FOUND,
        message=message,
        served=before,
        downloaded=None if before is None else views.downloaded(before),
        validated=None if before is None else views.validated(before),
        failure=snapshot.object.status.failure,
        update_failed=None if before is None else Fact("True", Reason.REVISION_NOT_FOUND, message),
    )
    shown = status.shown(snapshot, view)
    notes = (Note(Reason.REVISION_NOT_FOUND, message, warning=True),) if shown != snapshot.object.status else ()
    return Plan(actions=upkeep.servers(snapshot, before), status=shown, notes=notes)


def _said(mishap: Mishap) -> Wait:
    return Wait(failure.reason(mishap.failure), mishap.failure.message)
