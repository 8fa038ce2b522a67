"""Plays a scenario once undisturbed, then once for each thing that can go wrong at each place; all must end alike.

A scenario is what a user does. The reference run counts the effects, reads and watch events of the operator; each of
them is then a place for a crash, a lost reply, a refusal, a second operator or a lying watch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

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
    from tests.simulation.watches import Change

Object = dict[str, Any]

# A resync at its latest, with the audit that it brings: what a lying watch left open is settled by then.
_RESYNC_SECONDS = 660.0 + 40.0
# Who wrote nothing for three of them stays quiet.
_QUIET_SECONDS = 3 * _RESYNC_SECONDS
_PATIENCE_SECONDS = 20 * _QUIET_SECONDS
_RESTART_SECONDS = 5.0
_LOOK_SECONDS = 50.0
_VOLATILE = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields", "lastTransitionTime"}
)
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
    # Steps, by their place, that happen while no operator runs.
    down: frozenset[int] = frozenset()
    # What is outside of the cluster and outlives the operator, such as a cloud.
    outside: Callable[[], Outside] | None = None
    # Besides times and versions: what may differ between two right runs.
    volatile: frozenset[str] = frozenset()


class Outside(Protocol):
    """What is outside of the cluster. Every run has its own."""

    async def close(self) -> None: ...

    def complaints(self, world: World) -> list[str]:
        """What must never be, whatever went wrong."""


class Outcome(msgspec.Struct, frozen=True):
    """What a run left behind."""

    end: dict[str, Any]
    history: Counter[str]
    effects: int
    reads: int
    events: int
    errors: list[str]
    struck: bool
    calls: int = 0
    surveys: int = 0
    outrages: list[str] = []


KINDS: tuple[tuple[On, str], ...] = (
    *(("effect", what) for what in EFFECT_TROUBLES),
    *(("read", what) for what in READ_TROUBLES),
    *(("event", what) for what in EVENT_TROUBLES),
)


def reference(scenario: Scenario) -> Outcome:
    return play(scenario, None)


def troubles(outcome: Outcome, on: On, what: str) -> list[Trouble]:
    """This trouble, at each place of a run like that one."""
    places = {
        "effect": outcome.effects,
        "read": outcome.reads,
        "event": outcome.events,
        "call": outcome.calls,
        "survey": outcome.surveys,
    }[on]
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
    wrong = [f"ERROR logged: {line}" for line in found.errors] + found.outrages
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
        self._is_down = False
        # The process that is disturbed: the first one, or the one after an outage that is part of the story.
        self._observed = 0
        self._processes: list[tuple[asyncio.Task[None], FaultyTransport]] = []
        self._errors = _Errors()
        self.outside: Outside | None = None

    async def play(self) -> Outcome:
        self._world = World(self._scenario.resources)
        user = Api(ApiModel(self._world, "user"), "stage", self._nothing)
        (await user.create(NAMESPACE, {"metadata": {"name": "stage"}})).ok  # noqa: B018 (asserts)
        if self._scenario.outside:
            self.outside = self._scenario.outside()
        with self._errors:
            self.start(None if self._scenario.down else self._trouble)
            for number, step in enumerate(self._scenario.steps):
                if number in self._scenario.down:
                    await self._stop()
                await step(user)
                if number in self._scenario.down:
                    self._is_down = False
                    self._observed = len(self._processes)
                    self.start(self._trouble)
                await self._rest(_RESYNC_SECONDS)
            await self._rest(_QUIET_SECONDS)
            await self._stop()
        outcome = self._outcome()
        if self.outside:
            await self.outside.close()
        return outcome

    async def _stop(self) -> None:
        self._is_down = True
        for task, _ in self._processes:
            task.cancel()
        await asyncio.gather(*(task for task, _ in self._processes), return_exceptions=True)

    def start(self, trouble: Trouble | None = None) -> None:
        if self._is_down:
            return
        life = _Life(self)
        transport = FaultyTransport(ApiModel(self._world, "skysail"), trouble, life)
        process = Process(transport, now=self._now, seed=len(self._processes), outside=self.outside)
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
        first = self._processes[self._observed][1]
        journal = [change for change in self._world.history.journal if change.resource not in _NOT_COMPARED]
        names = _Names(journal)
        volatile = _VOLATILE | self._scenario.volatile
        return Outcome(
            end={
                f"{resource.kind} {names.without_uids(obj['metadata']['name'])}": names.masked(obj, volatile)
                for resource, objects in self._world.objects.items()
                if resource not in _NOT_COMPARED
                for obj in objects.values()
            },
            history=Counter(
                f"{change.verb} {change.resource.kind} {names.without_uids(change.after['metadata']['name'])}"
                for change in journal
                if change.verb != "update"
            ),
            effects=len(first.effects),
            reads=first.reads,
            events=first.events,
            errors=self._errors.lines,
            struck=any(transport.struck for _, transport in self._processes),
            calls=first.calls,
            surveys=first.surveys,
            outrages=self.outside.complaints(self._world) if self.outside else [],
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


class _Names:
    """Tells the same story of two runs alike, although the server gave other UIDs."""

    def __init__(self, journal: list[Change]) -> None:
        self._aliases: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for change in journal:
            metadata = change.after["metadata"]
            if change.verb == "create":
                seen[metadata["name"]] += 1
                self._aliases[metadata["uid"]] = f"{metadata['name']}#{seen[metadata['name']]}"

    def without_uids(self, text: str) -> str:
        for uid, alias in self._aliases.items():
            text = text.replace(uid, alias)
        return text

    def masked(self, value: Any, volatile: frozenset[str]) -> Any:
        """Without what differs from run to run even when nothing goes wrong."""
        if isinstance(value, dict):
            return {key: self.masked(item, volatile) for key, item in value.items() if key not in volatile}
        if isinstance(value, list):
            return [self.masked(item, volatile) for item in value]
        return self.without_uids(value) if isinstance(value, str) else value
