"""A sample controller: a Fleet keeps so many ships (ConfigMaps) and one berth that no garbage collector would end.

It shows how a kind is written and how it joins the simulation; every later controller is put to the same trials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from skysail.base.timestamps import timestamp
from skysail.core import conditions
from skysail.core.actions import Apply, Delete, Owner, Plan, SetFinalizers
from skysail.kube.api.fields import ApiStruct, Condition
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CONFIG_MAP, Resource
from skysail.kube.cache.cache import index_by_owner, index_by_uid

if TYPE_CHECKING:
    from skysail.core.actions import Action, Event
    from skysail.kube.cache.cache import Cache
    from tests.simulation.operator_process import Process

FLEET = Resource("sea.skysail.dev", "v1", "fleets", "Fleet")
BERTH = Resource("sea.skysail.dev", "v1", "berths", "Berth", namespaced=False)
FINALIZER = "sea.skysail.dev/berth"


class FleetSpec(ApiStruct, frozen=True):
    size: int = 0
    flag: str = ""


class FleetStatus(ApiStruct, frozen=True):
    observed_generation: int = 0
    afloat: int = 0
    conditions: tuple[Condition, ...] = ()


class Fleet(Object, frozen=True, gc=False):
    spec: FleetSpec
    status: FleetStatus = FleetStatus()


class Ship(Object, frozen=True, gc=False):
    data: dict[str, str] | None = None


class Snapshot(msgspec.Struct, frozen=True):
    object: Fleet
    ships: tuple[Ship, ...]
    berth: Object | None
    now: str


def plan(snapshot: Snapshot) -> Plan:
    if snapshot.object.metadata.is_deleting:
        return _farewell(snapshot)
    return Plan(actions=(*_claim(snapshot), *_launch(snapshot), *_scrap(snapshot)), status=_status(snapshot))


def _farewell(snapshot: Snapshot) -> Plan:
    """The berth first, then the finalizer; the collector sinks the ships."""
    fleet = snapshot.object
    if FINALIZER not in fleet.metadata.finalizers:
        return Plan()
    if snapshot.berth is not None:
        return Plan(actions=(Delete(BERTH, snapshot.berth),), requeue_after=1.0)
    rest = tuple(name for name in fleet.metadata.finalizers if name != FINALIZER)
    return Plan(actions=(SetFinalizers(FLEET, fleet, rest),))


def _claim(snapshot: Snapshot) -> tuple[Action, ...]:
    """The finalizer before the berth, so that no berth is ever left behind."""
    fleet = snapshot.object
    berth = Apply(BERTH, _manifest(BERTH, berth_name(fleet), {"flag": fleet.spec.flag}), Owner(FLEET, fleet))
    if FINALIZER in fleet.metadata.finalizers:
        return (berth,)
    return (SetFinalizers(FLEET, fleet, (*fleet.metadata.finalizers, FINALIZER)), berth)


def _launch(snapshot: Snapshot) -> tuple[Action, ...]:
    fleet = snapshot.object
    return tuple(Apply(CONFIG_MAP, _ship(fleet, number), Owner(FLEET, fleet)) for number in range(fleet.spec.size))


def _scrap(snapshot: Snapshot) -> tuple[Action, ...]:
    fleet = snapshot.object
    wanted = {ship_name(fleet, number) for number in range(fleet.spec.size)}
    return tuple(
        Delete(CONFIG_MAP, ship)
        for ship in snapshot.ships
        if ship.metadata.name not in wanted and not ship.metadata.is_deleting
    )


def refused(snapshot: Snapshot, why: Event) -> Plan:
    return Plan(status=_told(snapshot, is_ready=False, reason="Refused", message=why.message), events=(why,))


def _status(snapshot: Snapshot) -> FleetStatus:
    fleet = snapshot.object
    afloat = sum(1 for ship in snapshot.ships if (ship.data or {}).get("flag") == fleet.spec.flag)
    is_ready = afloat == fleet.spec.size == len(snapshot.ships)
    message = f"{afloat} of {fleet.spec.size} ships are afloat."
    status = _told(snapshot, is_ready=is_ready, reason="AllAfloat" if is_ready else "Launching", message=message)
    return msgspec.structs.replace(status, afloat=afloat)


def _told(snapshot: Snapshot, *, is_ready: bool, reason: str, message: str) -> FleetStatus:
    fleet = snapshot.object
    ready = Condition(
        type="Ready",
        status="True" if is_ready else "False",
        last_transition_time=snapshot.now,
        reason=reason,
        message=message,
        observed_generation=fleet.metadata.generation,
    )
    return FleetStatus(
        observed_generation=fleet.metadata.generation,
        afloat=fleet.status.afloat,
        conditions=conditions.replace_condition(fleet.status.conditions, ready),
    )


class Admiral:
    """The controller."""

    resource = FLEET

    def __init__(self, process: Process) -> None:
        self._now = process.now
        self._fleets: Cache[Fleet] = process.cache(FLEET, Fleet, {"uid": index_by_uid})
        self._ships: Cache[Ship] = process.cache(CONFIG_MAP, Ship, {"owner": index_by_owner})
        self._berths: Cache[Object] = process.cache(BERTH, Object)
        process.control(self, self._fleets, [self._ships])

    async def observe(self, key: Key) -> Snapshot | None:
        fleet = self._fleets.get(key)
        if fleet is None:
            return None
        ships = tuple(self._ships.by("owner", fleet.metadata.identity))
        berth = self._berths.get(Key("", berth_name(fleet)))
        return Snapshot(fleet, ships, berth, timestamp(self._now()))

    def plan(self, snapshot: Snapshot) -> Plan:
        return plan(snapshot)

    def on_rejected(self, snapshot: Snapshot, event: Event) -> Plan:
        return refused(snapshot, event)


def ship_name(fleet: Object, number: int) -> str:
    return f"{fleet.metadata.name}-{number}"


def berth_name(fleet: Object) -> str:
    return f"{fleet.metadata.namespace}-{fleet.metadata.name}"


def _ship(fleet: Fleet, number: int) -> dict[str, object]:
    metadata = {"name": ship_name(fleet, number), "namespace": fleet.metadata.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"flag": fleet.spec.flag}}


def _manifest(resource: Resource, name: str, spec: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, "spec": spec}
