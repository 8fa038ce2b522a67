"""Real processes, but no real waiting: a pause ends when the test says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from skysail.local.cluster.supervisor import Crash, Supervisor, SupervisorDependencies, Unit
from skysail.local.errors import Refused

FOREVER = ("sh", "-c", "echo alive; exec sleep 1000")
# Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT_SECONDS = 600


def fifo(folder: Path) -> Path:
    """Who reads it waits until a unit has written to it."""
    path = folder / "ready"
    os.mkfifo(path)
    return path


class Harness:
    """A supervisor whose pauses and clock belong to the test."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.reports: asyncio.Queue[str] = asyncio.Queue()
        self.paused: asyncio.Queue[float] = asyncio.Queue()
        self.go_on = asyncio.Semaphore(0)
        self.supervisor = Supervisor(
            folder, SupervisorDependencies(now=lambda: self.now, sleep=self.sleep, report=self.reports.put_nowait)
        )

    async def sleep(self, seconds: float) -> None:
        self.paused.put_nowait(seconds)
        await self.go_on.acquire()

    async def next_pause(self) -> float:
        """Bounded, so that a unit that was given up fails its test instead of stopping all."""
        return await asyncio.wait_for(self.paused.get(), TIMEOUT_SECONDS)

    async def pauses(self, count: int) -> list[float]:
        """Let that many crashes happen, and stop at the pause after the last of them."""
        seen = []
        for number in range(count):
            seen.append(await self.next_pause())
            if number < count - 1:
                self.go_on.release()
        return seen

    def only_unit(self):
        (status,) = self.supervisor.status()
        return status


@pytest.fixture
async def stage(tmp_path):
    harness = Harness(tmp_path)
    yield harness
    await harness.supervisor.stop_all()


async def test_a_unit_runs_until_it_is_stopped(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    running = stage.only_unit()
    assert (running.state, running.restarts, running.started) == ("running", 0, 1000.0)
    await stage.supervisor.stop("server")
    assert stage.only_unit().state == "stopped"
    assert stage.only_unit().crash is None


async def test_a_unit_starts_in_its_folder(stage, tmp_path):
    (tmp_path / "folder").mkdir()
    await stage.supervisor.start(Unit(name="server", argv=("pwd",), folder=str(tmp_path / "folder"), restart=False))
    await asyncio.wait_for(stage.reports.get(), TIMEOUT_SECONDS)
    assert stage.only_unit().crash.log_tail == str(tmp_path / "folder")


async def test_a_crash_is_reported_with_the_end_of_its_log(stage):
    await stage.supervisor.start(Unit(name="server", argv=("sh", "-c", "echo last words; exit 37")))
    await stage.pauses(1)
    crash = stage.only_unit().crash
    assert (crash.code, crash.cause, crash.log_tail) == (37, "exit code 37", "last words")
    assert await stage.reports.get() == "server ended (exit code 37), end of its log:\nlast words"
    assert stage.only_unit().state == "waiting"


async def test_only_the_last_lines_of_the_crashed_process_itself_are_shown(stage):
    await stage.supervisor.start(Unit(name="server", argv=("sh", "-c", "seq 1 30; exit 1")))
    await stage.pauses(2)
    assert stage.only_unit().crash.log_tail.splitlines() == [str(number) for number in range(11, 31)]


async def test_back_off_doubles_up_to_half_a_minute(stage):
    await stage.supervisor.start(Unit(name="server", argv=("false",)))
    assert await stage.pauses(9) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert stage.only_unit().restarts == 8


async def test_back_off_begins_anew_after_healthy_time(stage, tmp_path):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    for lived, want in ((1, 0.5), (1, 1.0), (61, 0.5)):
        stage.now += lived
        stage.supervisor.signal("server", signal.SIGKILL)
        assert await stage.next_pause() == want
        stage.go_on.release()
        assert (await stage.reports.get()).startswith("server ended")
        assert await stage.reports.get() == "server was restarted"


async def test_a_killed_unit_names_the_signal(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    stage.supervisor.signal("server", signal.SIGKILL)
    await stage.pauses(1)
    assert stage.only_unit().crash.cause == "signal SIGKILL"


async def test_a_unit_that_shall_not_be_restarted_is_not(stage):
    await stage.supervisor.start(Unit(name="once", argv=("false",), restart=False))
    await stage.reports.get()
    assert (stage.only_unit().state, stage.only_unit().crash.code) == ("stopped", 1)
    assert stage.paused.empty()


async def test_a_stopped_unit_can_be_resumed_as_it_was(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    await stage.supervisor.stop("server")
    await stage.supervisor.resume("server")
    pid = stage.only_unit().pid
    await stage.supervisor.resume("server")
    assert (stage.only_unit().state, stage.only_unit().pid) == ("running", pid)


async def test_starting_a_unit_again_replaces_it(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    first = stage.only_unit().pid
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    assert stage.only_unit().pid != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_a_unit_that_ignores_its_end_is_killed_after_its_grace(stage, tmp_path):
    ready = fifo(tmp_path)
    stubborn = ("sh", "-c", f"trap '' TERM; echo > {ready}; while :; do sleep 0.01; done")
    await stage.supervisor.start(Unit(name="server", argv=stubborn, grace=0))
    await asyncio.to_thread(ready.read_text)
    await stage.supervisor.stop("server")
    assert stage.only_unit().state == "stopped"
    assert await stage.reports.get() == "server did not end within 0 s, killing it"


async def test_all_are_stopped_the_last_first(stage, tmp_path):
    ready, order = fifo(tmp_path), tmp_path / "order"
    for name in ("first", "second", "third"):
        script = f"trap 'echo {name} >> {order}; exit' TERM; echo > {ready}; while :; do sleep 0.01; done"
        await stage.supervisor.start(Unit(name=name, argv=("sh", "-c", script), grace=TIMEOUT_SECONDS))
        await asyncio.to_thread(ready.read_text)
    await stage.supervisor.stop_all()
    assert order.read_text().split() == ["third", "second", "first"]


async def test_an_unknown_unit_is_refused_with_the_known_ones(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    with pytest.raises(Refused, match="Unit serfer not found: the units are server"):
        await stage.supervisor.stop("serfer")


async def test_a_unit_that_does_not_run_takes_no_signal(stage):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    await stage.supervisor.stop("server")
    with pytest.raises(Refused, match="is not running"):
        stage.supervisor.signal("server", signal.SIGTERM)


async def test_a_units_environment_is_added_to_ours(stage, tmp_path):
    script = ("sh", "-c", "echo $WORD $HOME; exit 1")
    await stage.supervisor.start(Unit(name="server", argv=script, env={"WORD": "ahoy"}))
    await stage.pauses(1)
    assert stage.only_unit().crash.log_tail == f"ahoy {Path.home()}"


async def test_a_unit_that_cannot_be_started_again_is_tried_with_back_off_until_it_can(stage, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    await stage.supervisor.start(Unit(name="server", argv=(str(program),)))
    assert await stage.next_pause() == 0.5
    program.rename(tmp_path / "away")
    stage.go_on.release()
    assert await stage.next_pause() == 1.0
    assert (stage.only_unit().state, stage.only_unit().restarts) == ("waiting", 0)
    (tmp_path / "away").rename(program)
    stage.go_on.release()
    assert await stage.next_pause() == 2.0
    assert stage.only_unit().restarts == 1


async def test_nobody_to_tell_is_no_reason_to_give_up_a_unit(stage, tmp_path):
    def full(_words: str) -> None:
        raise OSError(28, "No space left on device")

    supervisor = Supervisor(tmp_path, SupervisorDependencies(now=lambda: 0.0, sleep=stage.sleep, report=full))
    await supervisor.start(Unit(name="server", argv=("false",)))
    assert await stage.pauses(3) == [0.5, 1.0, 2.0]
    await supervisor.stop_all()


async def test_a_unit_whose_log_was_deleted_is_started_again_all_the_same(stage, tmp_path):
    await stage.supervisor.start(Unit(name="server", argv=FOREVER))
    (tmp_path / "server.log").unlink()
    stage.supervisor.signal("server", signal.SIGKILL)
    await stage.pauses(1)
    assert stage.only_unit().crash.log_tail == ""


@pytest.mark.parametrize(
    ("code", "cause"), [(0, "exit code 0"), (-9, "signal SIGKILL"), (-35, "signal 35"), (-64, "signal SIGRTMAX")]
)
def test_every_end_has_a_cause(code, cause):
    assert Crash(at=0.0, code=code, log_tail="").cause == cause


PORT_HOLDER = """
import os, socket
line = socket.socket(fileno=int(os.environ["SKYSAIL_LISTEN_FDS"]))
line.setblocking(True)
while True:
    caller, _ = line.accept()
    caller.sendall(str(os.getpid()).encode())
    caller.close()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as line:
        return line.getsockname()[1]


def takes(port: int) -> list[tuple[object, ...]]:
    """The ways in which somebody else gets the port."""
    families = ((socket.AF_INET, ("0.0.0.0", "127.0.0.1")), (socket.AF_INET6, ("::", "::1")))
    options = ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT))
    taken: list[tuple[object, ...]] = []
    for family, host in ((family, host) for family, hosts in families for host in hosts):
        for chosen in options:
            with socket.socket(family) as line:
                for option in chosen:
                    line.setsockopt(socket.SOL_SOCKET, option, 1)
                with contextlib.suppress(OSError):
                    line.bind((host, port))
                    line.listen()
                    taken.append((host, chosen))
    return taken


async def ask(port: int) -> int:
    """The process that answers. Raises ConnectionError where there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return int(await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS))
    finally:
        writer.close()


async def test_a_port_of_a_unit_stays_taken_while_the_unit_is_started_again(stage):
    port = free_port()
    assert takes(port), "anybody could have it before"
    stage.supervisor.hold((port,))
    assert takes(port) == []
    with pytest.raises(ConnectionError):
        await ask(port)
    await stage.supervisor.start(Unit(name="unit", argv=(sys.executable, "-c", PORT_HOLDER), ports=(port,)))
    assert await ask(port) == stage.only_unit().pid, "who calls while it starts is answered"
    assert takes(port) == []
    for _ in range(3):
        before = stage.only_unit().pid
        stage.supervisor.signal("unit", signal.SIGKILL)
        await stage.next_pause()
        assert takes(port) == []
        with pytest.raises(ConnectionError):
            await ask(port)
        stage.go_on.release()
        while stage.only_unit().pid is None:  # noqa: ASYNC110 (the supervisor tells nobody)
            await asyncio.sleep(0.005)
        assert await ask(port) == stage.only_unit().pid != before
    await stage.supervisor.stop("unit")
    assert takes(port) == []
    with pytest.raises(ConnectionError):
        await ask(port)
    await stage.supervisor.stop_all()
    assert takes(port)


async def test_a_unit_whose_port_somebody_has_is_not_started(stage):
    with socket.create_server(("", 0)) as line:
        port = line.getsockname()[1]
        with pytest.raises(Refused, match=f"Port {port} "):
            await stage.supervisor.start(Unit(name="unit", argv=FOREVER, ports=(port,)))
    assert stage.supervisor.status() == ()
