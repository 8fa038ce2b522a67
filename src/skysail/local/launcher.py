"""Starts a hull's process detached from whoever asks, and follows it until it is ready."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from skysail.local.cluster.control_client import Control, LocalClusterStatus
from skysail.local.cluster.home import Home
from skysail.local.control_plane.binaries import Binaries
from skysail.local.control_plane.flags import PlaneOptions
from skysail.local.errors import LocalError, MachineUnfit, NotRunning, StartFailed

# By name: the process joins this package with the operator, so it lies above this package.
_PROGRAM = "skysail.app.local_cluster"
# How a hull ends that finds another one in its home.
ANOTHER_RUNS = 75
# A proxy of the user's does not reach into the hull; etcd would take the others for its flags, and the operator for its
# settings. What the user allows pods is meant for the hull.
_MISLEADING = re.compile(r"(?i:.*_proxy)|ETCD_.*|SKYSAIL_(?!ALLOWED_).*")
_SECONDS = 300.0
_POLL_SECONDS = 0.05


class LocalClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a hull is told. It travels as one argument on the command line."""

    home: str
    binaries: Binaries
    plane: PlaneOptions = PlaneOptions()
    with_operator: bool = True
    with_node: bool = False
    # Whether clouds are only pretended, instead of simulated by the node.
    mock_clouds: bool = False
    # Whether the hull ends with the process that started it, however that ends. For tests.
    tied: bool = False


def start(settings: LocalClusterSettings, say: Callable[[str], None]) -> LocalClusterStatus:
    """Returns when the hull of this home is ready, whoever started it: asking twice makes one hull."""
    home = Home(Path(settings.home))
    status = join(home, say)
    while status is None:
        status = _follow(home, say, _spawn(home, settings))
    return status


def join(home: Home, say: Callable[[str], None]) -> LocalClusterStatus | None:
    """The hull that runs here already, once it is ready. None where there is none, or where it ends first."""
    running = _status(Control(home.control))
    return running if running and running.is_ready else _follow(home, say, None)


def stop(home: Home, seconds: float = 60.0) -> bool:
    """End the hull and return when its last process is gone. False if there was none."""
    if not home.is_taken():
        return False

    def ask() -> None:
        with contextlib.suppress(NotRunning):  # on its way down already, or not yet up: then it is asked again
            Control(home.control).stop()

    home.wait_until_free(seconds, ask)
    _collect(home)
    return True


def environment(env: Mapping[str, str], home: Home) -> dict[str, str]:
    """A hull's, from that of whoever starts it: without what would change its servers behind our back."""
    return {name: value for name, value in env.items() if not _MISLEADING.fullmatch(name)} | {
        "SKYSAIL_HOME": str(home.root)
    }


def _follow(home: Home, say: Callable[[str], None], process: int | None) -> LocalClusterStatus | None:
    """Until the hull is ready. None where it was not our process and is gone; raises where ours failed."""
    control = Control(home.control)
    deadline = time.monotonic() + _SECONDS
    position = 0
    while time.monotonic() < deadline:
        if process is None and not home.is_taken():
            return None
        status = _status(control)
        for step in status.steps[position:] if status else ():
            say(step)
        position = len(status.steps) if status else position
        if status and status.is_ready:
            return status
        code = None if process is None else _exit_code(process)
        if code == ANOTHER_RUNS:
            process = None
        elif code is not None:
            raise _failure(home, code)
        time.sleep(_POLL_SECONDS)
    raise StartFailed(f"The hull was not ready after {_SECONDS:.0f} s. {_look(home)}")


def _spawn(home: Home, settings: LocalClusterSettings) -> int:
    """The pid of a process that owes nothing to us: own session, own output, no parent that must look after it."""
    home.prepare()
    return os.posix_spawn(
        sys.executable,
        # -P: the folder in which the user stands may hold files named like our modules.
        [sys.executable, "-P", "-m", _PROGRAM, msgspec.json.encode(settings).decode()],
        environment(os.environ, home),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(home.cluster_log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _exit_code(process: int) -> int | None:
    """None while it runs."""
    pid, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _collect(home: Home) -> None:
    """A hull that this very process started is its child, and stays in the process table until it is waited for."""
    with contextlib.suppress(OSError, ValueError):
        os.waitpid(int(home.pid.read_text()), 0)


def _status(control: Control) -> LocalClusterStatus | None:
    try:
        return control.status()
    except NotRunning:
        return None


def _failure(home: Home, code: int) -> LocalError:
    """What the hull left as its last words. They are told once, so that they are never taken for the next hull's."""
    try:
        message = home.failure.read_text()
    except FileNotFoundError:
        ended = "was stopped" if code == 0 else f"ended (exit code {code})"
        return StartFailed(f"The hull {ended} before it was ready. {_look(home)}")
    home.failure.unlink(missing_ok=True)
    if code == MachineUnfit.exit_code:
        return MachineUnfit(message)
    return StartFailed(f"{message}\n{_look(home)}")


def _look(home: Home) -> str:
    return f"{home.cluster_log} and its neighbours tell more; `skysail up` tries again."
