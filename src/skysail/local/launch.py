"""Starts a hull's process detached from whoever asks, and follows it until it is ready."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from skysail.local.control import Control, HullStatus
from skysail.local.errors import NamespacesForbidden, NotRunning, StartFailed
from skysail.local.home import Home
from skysail.local.plane.binaries import Binaries
from skysail.local.plane.flags import Component, PlaneOptions

# By name: the process joins this package with the operator, so it lies above this package.
_PROGRAM = "skysail.app.hull"
_SECONDS = 300.0
_PAUSE = 0.05


class HullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a hull is told. It travels as one argument on the command line."""

    home: str
    binaries: Binaries
    plane: PlaneOptions = PlaneOptions()
    with_operator: bool = True
    with_node: bool = False
    # Whether the hull ends with the process that started it, however that ends. For tests.
    tied: bool = False


def start(settings: HullSettings, say: Callable[[str], None]) -> HullStatus:
    """Returns when the hull of this home is ready, whoever started it: asking twice makes one hull."""
    home = Home(Path(settings.home))
    home.prepare()
    home.kubectl.write_bytes(msgspec.json.encode(settings.binaries.commands[Component.KUBECTL]))
    process = None if home.is_taken() else _spawn(home, settings)
    control = Control(home.control)
    deadline = time.monotonic() + _SECONDS
    said = 0
    while time.monotonic() < deadline:
        status = _status(control)
        for step in status.steps[said:] if status else ():
            say(step)
        said = len(status.steps) if status else said
        if status and status.is_ready:
            return status
        code = _exit_code(process)
        if code is not None and not home.is_taken():
            raise (NamespacesForbidden if code == NamespacesForbidden.exit_code else StartFailed)(_why(home))
        process = process if code is None else None
        time.sleep(_PAUSE)
    raise StartFailed(f"The hull was not ready after {_SECONDS:.0f} s: see {home.logs}.")


def stop(home: Home, seconds: float = 60.0) -> bool:
    """End the hull and return when its last process is gone. False if there was none."""
    if not home.is_taken():
        return False
    with contextlib.suppress(NotRunning):  # on its way down already, or not yet up: the lock tells
        Control(home.control).stop()
    home.wait_until_free(seconds)
    return True


def _spawn(home: Home, settings: HullSettings) -> int:
    """The pid of a process that owes nothing to us: own session, own output, no parent that must look after it."""
    home.failure.unlink(missing_ok=True)
    log = home.logs / "hull.log"
    if log.exists():
        log.replace(home.logs / "hull.log.1")
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", _PROGRAM, msgspec.json.encode(settings).decode()],
        {**os.environ, "SKYSAIL_HOME": str(home.root)},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _exit_code(process: int | None) -> int | None:
    """None while it runs. A hull that somebody else started has no exit code for us but its lock."""
    if process is None:
        return 0
    pid, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _status(control: Control) -> HullStatus | None:
    try:
        return control.status()
    except NotRunning:
        return None


def _why(home: Home) -> str:
    if home.failure.exists():
        return home.failure.read_text()
    return f"The hull ended before it was ready: see {home.logs / 'hull.log'}."
