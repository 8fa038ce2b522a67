"""Plan of a ModalEndpoint or ModalFunction: a Deployment of pods at Modal, a Service, and a ConfigMap of code. Pure.

The Deployment is the revision engine: a new revision starts beside the serving one, which stays until the new one is
ready. So an update that fails changes nothing for callers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from skysail.base.names import Condition
from skysail.core import conditions, finalizers
from skysail.core.actions import Action, Apply, Create, Delete, Event, Owner, Plan
from skysail.core.conditions import Value
from skysail.kinds import claim_periods
from skysail.kinds.modal_endpoints.children import manifests
from skysail.kinds.modal_endpoints.desired import Desired
from skysail.kinds.modal_endpoints.objects import Deployment
from skysail.kinds.modal_endpoints.plan import failure
from skysail.kinds.modal_endpoints.plan import status as status_module
from skysail.kinds.modal_endpoints.snapshot import Snapshot
from skysail.kinds.modal_endpoints.types import MODAL_ENDPOINT
from skysail.kube.api.resources import CONFIG_MAP, DEPLOYMENT, SERVICE

# A ConfigMap of the user is not watched, so it is read at intervals.
_CODE_SECONDS = 15.0


def plan(snapshot: Snapshot) -> Plan:
    root = snapshot.object
    if root.metadata.is_deleting:
        # The garbage collector deletes the children, and with each pod its instance.
        return Plan(actions=finalizers.remove_legacy_finalizers(snapshot.kind.resource, root))
    actions = tuple(_actions(snapshot, snapshot.desired)) if snapshot.desired is not None else ()
    new = status_module.status(snapshot, failure.find(snapshot))
    return Plan(
        actions=actions, status=new, events=status_module.events(snapshot, new), requeue_after=_next_look(snapshot)
    )


def _next_look(snapshot: Snapshot) -> float | None:
    code = snapshot.object.spec.code
    if code is not None and code.config_map_ref is not None:
        return _CODE_SECONDS
    if snapshot.desired is None or snapshot.desired.app is None or snapshot.deployment is None:
        return None
    due = min(_due_times(snapshot, snapshot.deployment), default=None)
    return None if due is None else max(0.0, (due - snapshot.now).total_seconds()) + 1.0


def _period(snapshot: Snapshot, desired: Desired) -> int:
    """Return the number of the claim that has to pay: one more for each update, and before the present claim ends.

    The App has what its last claim deployed. So a rollback needs a new pod, too: the pod of the older revision may
    still be ready, but its App was updated.
    """
    deployment = snapshot.deployment
    if deployment is None or desired.app is None:
        return 0
    is_update = (deployment.revision, deployment.app) != (desired.revision, desired.app.text)
    is_due = any(due <= snapshot.now for due in _due_times(snapshot, deployment))
    return deployment.period + (1 if is_update or is_due else 0)


def _due_times(snapshot: Snapshot, deployment: Deployment) -> Iterator[datetime]:
    """Yield when claims have to be replaced. A pod for which nothing is launched again needs no new claim."""
    pods = (pod for pod in snapshot.pods if not failure.is_final(pod))
    return claim_periods.due_times(pods, deployment.period)


def on_rejected(snapshot: Snapshot, event: Event) -> Plan:
    type_ = Condition.READY if snapshot.kind is MODAL_ENDPOINT else Condition.DEPLOYED
    deployment = snapshot.deployment
    if deployment is not None and deployment.status.available_replicas:
        type_ = Condition.UPDATE_FAILED
    value: Value = "True" if type_ is Condition.UPDATE_FAILED else "False"
    old: Any = snapshot.object.status
    new = conditions.set_condition(snapshot, old, type_, value, event.reason, event.message)
    return Plan(status=new, events=(event,))


def _actions(snapshot: Snapshot, desired: Desired) -> Iterator[Action]:
    """Yield the writes in order: the code before the pods that mount it, old code only after its last pod."""
    owner = Owner(snapshot.kind.resource, snapshot.object)
    if desired.files:
        yield Create(CONFIG_MAP, manifests.config_map(snapshot.object, desired), owner)
    yield Apply(SERVICE, manifests.service(snapshot.object, desired), owner, enforce=True)
    yield Apply(
        DEPLOYMENT, manifests.deployment(snapshot.object, desired, _period(snapshot, desired)), owner, enforce=True
    )
    deployment = snapshot.deployment
    if deployment is None or not deployment.is_rolled_out(desired.revision):
        return
    current = manifests.config_map_name(snapshot.object, desired.revision)
    for config_map in snapshot.config_maps:
        if config_map.metadata.name != current and not config_map.metadata.is_deleting:
            yield Delete(CONFIG_MAP, config_map)
