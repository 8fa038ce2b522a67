"""The fifth part: training jobs on nodes that only pretend, beside Kubeflow's training-operator and beside a floor.

The floor is the same Jobs and Services, made by a client that knows them all and looks at nothing. Whoever makes them,
two pods have to be made, bound and started for each job, by the same control plane in the same minutes.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench import pods
from bench.meter import Used
from bench.peers import kubeflow, kwok
from bench.table import Row, number
from bench.training_course import FLOOR, SKYSAIL, STOCK, TUNED, Course, Round
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local.cluster.home import Home

# In turns, because the machine may be busy; what takes minutes is done once.
_ORDER = (FLOOR, SKYSAIL, FLOOR, SKYSAIL, TUNED, FLOOR, SKYSAIL, STOCK)
_WARM_UP = 50


class TrainingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`alone` has seconds from pods to status for TrainingJobs one after another; `held` is with so many that wait."""

    jobs: int
    rounds: dict[str, list[Round]]
    alone: list[float]
    many: int
    held: dict[str, Used]


def run(jobs: int, starts: int, many: int, say: Callable[[str], None]) -> TrainingFigures:
    say("building KWOK and Kubeflow's training-operator, where they are not in the cache")
    for program in (kwok.PROGRAM, kubeflow.PROGRAM):
        program.binary()
    with pods.cluster(say, "--without-operator", "--audit") as home:
        try:
            return asyncio.run(_measure(home, jobs, starts, many, say))
        finally:
            kubeflow.unmount()


def columns(figures: TrainingFigures) -> Sequence[str]:
    return tuple(figures.rounds)


def rows(figures: TrainingFigures) -> list[Row]:
    rounds = figures.rounds.values()
    return [
        Row(f"{figures.jobs:,} jobs created to all pods running, s", [_median(each, "pods") for each in rounds]),
        Row("  to all statuses saying so, s", [_median(each, "statuses") for each in rounds]),
        Row("pods run to status, p50, ms", [pods.at(_late(each), 50) for each in rounds]),
        Row("  p99, ms", [pods.at(_late(each), 99) for each in rounds]),
        Row("writes of all for a job", [_median(each, "all_writes") for each in rounds]),
        Row("processor time of all for a job, ms", [_median(each, "cpu") for each in rounds]),
    ]


def remarks(figures: TrainingFigures) -> list[str]:
    floor, ours = figures.rounds[FLOOR], figures.rounds[SKYSAIL]
    ratio = _median(ours, "statuses") / _median(floor, "pods")
    p50, p99 = (pods.at(figures.alone, each) for each in (50, 99))
    return [
        f"All of Skysail's statuses were there after {ratio:.2f} times the time in which the floor's pods ran.",
        f"One TrainingJob after another, from pods to status: {p50:.0f} ms (p50), {p99:.0f} ms (p99).",
        *(_costs(name, rounds[-1], used) for name, rounds in figures.rounds.items() if (used := rounds[-1].used)),
        *(
            f"{name} holds {number(used.highest_memory)} MB at its highest with {figures.many:,} jobs that are held."
            for name, used in figures.held.items()
        ),
    ]


async def _measure(home: Home, jobs: int, starts: int, many: int, say: Callable[[str], None]) -> TrainingFigures:
    transport = HttpTransport(kubeconfig.from_file(home.kubeconfig))
    client = Client(transport)
    course = Course(home, client)
    rounds: dict[str, list[Round]] = {FLOOR: [], SKYSAIL: [], TUNED: [], STOCK: []}
    held = {}
    try:
        await kwok.start(home, client)
        await kubeflow.install(client)
        say("a first round that does not count")
        await course.at_once(FLOOR, min(jobs, _WARM_UP))
        for name in _ORDER:
            say(f"{name}: {jobs:,} jobs at once")
            rounds[name].append(await course.at_once(name, jobs))
        say(f"{starts} TrainingJobs one after another")
        alone = await course.alone(SKYSAIL, starts)
        for name in (SKYSAIL, TUNED):
            say(f"{name}: {many:,} jobs that are held")
            held[name] = await course.held(name, many)
    finally:
        await transport.close()
    return TrainingFigures(jobs=jobs, rounds=rounds, alone=alone, many=many, held=held)


def _median(rounds: list[Round], what: str) -> float:
    return statistics.median([float(getattr(each, what)) for each in rounds])


def _late(rounds: list[Round]) -> list[float]:
    return [seconds for each in rounds for seconds in each.late]


def _costs(name: str, last: Round, used: Used) -> str:
    details = ", ".join(f"{what} {count:.2f}" for what, count in last.writes.items())
    return (
        f"{name} wrote {sum(last.writes.values()):.1f} times for a job ({details}), read "
        f"{sum(last.reads.values()):.1f} times, used {used.cpu:.1f} s of a processor and at most "
        f"{number(used.highest_memory)} MB."
    )
