"""Plays a scenario once undisturbed, then once for each thing that can go wrong at each place; all must end alike.

A scenario is what a user does. The reference run counts the effects, reads and watch events of the operator; each of
them is then a place for a crash, a lost reply, a refusal, a second operator or a lying watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.kube.resources import EVENT, LEASE, NAMESPACE
from tests.contract.speech import Api
from tests.simulation.api import ApiModel
from tests.simulation.faults import EFFECT_TROUBLES, EVENT_TROUBLES, READ_TROUBLES, FaultyTransport, On, Trouble
from tests.simulation.process import Process
from tests.simulation.world import EPOCH, World
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from skysail.kube.resources import Resource

Object = dict[str, Any]

# A resync at its latest, with the audit that it brings: what a lying watch left open is settled by then.
_RESYNC_SECONDS = 660.0 + 40.0
# Who wrote nothing for three of them stays quiet.
_QUIET_SECONDS = 3 * _RESYNC_SECONDS
_PATIENCE_SECONDS = 20 * _QUIET_SECONDS
_RESTART_SECONDS = 5.0
_LOOK_SECONDS = 50.0
_VOLATILE = {
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "lastTransitionTime",
}
_NOT_COMPARED = {EVENT, LEASE}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` are what the user does, one after the other, each when the operator has come to rest after the last.

    A step may race the operator on purpose; then what was made before it won differs from run to run, and only
    `is_race` is promised: nothing is made more often than in the reference run, and the end is the same.
    """

    name: str
    resources: tuple[Resource, ...]
    build: Callable[[Process], object]
    steps: tuple[Callable[[Api], Awaitable[None]], ...]
    is_race: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What a run left behind."""

    end: dict[str, Any]
    history: Counter[str]
    effects: int
    reads: int
    events: int
    errors: list[str]
    struck: bool


KINDS: tuple[tuple[On, str], ...] = (
    *(("effect", what) for what in EFFECT_TROUBLES),
    *(("read", what) for what in READ_TROUBLES),
    *(("event", what) for what in EVENT_TROUBLES),
)


def reference(scenario: Scenario) -> Outcome:
    return play(scenario, None)


def troubles(outcome: Outcome, on: On, what: str) -> list[Trouble]:
    """This trouble, at each place of a run like that one."""
    places = {"effect": outcome.effects, "read": outcome.reads, "event": outcome.events}[on]
    return [Trouble(on, at, what) for at in range(1, places + 1)]


def judge(scenario: Scenario, expected: Outcome, trouble: Trouble) -> list[str]:
    """Play it with this trouble and say what is wrong with the outcome."""
    try:
        found = play(scenario, trouble)
    except (AssertionError, virtual_time.Deadlock, TimeoutError) as error:
        return [f"{trouble}: {type(error).__name__} {error}"]
    return [f"{trouble}: {complaint}" for complaint in complaints(scenario, expected, found)]


def complaints(scenario: Scenario, expected: Outcome, found: Outcome) -> list[str]:
    """What is wrong with a disturbed run; nothing, if it came to the same end in the same way."""
    wrong = [f"ERROR logged: {line}" for line in found.errors]
    if not found.struck:
        wrong.append("the trouble never came")
    wrong += [
        f"{name} ended as {found.end.get(name)}, expected {expected.end.get(name)}"
        for name in sorted(expected.end.keys() | found.end.keys())
        if expected.end.get(name) != found.end.get(name)
    ]
    for deed in sorted(expected.history.keys() | found.history.keys()):
        often, usual = found.history[deed], expected.history[deed]
        if often > max(usual, 1) if scenario.is_race else often != usual:
            wrong.append(f"{deed}: {often} times, expected {usual}")
    return wrong


def play(scenario: Scenario, trouble: Trouble | None) -> Outcome:
    return virtual_time.run(_Stage(scenario, trouble).play())


class NeverQuiet(AssertionError):
    """The operator goes on writing although nobody wants anything."""


class _Stage:
    """One run: the world, the user, and the processes of the operator."""

    def __init__(self, scenario: Scenario, trouble: Trouble | None) -> None:
        self._scenario = scenario
        self._trouble = trouble
        self._processes: list[tuple[asyncio.Task[None], FaultyTransport]] = []
        self._errors = _Errors()

    async def play(self) -> Outcome:
        self._world = World(self._scenario.resources)
        user = Api(ApiModel(self._world, "user"), "stage", self._nothing)
        (await user.create(NAMESPACE, {"metadata": {"name": "stage"}})).ok  # noqa: B018 (asserts)
        with self._errors:
            self.start(self._trouble)
            for step in self._scenario.steps:
                await step(user)
                await self._rest(_RESYNC_SECONDS)
            await self._rest(_QUIET_SECONDS)
            for task, _ in self._processes:
                task.cancel()
            await asyncio.gather(*(task for task, _ in self._processes), return_exceptions=True)
        return self._outcome()

    def start(self, trouble: Trouble | None = None) -> None:
        life = _Life(self)
        transport = FaultyTransport(ApiModel(self._world, "skysail"), trouble, life)
        process = Process(transport, now=self._now, seed=len(self._processes))
        self._scenario.build(process)
        life.process = process
        life.task = asyncio.get_running_loop().create_task(process.run(), name=f"operator {len(self._processes)}")
        self._processes.append((life.task, transport))

    async def _rest(self, seconds: float) -> None:
        """Until nothing was written for so long."""
        now = asyncio.get_running_loop().time
        began = quiet_since = now()
        seen = self._activity()
        while now() - quiet_since < seconds:
            await asyncio.sleep(_LOOK_SECONDS)
            self._raise_what_ended()
            if self._activity() != seen:
                seen, quiet_since = self._activity(), now()
            if now() - began > _PATIENCE_SECONDS:
                raise NeverQuiet(f"{self._scenario.name}: still writing after {now() - began:.0f} s")

    def _raise_what_ended(self) -> None:
        for task, _ in self._processes:
            if task.done() and not task.cancelled():
                task.result()

    def _activity(self) -> tuple[int, int]:
        return len(self._world.history.journal), sum(len(transport.effects) for _, transport in self._processes)

    def _outcome(self) -> Outcome:
        first = self._processes[0][1]
        journal = [change for change in self._world.history.journal if change.resource not in _NOT_COMPARED]
        return Outcome(
            end={
                f"{resource.kind} {obj['metadata']['name']}": _masked(obj)
                for resource, objects in self._world.objects.items()
                if resource not in _NOT_COMPARED
                for obj in objects.values()
            },
            history=Counter(
                f"{change.verb} {change.resource.kind} {change.after['metadata']['name']}"
                for change in journal
                if change.verb != "update"
            ),
            effects=len(first.effects),
            reads=first.reads,
            events=first.events,
            errors=self._errors.lines,
            struck=any(transport.struck for _, transport in self._processes),
        )

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())

    async def _nothing(self) -> None: ...


class _Life:
    """One process of the operator, and what trouble does to it."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self.process: Process
        self.task: asyncio.Task[None]

    def crash(self) -> None:
        self.task.cancel()
        asyncio.get_running_loop().call_later(_RESTART_SECONDS, self._stage.start)

    def twin(self) -> None:
        self._stage.start()

    def depose(self) -> None:
        self.process.depose()


class _Errors(logging.Handler):
    """Collects what was logged as an error while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def _masked(value: Any) -> Any:
    """Without what differs from run to run even when nothing goes wrong."""
    if isinstance(value, dict):
        return {key: _masked(item) for key, item in value.items() if key not in _VOLATILE}
    return [_masked(item) for item in value] if isinstance(value, list) else value
