"""Events of a model: changes between the previous and the new status. Pure."""

from __future__ import annotations

from skysail.base.names import Condition as Type
from skysail.base.names import Event, Reason
from skysail.core import conditions
from skysail.core.actions import Note
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.serving.plan.status import Status
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.runtimes import ROWS
from skysail.runtimes.fetch.network import uris

# Event for a condition that changes to a status, and whether it is a warning.
_TURNS = (
    (Type.MODEL_VALIDATED, "True", Event.VALIDATION_PASSED, False),
    (Type.MODEL_VALIDATED, "False", Event.VALIDATION_FAILED, True),
    (Type.MODEL_DOWNLOADED, "False", Reason.DOWNLOAD_FAILED, True),
    (Type.UPDATE_FAILED, "True", Event.UPDATE_FAILED, True),
    (Type.ROLLED_BACK, "True", Event.ROLLED_BACK, False),
)
# Reasons of normal progress, which need no event.
_ON_ITS_WAY = {
    Reason.DOWNLOADING,
    Reason.VALIDATING,
    Reason.ROLLING_OUT,
    Reason.SERVED,
    Reason.STARTING,
    Reason.TAKING_OVER,
    Reason.UPDATE_FAILED,
    Reason.VOLUME_UNAVAILABLE,
}


def news(snapshot: Snapshot, wanted: Target, new: Status) -> tuple[Note, ...]:
    before = snapshot.object.status
    begun = (
        _begun(snapshot, wanted) if new.candidate == wanted.hash != before.candidate and wanted.entry is None else ()
    )
    turned = tuple(
        Note(event, now.message, warning=is_warning)
        for type_, value, event, is_warning in _TURNS
        if (now := conditions.find(new.conditions, type_)) is not None
        and now.status == value
        and _said(before, type_) != (now.status, now.reason)
    )
    turned = turned or _kept_waiting(before, new)
    deployed = conditions.find(new.conditions, Type.READY)
    is_new = new.revision not in {0, before.revision} and deployed is not None
    return (*begun, *turned, *((Note(Event.DEPLOYED, deployed.message),) if is_new and deployed else ()))


def _kept_waiting(before: Status, new: Status) -> tuple[Note, ...]:
    """Return a warning for a new pending reason that no other event reports."""
    now = conditions.find(new.conditions, Type.PROGRESSING)
    if now is None or now.reason in _ON_ITS_WAY or _said(before, Type.PROGRESSING)[1] == now.reason:
        return ()
    return (Note(now.reason, now.message, warning=True),)


def _begun(snapshot: Snapshot, wanted: Target) -> tuple[Note, ...]:
    version = f" (version {wanted.want.version})" if snapshot.serving.kind is MODEL_DEPLOYMENT else ""
    what = f"revision {wanted.hash}{version}"
    notes = [Note(Event.DOWNLOADING, f"Downloading {what}.")]
    if wanted.want.script:
        notes.append(Note(Event.VALIDATION_STARTED, f"Validating {what} with {_shown(wanted.want.script)}."))
    row = ROWS.get(wanted.want.runtime)
    if row is not None and row.warning:
        notes.append(Note(Event.RUNTIME_UNMAINTAINED, row.warning, warning=True))
    return tuple(notes)


def _shown(script: str) -> str:
    """Return the script without a signature in its URL: more people can read events than objects."""
    return uris.shown(script) if model_uri.is_downloaded_script(script) else script


def _said(status: Status, type_: Type) -> tuple[str, str]:
    found = conditions.find(status.conditions, type_)
    return (found.status, found.reason) if found is not None else ("", "")
