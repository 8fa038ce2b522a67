"""Plan of a Service whose pods run at clouds. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from skysail.base.names import Condition, EventReason, Reason
from skysail.base.timestamps import timestamp
from skysail.core.actions import Action, Event, Manifest, PatchStatus, Plan
from skysail.kinds.cloud_services.plan import routes
from skysail.kinds.cloud_services.plan.routes import Route
from skysail.kinds.cloud_services.snapshot import Snapshot
from skysail.kube.api.resources import SERVICE

_MAX_MESSAGE_LENGTH = 1024
# A port is free again when its last claim has been gone for a while.
_RETRY_SECONDS = 30.0


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return Plan()  # the garbage collector deletes the slices with their Service
    is_refused = snapshot.object.is_headless
    found = () if is_refused else routes.routes(snapshot)
    desired = tuple(routes.slices(snapshot, found))
    problems = tuple(_problems(snapshot, found))
    report, events = _report(snapshot, problems)
    actions: tuple[Action, ...] = (
        *routes.assignments(snapshot, found),
        *desired,
        *routes.obsolete(snapshot, desired),
        *report,
    )
    is_waiting = any(not route.bridge_port for route in found)
    return Plan(actions=actions, events=events, requeue_after=_RETRY_SECONDS if is_waiting else None)


def on_rejected(snapshot: Snapshot, event: Event) -> Plan:  # noqa: ARG001 (the protocol's)
    return Plan(events=(event,))


def _problems(snapshot: Snapshot, found: tuple[Route, ...]) -> Iterator[tuple[str, str]]:
    """Yield reasons why traffic of the Service does not reach its pods at clouds, each a sentence with its fix."""
    if not snapshot.members:
        return
    if snapshot.object.is_headless:
        yield (
            Reason.HEADLESS_SERVICE,
            "A headless Service cannot lead to pods at clouds: they have no address. Remove clusterIP: None.",
        )
        return
    if not snapshot.addresses:
        yield (
            Reason.NO_BRIDGE,
            "The bridge, which leads to pods at clouds, has no ready pod. Ask the administrator to start it.",
        )
    ignored = sorted({port.protocol for port in snapshot.object.spec.ports if port.protocol != "TCP"})
    if ignored:
        yield (
            Reason.UNSUPPORTED_PROTOCOL,
            f"Ports of protocol {', '.join(ignored)} do not reach pods at clouds. Use TCP.",
        )
    providers = {member.claim.spec.provider for member in snapshot.members if member.claim}
    for provider in sorted(providers & snapshot.unreachable):
        yield (
            Reason.UNREACHABLE_CLOUD,
            f"The account at {provider} accepts no connections to its instances. Run the pods elsewhere.",
        )
    if any(not route.bridge_port for route in found):
        yield (
            Reason.NO_BRIDGE_PORT,
            "The bridge has no port left for this Service. Delete Services of pods at clouds that you do not need.",
        )


def _report(
    snapshot: Snapshot, problems: tuple[tuple[str, str], ...]
) -> tuple[tuple[PatchStatus, ...], tuple[Event, ...]]:
    """Return the write of the condition and its event. A Service that never had a problem gets no condition."""
    present = snapshot.object.condition(Condition.CLOUD_ENDPOINTS)
    if not problems and present is None:
        return (), ()
    if problems:
        status, reason = "False", str(problems[0][0])
        message = " ".join(text for _, text in problems)[:_MAX_MESSAGE_LENGTH]
    else:
        status, reason, message = "True", str(Reason.REACHABLE), "The Service leads to its pods at clouds."
    written = tuple((present or {}).get(field) for field in ("status", "reason", "message"))
    if written == (status, reason, message):
        return (), ()
    events = (Event(EventReason.CLOUD_ENDPOINTS_FAILED, message, warning=True),) if problems else ()
    return (_set_condition(snapshot, status, reason, message),), events


def _set_condition(snapshot: Snapshot, status: str, reason: str, message: str) -> PatchStatus:
    """Return the write of the condition. The list is replaced as a whole, if the Service is unchanged."""
    present = snapshot.object.condition(Condition.CLOUD_ENDPOINTS) or {}
    since = present.get("lastTransitionTime") if present.get("status") == status else None
    row: Manifest = {
        "type": Condition.CLOUD_ENDPOINTS.value,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or timestamp(snapshot.now),
    }
    others = [other for other in snapshot.object.status.conditions if other.get("type") != Condition.CLOUD_ENDPOINTS]
    return PatchStatus(SERVICE, snapshot.object, {"conditions": [*others, row]})
