"""Supervise units (long-lived processes): restart them with backoff, and keep the end of the log of each crash.

Knows nothing of Kubernetes. A unit writes directly to its log file, so a verbose unit costs the supervisor nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from skysail.base import inherited_listeners
from skysail.local.cluster.listeners import Listeners
from skysail.local.errors import Refused

_INITIAL_BACKOFF = 0.5
_MAX_BACKOFF = 30.0
_HEALTHY_AFTER = 60.0
_TAIL_LINES = 20
_TAIL_BYTES = 4096
_MAX_LOG_BYTES = 20_000_000


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A process to run, with its restart policy.

    `env` is added to the supervisor's environment. `folder` is the working directory, by default the supervisor's.
    `ports` are opened once and inherited by each process of the unit (`base.inherited_listeners`).
    """

    name: str
    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    env: Mapping[str, str] = {}
    folder: str | None = None
    restart: bool = True
    grace: float = 10.0
    ports: tuple[Annotated[int, msgspec.Meta(ge=1, le=65535)], ...] = ()


class Crash(msgspec.Struct, frozen=True, kw_only=True):
    """An exit that was not requested. `code` is negative for a signal."""

    at: float
    code: int
    log_tail: str

    @property
    def cause(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:  # signals from SIGRTMIN to SIGRTMAX have no name of their own
            return f"signal {-self.code}"


class UnitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a unit, for `skysail status`."""

    name: str
    state: str  # running, waiting (for its restart), stopped
    pid: int | None = None
    started: float | None = None
    restarts: int = 0
    crash: Crash | None = None


class SupervisorDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a supervisor: clock, sleep, and a log."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    report: Callable[[str], None]


class Supervisor:
    """Owns the processes of its units. All methods must be called in one event loop."""

    def __init__(self, logs: Path, dependencies: SupervisorDependencies) -> None:
        self._logs = logs
        self._dependencies = dependencies
        self._units: dict[str, _Supervised] = {}
        self._listeners = Listeners()

    def hold(self, ports: Iterable[int]) -> None:
        """Open ports for units that start later, before another process can. Raises Refused if a port is in use."""
        self._listeners.hold(ports)

    async def start(self, unit: Unit) -> None:
        """Start a unit, or replace the unit of the same name. Returns when the process exists, not when it is ready."""
        self._listeners.hold(unit.ports)
        known = self._units.get(unit.name)
        if known is not None:
            await known.stop()
        supervised = _Supervised(unit, self._logs / f"{unit.name}.log", self._dependencies, self._listeners)
        self._units[unit.name] = supervised
        await supervised.start()

    async def resume(self, name: str) -> None:
        """Start a stopped unit again, unchanged. Does nothing if the unit is running."""
        known = self._known(name)
        if not known.is_supervised:
            await known.start()

    async def stop(self, name: str) -> None:
        """Stop a unit with TERM, and with KILL after its grace period. Idempotent."""
        await self._known(name).stop()

    async def stop_all(self) -> None:
        """Stop all units, the last started first, so that none outlives its dependencies."""
        for supervised in reversed(self._units.values()):
            await supervised.stop()
        self._listeners.close()

    def signal(self, name: str, number: int) -> None:
        """Send a signal. An exit caused by the signal counts as a crash."""
        self._known(name).signal(number)

    def status(self) -> tuple[UnitStatus, ...]:
        return tuple(supervised.status() for supervised in self._units.values())

    def _known(self, name: str) -> _Supervised:
        if name not in self._units:
            raise Refused(f"Unit {name} not found: the units are {', '.join(self._units) or 'none'}.")
        return self._units[name]


class _Supervised:
    """One unit, its process, and the task that watches the process."""

    def __init__(self, unit: Unit, log: Path, dependencies: SupervisorDependencies, listeners: Listeners) -> None:
        self._unit = unit
        self._listeners = listeners
        self._log = log
        self._dependencies = dependencies
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._log_start = 0
        self._started: float | None = None
        self._restarts = 0
        self._crash: Crash | None = None

    @property
    def is_supervised(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        try:
            self._process = await self._spawn()
        except OSError:
            self._listeners.reset_connections(self._unit.ports)
            raise
        self._task = asyncio.create_task(self._watch(), name=f"unit {self._unit.name}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            await self._end(process)
            self._listeners.reset_connections(self._unit.ports)

    def signal(self, number: int) -> None:
        if self._process is None or self._process.returncode is not None:
            raise Refused(f"Unit {self._unit.name} is not running.")
        self._process.send_signal(number)

    def status(self) -> UnitStatus:
        is_running = self._process is not None and self._process.returncode is None
        is_waiting = not is_running and self.is_supervised
        return UnitStatus(
            name=self._unit.name,
            state="running" if is_running else "waiting" if is_waiting else "stopped",
            pid=self._process.pid if is_running and self._process else None,
            started=self._started if is_running else None,
            restarts=self._restarts,
            crash=self._crash,
        )

    async def _spawn(self) -> asyncio.subprocess.Process:
        if self._log.exists() and self._log.stat().st_size > _MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            inherited = self._listeners.hand_over(self._unit.ports)
            process = await asyncio.create_subprocess_exec(
                *self._unit.argv,
                env={**os.environ, **self._unit.env, **_handed_over(inherited)},
                pass_fds=inherited,
                cwd=self._unit.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started = self._dependencies.now()
        return process

    async def _watch(self) -> None:
        backoff = _INITIAL_BACKOFF
        while self._process is not None:
            code = await self._process.wait()
            self._listeners.reset_connections(self._unit.ports)
            lived = self._dependencies.now() - (self._started or 0.0)
            self._record_crash(code)
            if not self._unit.restart:
                return
            backoff = await self._respawn(_INITIAL_BACKOFF if lived > _HEALTHY_AFTER else backoff)

    async def _respawn(self, backoff: float) -> float:
        """Retry until a process has started. Returns the backoff of the next restart."""
        while True:
            await self._dependencies.sleep(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF)
            try:
                self._process = await self._spawn()
            except OSError as error:
                self._listeners.reset_connections(self._unit.ports)
                self._report(f"{self._unit.name} cannot be started, retrying: {error}")
                continue
            self._restarts += 1
            self._report(f"{self._unit.name} was restarted")
            return backoff

    def _report(self, message: str) -> None:
        """Write to the log. A full disk must not stop the unit."""
        with contextlib.suppress(OSError):
            self._dependencies.report(message)

    def _record_crash(self, code: int) -> None:
        self._crash = Crash(at=self._dependencies.now(), code=code, log_tail=_tail(self._log, self._log_start))
        self._report(f"{self._unit.name} ended ({self._crash.cause}), end of its log:\n{self._crash.log_tail}")

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._unit.grace)
        except TimeoutError:
            self._report(f"{self._unit.name} did not end within {self._unit.grace:.0f} s, killing it")
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session, so this ends its children too
            await process.wait()


def _handed_over(descriptors: tuple[int, ...]) -> dict[str, str]:
    return {inherited_listeners.VARIABLE: ",".join(map(str, descriptors))} if descriptors else {}


def _tail(log: Path, start: int) -> str:
    """Return the last lines written since `start`, without reading the rest. Empty if the log was deleted."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])
    except OSError:
        return ""
