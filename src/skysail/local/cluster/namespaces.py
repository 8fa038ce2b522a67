"""Linux namespaces of the local cluster: net, mount and pid, and user if we are not root.

The machine's own network is never changed, not even as root. When the outer process dies, for whatever reason, the
kernel kills everything inside and frees all namespaces: outer -> entry -> init -> payload. Parent-death signals connect
the first three; the payload is in the pid namespace of init.

This module creates the namespaces. The caller passes in the program that runs inside.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from skysail.local.addresses import BRIDGE, CLUSTER_IP, RUN_FOLDER
from skysail.local.cluster import syscalls
from skysail.local.errors import MachineUnfit, NamespacesForbidden

Payload = Callable[[], int]

_WAYS_OUT = (
    "run skysail with sudo; or allow unprivileged user namespaces (sysctl user.max_user_namespaces above 0, "
    "kernel.unprivileged_userns_clone=1, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0); "
    "or, in a container, start it with --privileged"
)
_READY = b"ready"
_NO_NETWORK = "network: "
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def fork_isolated(payload: Payload) -> int:
    """Fork a process into new namespaces, and return the pid of its entry process when the namespaces exist.

    Call it before the first thread or event loop starts, because it forks. The payload runs inside, in a process of its
    own. The result of the payload is the exit code of the entry process, which the caller must wait for.
    Raises MachineUnfit.
    """
    ip = ip_program()
    reader, ready = os.pipe()
    parent_watch = _ParentWatch()
    _block_signals()
    entry = os.fork()
    if entry == 0:
        os.close(reader)
        _run(lambda: _enter(payload, ip, ready, parent_watch), ready)
    _unblock_signals()
    os.close(ready)
    with os.fdopen(reader, "rb") as report:
        message = report.read()
    if message != _READY:
        os.waitpid(entry, 0)
        raise _explained(message.decode() or "the process ended without a message")
    return entry


def ip_program() -> str:
    """Return the path of `ip`, which is found even if PATH lacks /usr/sbin. Raises MachineUnfit if it is missing."""
    found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise MachineUnfit("The program `ip` is missing: install the package iproute2 (iproute on Fedora).")
    return found


def _explained(message: str) -> MachineUnfit:
    if message.startswith(_NO_NETWORK):
        return MachineUnfit(
            f"The network of the local cluster could not be created ({message.removeprefix(_NO_NETWORK)}): it needs a "
            "kernel with bridges; `sudo modprobe bridge` loads them if they are a module."
        )
    return NamespacesForbidden(f"This machine did not allow Skysail to create namespaces ({message}): {_WAYS_OUT}.")


class _ParentWatch:
    """Detects in a forked child that its parent died before the child could ask for a parent-death signal."""

    def __init__(self) -> None:
        self._childs_end, self._parents_end = os.pipe()

    def hold(self) -> None:
        """Ask for the parent-death signal. Must be the first call in the child."""
        os.close(self._parents_end)
        syscalls.die_with_parent()
        if select.select([self._childs_end], [], [], 0)[0]:
            os._exit(1)


def _run(body: Payload, ready: int | None) -> None:
    """Run `body`, and exit this process with its result. Never returns into the parent's code."""
    code = 1
    try:
        code = body()
    except BaseException as error:  # noqa: BLE001 (a forked process ends here, no caller could report the error)
        if ready is None:
            traceback.print_exc()
        else:
            os.write(ready, _message(error).encode())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _message(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{_NO_NETWORK}ip said: {error.stderr.strip()}"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _enter(payload: Payload, ip: str, ready: int, parent_watch: _ParentWatch) -> int:
    parent_watch.hold()
    _leave_namespaces()
    inner = _ParentWatch()
    init = os.fork()
    if init == 0:
        _run(lambda: _init(payload, ip, ready, inner), ready)
    os.close(ready)
    return _wait_for(init)


def _leave_namespaces() -> None:
    """Unshare the namespaces. Just try it: neither a sysctl nor the user id proves that it is allowed."""
    flags = syscalls.NEWNET | syscalls.NEWNS | syscalls.NEWPID
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            syscalls.unshare(flags)
        except PermissionError:
            pass  # root of an unprivileged container: continue like any other user
        else:
            return
    syscalls.unshare(flags | syscalls.NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _init(payload: Payload, ip: str, ready: int, parent_watch: _ParentWatch) -> int:
    """Run as PID 1 of the local cluster: mount, bring up the network, start the payload, reap orphans until it ends."""
    parent_watch.hold()
    _mount()
    _bring_network_up(ip)
    child = os.fork()
    if child == 0:
        os.write(ready, _READY)
        os.close(ready)
        _unblock_signals()
        _reset_terminal_signals()
        _run(payload, None)
    os.close(ready)
    return _wait_for(child)


def _mount() -> None:
    syscalls.make_mounts_private()
    syscalls.mount("proc", "/proc")
    syscalls.mount("sysfs", "/sys")  # otherwise /sys/class/net shows the machine's links
    syscalls.mount("tmpfs", "/run")
    if Path("/dev/shm").is_dir():  # noqa: S108 (a mount point, no file of ours)
        syscalls.mount("tmpfs", "/dev/shm")  # noqa: S108 (shared memory of the local cluster)
    Path(RUN_FOLDER).mkdir(mode=0o700)


def _bring_network_up(ip: str) -> None:
    steps = f"""
        link set lo up
        link add {BRIDGE} type bridge
        addr add {CLUSTER_IP}/16 dev {BRIDGE}
        link set {BRIDGE} up
    """
    subprocess.run([ip, "-batch", "-"], input=steps, text=True, check=True, capture_output=True)  # noqa: S603 (ours)


def _wait_for(child: int) -> int:
    """Reap child processes until `child` has ended, and forward TERM and INT to it."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in _STOP_SIGNALS:
        signal.signal(number, pass_on)
    _unblock_signals()
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reset_terminal_signals() -> None:
    """Reset SIGHUP and SIGINT.

    A process started by `nohup` or in the background ignores them, and pods would inherit that.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _block_signals() -> None:
    """Block TERM and INT until a child can receive them: PID 1 would lose them. Forks inherit the mask."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
