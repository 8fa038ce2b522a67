"""Plays a scenario once undisturbed, then once for each thing that can go wrong at each place; all must end alike.

A scenario is what a user does. The reference run counts the effects, reads and watch events of the operator; each of
them is then a place for a crash, a lost reply, a refusal, a second operator, a lying watch, or something that lasts.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from skysail.kube.api.resources import EVENT, LEASE, NAMESPACE
from tests.contract.api_dsl import Api
from tests.simulation import outages as outages_module
from tests.simulation.api import ApiModel
from tests.simulation.faults import (
    EFFECT_TROUBLES,
    EVENT_TROUBLES,
    READ_TROUBLES,
    WRITE_TROUBLES,
    Effect,
    FaultyTransport,
    InjectedFault,
    On,
)
from tests.simulation.operator_process import Process
from tests.simulation.outages import Outages
from tests.simulation.stale_reads import StaleApi
from tests.simulation.world import EPOCH, World
from tests.support import sampling, virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from skysail.kube.api.resources import Resource
    from tests.simulation.watches import Change
    from tests.simulation.world import Resident

Object = dict[str, Any]

# A resync at its latest, with the audit that it brings: what a lying watch left open is settled by then.
_RESYNC_SECONDS = 660.0 + 40.0
# Who wrote nothing for three of them stays quiet. A disturbed run that came to the same end needs no other proof.
_QUIET_SECONDS = 3 * _RESYNC_SECONDS
_TIMEOUT_SECONDS = 20 * _QUIET_SECONDS
_RESTART_SECONDS = 5.0
# A restart, a pause of a call that failed, or as many listings as prove that something is not there.
_SETTLING_SECONDS = 150.0
# How many changes a server that lags has not heard of.
_BEHIND = 3
_POLL_SECONDS = 50.0
_LOOKS_AFTER_AN_EFFECT = 3
STAGE = "stage"  # the namespace of every scenario
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
    # Controllers of the cluster that the story needs, such as the one of Jobs.
    residents: tuple[Callable[[World], Resident], ...] = ()
    # What is compared of an object that has gone; nothing, where that is empty.
    last_word: Callable[[Change], Object] = lambda _: {}
    # What is there in every right run or in none, and may differ from one to the other.
    volatile: frozenset[str] = frozenset()
    # What a right run may have or not.
    optional: frozenset[str] = frozenset()
    # How long the operator may need to prove that something is not there.
    settling: float = _SETTLING_SECONDS
    # When the run starts, in seconds after the epoch of the world.
    start: float = 0.0


class Outside(Protocol):
    """What is outside of the cluster. Every run has its own."""

    async def close(self) -> None: ...

    def bill(self, world: World) -> Bill:
        """What was paid for."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """What was paid for one claim: how many instances, and how many seconds of them served nobody.

    `error` is by how many seconds of its price the claim is wrong about its cost.
    """

    instances: int
    idle: float
    error: float


class Bill(msgspec.Struct, frozen=True):
    """The most that was paid for at once for one claim, and for how many nobody is there. `wrong` must never be."""

    at_once: int = 0
    orphans: int = 0
    wrong: list[str] = []
    dues: dict[str, Due] = {}
    # Jobs with more than one instance at once. Those of the stories have one pod, and the next one when it goes.
    doubled: list[str] = []
    # Instances that are still paid for.
    unended: list[str] = []


class Outcome(msgspec.Struct, frozen=True):
    """What a run left behind. `struck`: how many of the processes had trouble."""

    end: dict[str, Any]
    history: Counter[str]
    effects: list[Effect]
    writes: int
    reads: int
    events: int
    errors: list[str]
    struck: int
    strays: int
    calls: int = 0
    # How many effects there were before each look at what a cloud runs.
    surveys: list[int] = []
    bill: Bill = Bill()


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong with a disturbed run, and what it left behind where it came to an end."""

    wrong: list[str]
    outcome: Outcome | None = None


_NOTHING_DUE = Due(instances=0, idle=0.0, error=0.0)

KINDS: tuple[tuple[On, str], ...] = (
    *(("effect", what) for what in EFFECT_TROUBLES),
    *(("write", what) for what in WRITE_TROUBLES),
    *(("read", what) for what in READ_TROUBLES),
    *(("event", what) for what in EVENT_TROUBLES),
)


def reference(scenario: Scenario) -> Outcome:
    return play(scenario, None)


def faults_for(outcome: Outcome, on: On, what: str) -> list[InjectedFault]:
    """Return this trouble at each place of a run like that one, or at a sample of the places."""
    return [InjectedFault(on, at, what) for at in sampling.sample(_places(outcome, on))]


def _places(outcome: Outcome, on: On) -> Sequence[int]:
    if on == "survey":
        return _telling(outcome.surveys)
    places = {
        "effect": len(outcome.effects),
        "write": outcome.writes,
        "read": outcome.reads,
        "event": outcome.events,
        "call": outcome.calls,
    }[on]
    return range(1, places + 1)


def _telling(surveys: list[int]) -> list[int]:
    """The first three looks after each effect: those that follow find nothing else than they did."""
    earlier = Counter[int]()
    places = []
    for at, effects in enumerate(surveys, start=1):
        earlier[effects] += 1
        if earlier[effects] <= _LOOKS_AFTER_AN_EFFECT:
            places.append(at)
    return places


def check(scenario: Scenario, expected: Outcome, fault: InjectedFault) -> Verdict:
    """Play it with this trouble and say what is wrong with the outcome."""
    try:
        found = play(scenario, fault)
    except (AssertionError, virtual_time.Deadlock, TimeoutError) as error:
        return Verdict([f"{fault}: {type(error).__name__} {error}"])
    wrong = violations(scenario, expected, found) + _overcharges(expected, found, _lag(fault, scenario.settling))
    if fault.on != "event":  # who is not told that a pod goes takes the next one for another
        wrong += [f"Job {job} was paid for twice at once" for job in found.bill.doubled]
    return Verdict([f"{fault}: {complaint}" for complaint in wrong], found)


def _lag(fault: InjectedFault, settling: float) -> float:
    """For how long trouble may keep an operator from knowing what to do."""
    if fault.on == "event":
        return _RESYNC_SECONDS + settling
    return outages_module.seconds(fault.what) + settling


def violations(scenario: Scenario, expected: Outcome, found: Outcome) -> list[str]:
    """What is wrong with a disturbed run; nothing, if it came to the same end in the same way."""
    wrong = [f"ERROR logged: {line}" for line in found.errors] + found.bill.wrong
    if found.strays:
        wrong.append(f"an operator without its lease acted {found.strays} times")
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


def journal(scenario: Scenario) -> list[Change]:
    """All that changed in an undisturbed run, in order."""
    stage = _Stage(scenario, None)
    virtual_time.run(stage.play(), start=scenario.start)
    return stage.changes


def _overcharges(expected: Outcome, found: Outcome, seconds: float) -> list[str]:
    """What was paid twice, or for nobody, for longer than the trouble explains; and what claims say wrongly of it."""
    wrong = []
    for claim, due in found.bill.dues.items():
        usual = expected.bill.dues.get(claim, _NOTHING_DUE)
        if due.instances > max(usual.instances, 1):
            wrong.append(f"claim {claim} paid for {due.instances} instances, expected {usual.instances}")
        if due.idle > usual.idle + seconds:
            wrong.append(f"claim {claim} paid {due.idle:.0f} s for nobody, expected {usual.idle:.0f} s")
        if due.error > usual.error + seconds:
            wrong.append(f"claim {claim} is wrong about its cost by {due.error:.0f} s")
    return wrong


def play(scenario: Scenario, fault: InjectedFault | None) -> Outcome:
    return virtual_time.run(_Stage(scenario, fault).play(), start=scenario.start)


class NeverQuiet(AssertionError):
    """The operator goes on writing although nobody wants anything."""


class _Stage:
    """One run: the world, the user, and the processes of the operator."""

    def __init__(self, scenario: Scenario, fault: InjectedFault | None) -> None:
        self._scenario = scenario
        self._trouble = fault
        self._is_down = False
        # The process that is disturbed: the first one, or the one after an outage that is part of the story.
        self._observed = 0
        self._processes: list[tuple[asyncio.Task[None], FaultyTransport]] = []
        self._errors = _Errors()
        self.weather = Outages()
        self.outside: Outside | None = None

    async def play(self) -> Outcome:
        self._world = World(self._scenario.resources)
        self._world.residents += [settle(self._world) for settle in self._scenario.residents]
        user = Api(ApiModel(self._world, "user"), STAGE, self._nothing)
        (await user.create(NAMESPACE, {"metadata": {"name": STAGE}})).ok  # noqa: B018 (asserts)
        if self._scenario.outside:
            self.outside = self._scenario.outside()
        with self._errors:
            self.start(None if self._scenario.down else self._trouble)
            for number, step in enumerate(self._scenario.steps):
                if number:
                    await self._rest(_RESYNC_SECONDS)
                if number in self._scenario.down:
                    await self._stop()
                async with asyncio.timeout(_TIMEOUT_SECONDS):  # a user who waits for what never comes
                    await step(user)
                if number in self._scenario.down:
                    self._is_down = False
                    self._observed = len(self._processes)
                    self.start(self._trouble)
            await self._rest(_RESYNC_SECONDS)
            first = self._processes[self._observed][1]
            reads, surveys = first.reads, list(first.surveys)
            if self._trouble is None:
                await self._rest(_QUIET_SECONDS)
            await self._stop()
        outcome = msgspec.structs.replace(self._outcome(), reads=reads, surveys=surveys)
        if self.outside:
            await self.outside.close()
        return outcome

    @property
    def changes(self) -> list[Change]:
        return self._world.history.journal

    async def _stop(self) -> None:
        self._is_down = True
        for task, _ in self._processes:
            task.cancel()
        await asyncio.gather(*(task for task, _ in self._processes), return_exceptions=True)

    def start(self, fault: InjectedFault | None = None, *, back: int = 0) -> None:
        if self._is_down:
            return
        life = _Life(self, fault)
        api = StaleApi(self._world, "skysail", back) if back else ApiModel(self._world, "skysail")
        behind = functools.partial(StaleApi, self._world, "skysail", _BEHIND)
        transport = FaultyTransport(api, fault, life, self.weather, behind=behind)
        process = Process(transport, now=self._now, seed=len(self._processes), outside=self.outside)
        self._scenario.build(process)
        life.process = process
        life.task = asyncio.get_running_loop().create_task(
            process.run(), name=f"operator {len(self._processes)}", context=transport.freeze.context()
        )
        self._processes.append((life.task, transport))

    def end_for_good(self) -> None:
        """Without a process after it."""
        self._is_down = True
        for task, _ in self._processes:
            task.cancel()

    async def _rest(self, seconds: float) -> None:
        """Until nothing was written for so long."""
        now = asyncio.get_running_loop().time
        began = quiet_since = now()
        seen = self._activity()
        while now() - quiet_since < seconds:
            await asyncio.sleep(_POLL_SECONDS)
            self._raise_what_ended()
            if self._activity() != seen or self.weather.is_bad:
                seen, quiet_since = self._activity(), now()
            if now() - began > _TIMEOUT_SECONDS:
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
        masked = functools.partial(
            names.masked, volatile=self._scenario.volatile, left_out=_VOLATILE | self._scenario.optional
        )
        return Outcome(
            end={
                f"last word of {names.without_uids(_place(change.after))}": masked(word)
                for change in journal
                if change.gone and (word := self._scenario.last_word(change))
            }
            | {
                f"{resource.kind} {names.without_uids(_place(obj))}": masked(obj)
                for resource, objects in self._world.objects.items()
                if resource not in _NOT_COMPARED
                for obj in objects.values()
            },
            history=Counter(
                f"{change.verb} {change.resource.kind} {names.without_uids(_place(change.after))}"
                for change in journal
                if change.verb != "update"
            ),
            effects=first.effects,
            writes=first.writes,
            reads=first.reads,
            events=first.events,
            errors=self._errors.lines,
            struck=sum(transport.struck for _, transport in self._processes),
            strays=sum(transport.strays for _, transport in self._processes),
            calls=first.calls,
            surveys=first.surveys,
            bill=self._bill(names),
        )

    def _bill(self, names: _Names) -> Bill:
        bill = self.outside.bill(self._world) if self.outside else Bill()
        return msgspec.structs.replace(bill, dues={names.without_uids(claim): due for claim, due in bill.dues.items()})

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time()) + self.weather.jump

    async def _nothing(self) -> None: ...


def _place(obj: Object) -> str:
    """Return the name of an object, with its namespace if that is another than the one of the scenario."""
    namespace, name = obj["metadata"].get("namespace", STAGE), obj["metadata"]["name"]
    return str(name) if namespace == STAGE else f"{namespace}/{name}"


class _Life:
    """One process of the operator, and what trouble does to it."""

    def __init__(self, stage: _Stage, fault: InjectedFault | None) -> None:
        self._stage = stage
        self._trouble = fault
        self.is_deposed = False
        self.process: Process
        self.task: asyncio.Task[None]

    def crash(self) -> None:
        assert self._trouble is not None, "only trouble makes it crash"
        if self._trouble.what == "death":
            self._stage.end_for_good()
            return
        start = functools.partial(self._stage.start, self._trouble.then, back=self._trouble.back)
        self.task.cancel()
        asyncio.get_running_loop().call_later(_RESTART_SECONDS, start)

    def twin(self) -> None:
        self._stage.start()

    def depose(self) -> None:
        self.is_deposed = True
        self.process.depose()

    def retire(self) -> None:
        self.task.cancel()

    def begin(self, what: str) -> None:
        self._stage.weather.begin(what)


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
            if change.verb == "create":
                place = _place(change.after)
                seen[place] += 1
                self._aliases[change.after["metadata"]["uid"]] = f"{place}#{seen[place]}"

    def without_uids(self, text: str) -> str:
        for uid, alias in self._aliases.items():
            text = text.replace(uid, alias)
        return text

    def masked(self, value: Any, volatile: frozenset[str], left_out: frozenset[str]) -> Any:
        """Without what differs from run to run even when nothing goes wrong."""
        if isinstance(value, dict):
            kept = {key: item for key, item in value.items() if key not in left_out}
            return {
                key: bool(item) if key in volatile else self.masked(item, volatile, left_out)
                for key, item in kept.items()
            }
        if isinstance(value, list):
            return [self.masked(item, volatile, left_out) for item in value]
        return self.without_uids(value) if isinstance(value, str) else value
