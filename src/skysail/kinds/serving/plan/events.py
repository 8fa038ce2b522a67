"""Events of a model: changes between the previous and the new status. Pure."""

from __future__ import annotations

from skysail.base.names import Condition as Type
from skysail.base.names import EventReason, Reason
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.serving.plan.status import Status
from skysail.kinds.serving.plan.target_revision import Target
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec import model_uri
from skysail.kinds.serving.spec.runtimes import RUNTIMES
from skysail.runtimes.fetch.network import uris

# Event for a condition that changes to a status, and whether it is a warning.
_TRANSITIONS = (
    (Type.MODEL_VALIDATED, "True", EventReason.VALIDATION_PASSED, False),
    (Type.MODEL_VALIDATED, "False", EventReason.VALIDATION_FAILED, True),
    (Type.MODEL_DOWNLOADED, "False", Reason.DOWNLOAD_FAILED, True),
    (Type.UPDATE_FAILED, "True", EventReason.UPDATE_FAILED, True),
    (Type.ROLLED_BACK, "True", EventReason.ROLLED_BACK, False),
)
# Reasons of normal progress, which need no event.
_ON_ITS_WAY = {
    Reason.DOWNLOADING,
    Reason.VALIDATING,
    Reason.ROLLING_OUT,
    Reason.SERVED,
    Reason.STARTING,
    Reason.ADOPTING,
    Reason.UPDATE_FAILED,
    Reason.VOLUME_UNAVAILABLE,
}


def plan_events(snapshot: Snapshot, target: Target, new: Status) -> tuple[Event, ...]:
    previous = snapshot.object.status
    begun = (
        _begun(snapshot, target) if new.candidate == target.hash != previous.candidate and target.entry is None else ()
    )
    turned = tuple(
        Event(event_reason, now.message, warning=is_warning)
        for type_, value, event_reason, is_warning in _TRANSITIONS
        if (now := conditions.find_condition(new.conditions, type_)) is not None
        and now.status == value
        and conditions.condition_state(previous, type_) != (now.status, now.reason)
    )
    turned = turned or _kept_waiting(previous, new)
    deployed = conditions.find_condition(new.conditions, Type.READY)
    is_new = new.revision not in {0, previous.revision} and deployed is not None
    return (*begun, *turned, *((Event(EventReason.DEPLOYED, deployed.message),) if is_new and deployed else ()))


def _kept_waiting(previous: Status, new: Status) -> tuple[Event, ...]:
    """Return a warning for a new pending reason that no other event reports."""
    now = conditions.find_condition(new.conditions, Type.PROGRESSING)
    if (
        now is None
        or now.reason in _ON_ITS_WAY
        or conditions.condition_state(previous, Type.PROGRESSING)[1] == now.reason
    ):
        return ()
    return (Event(now.reason, now.message, warning=True),)


def _begun(snapshot: Snapshot, target: Target) -> tuple[Event, ...]:
    version = f" (version {target.want.version})" if snapshot.serving.kind is MODEL_DEPLOYMENT else ""
    what = f"revision {target.hash}{version}"
    events = [Event(EventReason.DOWNLOADING, f"Downloading {what}.")]
    if target.want.script:
        events.append(
            Event(EventReason.VALIDATION_STARTED, f"Validating {what} with {_redacted_script(target.want.script)}.")
        )
    runtime = RUNTIMES.get(target.want.runtime)
    if runtime is not None and runtime.warning:
        events.append(Event(EventReason.RUNTIME_UNMAINTAINED, runtime.warning, warning=True))
    return tuple(events)


def _redacted_script(script: str) -> str:
    """Return the script without a signature in its URL: more people can read events than objects."""
    return uris.redact(script) if model_uri.is_downloaded_script(script) else script
