"""The hull: one set of namespaces (net, mount, pid, and user where we are not root) around the whole cluster.

Nothing is changed in the machine's own network, whoever starts it. When the outer process dies, however it dies, the
kernel ends everything inside and frees all namespaces: outer -> entry -> init -> payload, each of the first three
links tied by a parent-death signal, and the last by being in init's pid namespace.

This module makes namespaces. What runs inside is handed in.
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
_ENDINGS = (signal.SIGTERM, signal.SIGINT)


def fork_isolated(payload: Payload) -> int:
    """Fork the hull and return the pid of its entry process once its namespaces stand.

    Call it before the first thread or event loop starts, because it forks. The payload runs inside, in a process of
    its own; its result is the exit code of the entry process, which the caller must wait for.
    """
    ip = ip_program()
    heard, ready = os.pipe()
    parent_watch = _ParentWatch()
    _block_signals()
    entry = os.fork()
    if entry == 0:
        os.close(heard)
        _run(lambda: _enter(payload, ip, ready, parent_watch), ready)
    _take_endings()
    os.close(ready)
    with os.fdopen(heard, "rb") as report:
        message = report.read()
    if message != _READY:
        os.waitpid(entry, 0)
        raise _explained(message.decode() or "it ended without a word")
    return entry


def ip_program() -> str:
    """The program that makes network links, also where the user's PATH has no folder for administrators."""
    found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise MachineUnfit("The program `ip` is missing: install the package iproute2 (iproute on Fedora).")
    return found


def _explained(message: str) -> MachineUnfit:
    if message.startswith(_NO_NETWORK):
        return MachineUnfit(
            f"The hull's network could not be made ({message.removeprefix(_NO_NETWORK)}): it needs a kernel with "
            "bridges; "
            "`sudo modprobe bridge` loads them where they are a module."
        )
    return NamespacesForbidden(f"This machine did not let Skysail make its namespaces ({message}): {_WAYS_OUT}.")


class _ParentWatch:
    """Tells a forked child that its parent died before the child could ask the kernel to be told."""

    def __init__(self) -> None:
        self._childs_end, self._parents_end = os.pipe()

    def hold(self) -> None:
        """In the child, first of all."""
        os.close(self._parents_end)
        syscalls.die_with_parent()
        if select.select([self._childs_end], [], [], 0)[0]:
            os._exit(1)


def _run(body: Payload, ready: int | None) -> None:
    """Never return into the parent's code: end this process with what the body says."""
    code = 1
    try:
        code = body()
    except BaseException as error:  # noqa: BLE001 (a forked process ends here, nobody above it could say why)
        if ready is None:
            traceback.print_exc()
        else:
            os.write(ready, _reason(error).encode())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _reason(error: BaseException) -> str:
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
    """Really try: neither a sysctl nor the user id says whether it is allowed."""
    flags = syscalls.NEWNET | syscalls.NEWNS | syscalls.NEWPID
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            syscalls.unshare(flags)
        except PermissionError:
            pass  # root of a container without rights over it: below, like anybody else
        else:
            return
    syscalls.unshare(flags | syscalls.NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _init(payload: Payload, ip: str, ready: int, parent_watch: _ParentWatch) -> int:
    """PID 1 of the hull: make it habitable, start the payload, collect orphans until the payload ends."""
    parent_watch.hold()
    _mount()
    _bring_network_up(ip)
    child = os.fork()
    if child == 0:
        os.write(ready, _READY)
        os.close(ready)
        _take_endings()
        _reset_terminal_signals()
        _run(payload, None)
    os.close(ready)
    return _wait_for(child)


def _mount() -> None:
    syscalls.make_mounts_private()
    syscalls.mount("proc", "/proc")
    syscalls.mount("sysfs", "/sys")  # else /sys/class/net shows the machine's links
    syscalls.mount("tmpfs", "/run")
    if Path("/dev/shm").is_dir():  # noqa: S108 (a mount point, no file of ours)
        syscalls.mount("tmpfs", "/dev/shm")  # noqa: S108 (shared memory ends with the hull)
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
    """Collect whatever ends until the child does; TERM and INT are passed on to it."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in _ENDINGS:
        signal.signal(number, pass_on)
    _take_endings()
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reset_terminal_signals() -> None:
    """Who was started by `nohup`, or in the background of a script, ignores these, and so would a pod's shell."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _block_signals() -> None:
    """A wish to end waits until there is somebody to pass it on to: PID 1 would lose it. Forks inherit this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)


def _take_endings() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDINGS)
