"""Status of an endpoint or function. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.base.names import Annotation, Condition, EventReason, Reason
from skysail.base.timestamps import timestamp
from skysail.core import conditions
from skysail.core.actions import Event
from skysail.kinds.modal_endpoints.children import manifests
from skysail.kinds.modal_endpoints.plan.failure import Problem
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT
from skysail.kube.api.workloads import oldest_first

_DEPLOYING = "The new revision is being deployed."


def status(snapshot: Snapshot, problem: Problem | None) -> Any:
    """Return the new status. An older revision serves while the next one fails, and the status says both."""
    available = snapshot.deployment.status.available_replicas if snapshot.deployment else 0
    is_rolled_out = _is_rolled_out(snapshot)
    main = Condition.READY if snapshot.kind is MODAL_ENDPOINT else Condition.DEPLOYED
    old: Any = snapshot.object.status
    address = _address(snapshot, available)
    # Without its URL, an App is not ready yet: people wait for the condition and then read the URL.
    is_serving = bool(available and address)
    if is_serving:
        new = conditions.set_condition(snapshot, old, main, "True", Reason.SERVED, _served(snapshot))
    else:
        reason, message = (problem.reason, problem.message) if problem else (Reason.ROLLING_OUT, _DEPLOYING)
        new = conditions.set_condition(snapshot, old, main, "False", str(reason), message)
    works = f"Skysail works on this {snapshot.kind.resource.kind}."
    new = conditions.set_condition(snapshot, new, Condition.ACCEPTED, "True", Reason.ACCEPTED, works)
    new = _update_failed(snapshot, new, problem, is_serving=is_serving, is_rolled_out=is_rolled_out)
    phase = _phase(snapshot, is_serving=is_serving, problem=problem)
    if snapshot.kind is MODAL_ENDPOINT:
        return msgspec.structs.replace(new, **_common(snapshot, phase), endpoint_url=address, ready_replicas=available)
    return _function(snapshot, msgspec.structs.replace(new, **_common(snapshot, phase), function_url=address), problem)


def events(snapshot: Snapshot, new: Any) -> tuple[Event, ...]:
    """Return an event for each change that a user wants to know."""
    old: Any = snapshot.object.status
    found = []
    for type_, value, reason, is_warning in (
        (Condition.READY, "True", EventReason.DEPLOYED, False),
        (Condition.DEPLOYED, "True", EventReason.DEPLOYED, False),
        (Condition.READY, "False", "", True),
        (Condition.DEPLOYED, "False", "", True),
        (Condition.UPDATE_FAILED, "True", EventReason.UPDATE_FAILED, True),
    ):
        row, previous = (conditions.find_condition(each.conditions, type_) for each in (new, old))
        if (
            row is None
            or row.status != value
            or (previous and (previous.status, previous.reason) == (value, row.reason))
        ):
            continue
        if not (is_warning and row.reason == Reason.ROLLING_OUT):
            found.append(Event(str(reason or row.reason), row.message, warning=is_warning))
    return tuple(found)


def _address(snapshot: Snapshot, available: int) -> str:
    """Return the URL for the status: that of the App, which is persistent, or that of the Service.

    Returns an empty string until something serves, and until the URL of the App is known.
    """
    old: Any = snapshot.object.status
    known: str = old.endpoint_url if snapshot.kind is MODAL_ENDPOINT else old.function_url
    if not available:
        return known
    if snapshot.desired is None or snapshot.desired.app is None:
        return known or url(snapshot)
    return _written(snapshot, Annotation.MODAL_FUNCTION_URL) or known


def _written(snapshot: Snapshot, annotation: Annotation) -> str:
    """Return an annotation that the newest ready pod got from its claim, or an empty string."""
    ready = [pod for pod in oldest_first(snapshot.pods) if any(container.ready for container in pod.containers)]
    values = ((pod.metadata.annotations or {}).get(annotation, "") for pod in reversed(ready))
    return next(filter(None, values), "")


def url(snapshot: Snapshot) -> str:
    name = manifests.service_name(snapshot.object)
    return f"http://{name}.{snapshot.object.metadata.namespace}.svc.cluster.local"


def _served(snapshot: Snapshot) -> str:
    return f"Requests to {url(snapshot)} are answered."


def _is_rolled_out(snapshot: Snapshot) -> bool:
    desired, deployment = snapshot.desired, snapshot.deployment
    return desired is not None and deployment is not None and deployment.is_rolled_out(desired.revision)


def _update_failed(
    snapshot: Snapshot, status_: Any, problem: Problem | None, *, is_serving: bool, is_rolled_out: bool
) -> Any:
    """Set the condition while an older revision serves and the new one cannot, and after each update that serves.

    Without a problem the condition stays until the new revision serves, unless the user has changed the spec since.
    """
    present = conditions.find_condition(status_.conditions, Condition.UPDATE_FAILED)
    if is_serving and problem is not None and not is_rolled_out:
        return conditions.set_condition(
            snapshot, status_, Condition.UPDATE_FAILED, "True", str(problem.reason), problem.message
        )
    if present is None or (present.status, present.reason) == ("False", Reason.UPDATED):
        is_new = is_serving and not is_rolled_out and _has_older_pods(snapshot)
    else:
        is_new = problem is None and present.observed_generation != snapshot.object.metadata.generation
    if is_rolled_out and present is not None:
        return conditions.set_condition(
            snapshot, status_, Condition.UPDATE_FAILED, "False", Reason.UPDATED, "The last update succeeded."
        )
    if is_new:
        return conditions.set_condition(
            snapshot, status_, Condition.UPDATE_FAILED, "False", Reason.ROLLING_OUT, _DEPLOYING
        )
    return status_


def _has_older_pods(snapshot: Snapshot) -> bool:
    """Return whether pods of another revision are left. A pod that takes an App over has the same revision."""
    wanted = snapshot.desired.revision if snapshot.desired is not None else ""
    return any(pod.revision != wanted and not pod.is_finished and not pod.metadata.is_deleting for pod in snapshot.pods)


def _phase(snapshot: Snapshot, *, is_serving: bool, problem: Problem | None) -> str:
    if is_serving:
        return "Ready" if snapshot.kind is MODAL_ENDPOINT else "Deployed"
    return "Failed" if problem is not None and problem.is_fatal else "Pending"


def _common(snapshot: Snapshot, phase: str) -> dict[str, Any]:
    app_id = _written(snapshot, Annotation.MODAL_APP_ID) or snapshot.object.status.modal_app_id
    return {"phase": phase, "simulated": snapshot.is_simulated, "modal_app_id": app_id}


def _function(snapshot: Snapshot, new: Any, problem: Problem | None) -> Any:
    """Return the status with the fields that only functions have."""
    now, is_serving = timestamp(snapshot.now), new.phase == "Deployed"
    return msgspec.structs.replace(
        new,
        message=_served(snapshot) if is_serving else problem.message if problem else _DEPLOYING,
        created_at=new.created_at or now,
        deployed_at=new.deployed_at or (now if is_serving else ""),
    )
