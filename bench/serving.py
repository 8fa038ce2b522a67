"""The sixth part: model servers, one after another, each run between two runs of the naive app.

All of them are on one core and who asks is on the other. What is compared is processor time for a request, of all
processes of a server: how many requests a second that makes also depends on what else the machine does.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import process, serving_models
from bench.peers import serving as peers
from bench.peers.serving import NAIVE, ONNX, ONNX_V2, TORCH, Contestant, NotToBeHad, Place
from bench.serving_load import Load
from bench.table import Row

_CONNECTIONS = 16
_PORT = 18080
_STEP = 10
_START_SECONDS = 120
_END_SECONDS = 20
_POLL_SECONDS = 0.05
_WORKLOADS = {
    f"{model}, {rows} row{'s'[: rows - 1]}": (model, rows)
    for model in serving_models.SIZES
    for rows in serving_models.ROWS
}


class Run(msgspec.Struct, frozen=True):
    """Processor seconds for a request, and what the client saw."""

    cpu: float
    load: Load


class Pair(msgspec.Struct, frozen=True):
    """A run, and the naive app's before and after it."""

    run: Run
    before: Run
    after: Run

    def ratio(self, figure: Callable[[Run], float]) -> float:
        return figure(self.run) / ((figure(self.before) + figure(self.after)) / 2)


class Idle(msgspec.Struct, frozen=True):
    """With model S: processor seconds until it has answered once, and memory of all its processes in MB."""

    cpu: float
    memory: float


class ServingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`absent` says why a server is missing."""

    idle: dict[str, list[Idle]]
    pairs: dict[str, dict[str, list[Pair]]]
    absent: dict[str, str]


class Server:
    def __init__(self, contestant: Contestant, child: subprocess.Popen[bytes], port: int, idle: Idle) -> None:
        self._contestant = contestant
        self._child = child
        self._port = port
        self.idle = idle

    def run(self, folder: Path, rows: int, seconds: float) -> Run:
        body = serving_models.body(folder, self._contestant.form, rows)
        told = [str(self._port), self._contestant.path, str(body), str(_CONNECTIONS), str(seconds)]
        began = process.cpu_of_tree(self._child.pid)
        asked = subprocess.run([sys.executable, "-m", "bench.serving_load", *told], stdout=subprocess.PIPE, check=True)
        used = process.cpu_of_tree(self._child.pid) - began
        load = msgspec.json.decode(asked.stdout, type=Load)
        if load.failed:
            raise RuntimeError(f"{load.failed} of {load.requests} requests to {self._contestant.name} failed")
        return Run(used / load.requests, load)


def run(rounds: int, seconds: float, say: Callable[[str], None]) -> ServingFigures:
    idle: dict[str, list[Idle]] = {}
    pairs: dict[str, dict[str, list[Pair]]] = {}
    absent: dict[str, str] = {}
    naive, *others = peers.CONTESTANTS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        say("making environments and models, where they are not in the cache")
        serving_models.make(folder, str(peers.environment(naive) / "python"))
        for model in serving_models.SIZES:
            with _started(naive, folder, model, 0) as floor:
                idle.setdefault(NAIVE, []).extend([floor.idle] if model == "S" else [])
                for place, contestant in enumerate(others, 1):
                    say(f"{contestant.name}, model {model}")
                    try:
                        with _started(contestant, folder, model, place) as server:
                            idle.setdefault(contestant.name, []).extend([server.idle] if model == "S" else [])
                            found = pairs.setdefault(contestant.name, {})
                            found |= _compared(server, floor, folder, model, rounds, seconds)
                    except (NotToBeHad, RuntimeError, subprocess.CalledProcessError) as error:
                        absent[contestant.name] = str(error)
                        say(f"  is left out: {error}")
    return ServingFigures(idle=idle, pairs=pairs, absent=absent)


def _compared(
    server: Server, floor: Server, folder: Path, model: str, rounds: int, seconds: float
) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for name, (wanted, rows) in _WORKLOADS.items():
        if wanted != model:
            continue
        server.run(folder, rows, seconds / 2)  # what is compiled at first is not what is compared
        before = floor.run(folder, rows, seconds)
        for _ in range(rounds):
            ran = server.run(folder, rows, seconds)
            after = floor.run(folder, rows, seconds)
            found.setdefault(name, []).append(Pair(ran, before, after))
            before = after
    return found


@contextmanager
def _started(contestant: Contestant, folder: Path, model: str, place: int) -> Iterator[Server]:
    port = _PORT + place * _STEP
    scratch = folder / f"{place}-{model}"
    scratch.mkdir()
    start = contestant.start(Place(peers.environment(contestant), folder / model, port, scratch))
    log = (scratch / "log").open("wb")
    child = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, process.cores(process.SERVER_CORE))), *start.argv],
        env=start.env,
        cwd=scratch,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        server = f"http://127.0.0.1:{port}"
        first = serving_models.body(folder, contestant.form, 1).read_bytes()
        # Some say that they are ready before their model is.
        for question in (server + contestant.ready, _asking(server + contestant.path, first)):
            _wait(child, question, scratch / "log")
        idle = Idle(process.cpu_of_tree(child.pid), process.memory_of_tree(child.pid))
        yield Server(contestant, child, port, idle)
    finally:
        log.close()
        _end(child)


def _asking(url: str, body: bytes) -> urllib.request.Request:
    return urllib.request.Request(url, body, {"content-type": "application/json"})


def _wait(child: subprocess.Popen[bytes], question: str | urllib.request.Request, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and child.poll() is None:
        try:
            with urllib.request.urlopen(question, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(_POLL_SECONDS)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise RuntimeError(f"it was never ready; its last line: {lines[-1] if lines else ''}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """And everything that it has started: not all of them end their own children."""
    tree = process.tree(child.pid)
    child.terminate()
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for pid in tree[1:]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def tables(figures: ServingFigures) -> list[tuple[str, Sequence[str], list[Row]]]:
    """Ours and the others', each beside the naive app."""
    ours = [name for name in (TORCH, ONNX, ONNX_V2) if name in figures.pairs]
    others = [name for name in figures.pairs if name not in ours]
    title = "Model servers on one core, 16 connections"
    return [
        (f"{title}: ours (requests/s: more is better)", (NAIVE, *ours), _rows(figures, ours)),
        (f"{title}: others", (NAIVE, *others), _rows(figures, others)),
    ]


def remarks(figures: ServingFigures) -> list[str]:
    said = [
        f"Of {name}, a request costs 1/{1 / _ratio(figures, name, what, _cpu):.1f} of the naive app's processor time "
        f"with {what}."
        for name in (TORCH, ONNX)
        for what in figures.pairs.get(name, {})
    ]
    return said + [f"{name} is missing: {reason}." for name, reason in figures.absent.items()]


def _rows(figures: ServingFigures, names: list[str]) -> list[Row]:
    questions: list[tuple[str, float, Callable[[Run], float], Sequence[str]]] = [
        ("processor time for a request, us", 1e6, _cpu, list(_WORKLOADS)),
        ("requests/s", 1, _rate, list(_WORKLOADS)),
        ("p50, ms", 1, lambda run: run.load.p50, list(_WORKLOADS)[::2]),
        ("p99, ms", 1, lambda run: run.load.p99, list(_WORKLOADS)[::2]),
    ]
    rows = [
        Row(f"{title}: {what}", _values(figures, names, what, lambda run, f=figure, s=scale: f(run) * s))
        for title, scale, figure, workloads in questions
        for what in workloads
    ]
    everybody = (NAIVE, *names)
    starts = [statistics.median(each.cpu for each in figures.idle[name]) for name in everybody]
    memory = [statistics.median(each.memory for each in figures.idle[name]) for name in everybody]
    return [*rows, Row("processor time until a first answer, s", starts), Row("memory, MB", memory)]


def _values(figures: ServingFigures, names: list[str], what: str, figure: Callable[[Run], float]) -> list[float]:
    """The naive app's median, and for each other what its ratios to the runs beside it make of that."""
    runs = [pair.before for name in names for pair in figures.pairs[name].get(what, [])]
    if not runs:
        return [0.0] * (len(names) + 1)
    first = statistics.median(map(figure, runs))
    return [first, *(first * _ratio(figures, name, what, figure) for name in names)]


def _ratio(figures: ServingFigures, name: str, what: str, figure: Callable[[Run], float]) -> float:
    found = [pair.ratio(figure) for pair in figures.pairs[name].get(what, [])]
    return statistics.median(found) if found else 0.0


def _cpu(run: Run) -> float:
    return run.cpu


def _rate(run: Run) -> float:
    return run.load.requests / run.load.seconds
