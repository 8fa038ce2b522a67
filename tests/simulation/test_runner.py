"""The runner can fail: controllers with the mistakes that operators really make are found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.core.actions import Apply, Delete, Plan, SetFinalizers
from tests.simulation import runner
from tests.simulation.faults import InjectedFault
from tests.simulation.fleet import BERTH, FLEET, Admiral, FleetStatus, Snapshot, plan
from tests.simulation.runner import NeverQuiet
from tests.simulation.test_fleet import SCENARIOS

if TYPE_CHECKING:
    from skysail.core.actions import Action
    from tests.contract.api_dsl import Api
    from tests.simulation.faults import On
    from tests.simulation.operator_process import Process


class Hasty(Admiral):
    """Lets the object go before what it stands for has ended."""

    def plan(self, snapshot: Snapshot) -> Plan:
        if not snapshot.object.metadata.is_deleting or snapshot.berth is None:
            return plan(snapshot)
        return Plan(actions=(SetFinalizers(FLEET, snapshot.object, ()), Delete(BERTH, snapshot.berth)))


class Optimist(Admiral):
    """Remembers what it wanted to launch and takes it for launched."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._launched: set[str] = set()

    def plan(self, snapshot: Snapshot) -> Plan:
        wanted = plan(snapshot)
        news = tuple(action for action in wanted.actions if _name(action) not in self._launched)
        self._launched |= {_name(action) for action in news} - {""}
        return msgspec.structs.replace(wanted, actions=news)


class Restless(Admiral):
    """Writes the time into its status."""

    def plan(self, snapshot: Snapshot) -> Plan:
        wanted = plan(snapshot)
        if not isinstance(wanted.status, FleetStatus):
            return wanted
        condition = msgspec.structs.replace(wanted.status.conditions[0], message=f"Seen at {snapshot.now}.")
        return msgspec.structs.replace(wanted, status=msgspec.structs.replace(wanted.status, conditions=(condition,)))


@pytest.mark.parametrize(
    ("controller", "scenario", "on", "what", "complaint"),
    [
        (Hasty, "delete", "effect", "crash", "Berth stage-a ended as"),
        (Hasty, "delete", "effect", "crash", "delete Berth stage-a: 0 times, expected 1"),
        (Optimist, "create", "write", "server error", "ConfigMap a-1 ended as None"),
    ],
)
def test_a_mistake_is_found(controller: type[Admiral], scenario: str, on: On, what: str, complaint: str) -> None:
    faulty = msgspec.structs.replace(SCENARIOS[scenario], build=controller)
    expected = runner.reference(SCENARIOS[scenario])
    trials = runner.faults_for(runner.reference(faulty), on, what)
    assert any(complaint in wrong for trial in trials for wrong in runner.check(faulty, expected, trial).wrong)


def test_a_controller_that_never_stops_writing_is_found() -> None:
    with pytest.raises(NeverQuiet):
        runner.reference(msgspec.structs.replace(SCENARIOS["create"], build=Restless))


def test_a_user_who_waits_for_what_never_comes_is_found() -> None:
    async def wait(api: Api) -> None:
        await api.until(FLEET, "never", bool)

    waiting = msgspec.structs.replace(SCENARIOS["create"], steps=(wait,))
    expected = runner.reference(SCENARIOS["create"])
    assert "TimeoutError" in runner.check(waiting, expected, InjectedFault("effect", 1, "crash")).wrong[0]


def test_an_error_in_the_log_is_found() -> None:
    class Broken(Admiral):
        def plan(self, snapshot: Snapshot) -> Plan:
            if snapshot.object.spec.size == 4:
                raise ZeroDivisionError
            return plan(snapshot)

    outcome = runner.reference(msgspec.structs.replace(SCENARIOS["scale up"], build=Broken))
    assert any("ZeroDivisionError" in line for line in outcome.errors)


def _name(action: Action) -> str:
    return action.manifest["metadata"]["name"] if isinstance(action, Apply) else ""
