"""Start the process of a local cluster in the background, and wait until the cluster is ready."""

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

# By name, because `app` imports this package, not the other way round.
_PROGRAM = "skysail.app.local_cluster"
# Exit code of a local cluster process that finds another one in its home.
ANOTHER_RUNS = 75
# Not inherited: the user's HTTP proxy is not reachable inside the local cluster, etcd reads ETCD_* as flags, and the
# operator reads SKYSAIL_* as settings. SKYSAIL_ALLOWED_* is inherited, because it is meant for the local cluster.
_MISLEADING = re.compile(r"(?i:.*_proxy)|ETCD_.*|SKYSAIL_(?!ALLOWED_).*")
_SECONDS = 300.0
_POLL_SECONDS = 0.05


class LocalClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a local cluster process, passed as one command line argument."""

    home: str
    binaries: Binaries
    plane: PlaneOptions = PlaneOptions()
    with_operator: bool = True
    with_node: bool = False
    # Install Skysail's CRDs and roles. Without them the cluster is empty, as for an installation of the chart.
    with_kinds: bool = True
    # Use mock clouds in the operator instead of clouds simulated by the node.
    mock_clouds: bool = False
    # Clouds whose real account the operator opens at a stand-in of the node.
    stand_ins: tuple[str, ...] = ()
    # Stop the local cluster when the process that started it ends, for whatever reason. For tests.
    tied: bool = False


def start(settings: LocalClusterSettings, report: Callable[[str], None]) -> LocalClusterStatus:
    """Start the local cluster of this home, and return its status when it is ready.

    If one is running or starting already, wait for that one: calling twice starts one local cluster.
    """
    home = Home(Path(settings.home))
    status = join(home, report)
    while status is None:
        status = _follow(home, report, _spawn(home, settings))
    return status


def join(home: Home, report: Callable[[str], None]) -> LocalClusterStatus | None:
    """Return the status of the running local cluster when it is ready.

    Returns None if no local cluster runs in this home, or if it ends before it is ready.
    """
    running = _status(Control(home.control))
    return running if running and running.is_ready else _follow(home, report, None)


def stop(home: Home, seconds: float = 60.0) -> bool:
    """Stop the local cluster, and return when its last process has ended. Returns False if none was running."""
    if not home.is_taken():
        return False

    def ask() -> None:
        with contextlib.suppress(NotRunning):  # stopping already, or not up yet: the next call asks again
            Control(home.control).stop()

    home.wait_until_free(seconds, ask)
    _collect(home)
    return True


def environment(env: Mapping[str, str], home: Home) -> dict[str, str]:
    """Return the environment of a local cluster, without variables that would change its servers unexpectedly."""
    return {name: value for name, value in env.items() if not _MISLEADING.fullmatch(name)} | {
        "SKYSAIL_HOME": str(home.root)
    }


def _follow(home: Home, report: Callable[[str], None], process: int | None) -> LocalClusterStatus | None:
    """Wait until the local cluster is ready.

    `process` is the pid of our child, or None if another process started the local cluster.
    Returns None if it was started by another process and has ended.
    Raises LocalError if our child failed.
    """
    control = Control(home.control)
    deadline = time.monotonic() + _SECONDS
    position = 0
    while time.monotonic() < deadline:
        if process is None and not home.is_taken():
            return None
        status = _status(control)
        for step in status.steps[position:] if status else ():
            report(step)
        position = len(status.steps) if status else position
        if status and status.is_ready:
            return status
        code = None if process is None else _exit_code(process)
        if code == ANOTHER_RUNS:
            process = None
        elif code is not None:
            raise _failure(home, code)
        time.sleep(_POLL_SECONDS)
    raise StartFailed(f"The local cluster was not ready after {_SECONDS:.0f} s. {_look(home)}")


def _spawn(home: Home, settings: LocalClusterSettings) -> int:
    """Start a detached process with its own session and output, and return its pid."""
    home.prepare()
    return os.posix_spawn(
        sys.executable,
        # -P: the working directory may contain files named like our modules.
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
    """Return the exit code of a child, or None while it runs."""
    pid, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _collect(home: Home) -> None:
    """Wait for the local cluster if it is a child of this process, so that it does not stay a zombie."""
    with contextlib.suppress(OSError, ValueError):
        os.waitpid(int(home.pid.read_text()), 0)


def _status(control: Control) -> LocalClusterStatus | None:
    try:
        return control.status()
    except NotRunning:
        return None


def _failure(home: Home, code: int) -> LocalError:
    """Return the error that the local cluster left in its home.

    The file is deleted, so that the error is not taken for one of the next start.
    """
    try:
        message = home.failure.read_text()
    except FileNotFoundError:
        ended = "was stopped" if code == 0 else f"ended (exit code {code})"
        return StartFailed(f"The local cluster {ended} before it was ready. {_look(home)}")
    home.failure.unlink(missing_ok=True)
    if code == MachineUnfit.exit_code:
        return MachineUnfit(message)
    return StartFailed(f"{message}\n{_look(home)}")


def _look(home: Home) -> str:
    return f"Details are in {home.cluster_log} and the other logs beside it; `skysail up` tries again."
