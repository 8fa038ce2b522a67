"""Lets a program of this machine into a running hull, where it sees the hull's own network, mounts and processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from skysail.local.addresses import RUN_FOLDER
from skysail.local.cluster import syscalls
from skysail.local.errors import NotRunning

# The user first, for with it come the rights to join the others. Without the hull's processes, a sandbox that is
# started there waits for ever for what it cannot see.
_KINDS = {"user": syscalls.NEWUSER, "mnt": syscalls.NEWNS, "net": syscalls.NEWNET, "pid": syscalls.NEWPID}
_RESOLV_CONF = Path("/etc/resolv.conf")
_CLUSTER_RUN_DIR = "/run"


def run_inside(outer: int, command: Sequence[str], env: Mapping[str, str], *, resolv_conf: str) -> int:
    """Run a command inside the hull of this outer process, on our terminal, and return its exit code.

    The command alone finds `resolv_conf` as /etc/resolv.conf: the machine's own does not know the names inside.

    Call it before the first thread starts: it joins namespaces and forks. This process is inside afterwards.
    """
    folder = Path.cwd()
    _join(_init_of(outer))
    child = os.fork()
    if child == 0:
        _become(command, env, folder, resolv_conf)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _become(command: Sequence[str], env: Mapping[str, str], folder: Path, resolv_conf: str) -> None:
    """Never returns: this process is the command, or it says why it cannot be."""
    try:
        _resolve_by(resolv_conf)
        os.chdir(folder if folder.is_dir() else "/")
        os.execvpe(command[0], tuple(command), env)  # noqa: S606 (the user's own shell)
    except OSError as error:
        os.write(2, f"skysail: {command[0]} cannot be started: {error.strerror}.\n".encode())
    finally:
        os._exit(127)


def _resolve_by(resolv_conf: str) -> None:
    """In a mount namespace of our own, so that nobody else in the hull sees it."""
    target = _RESOLV_CONF.resolve()
    if target.is_relative_to(_CLUSTER_RUN_DIR):  # where the machine's leads; the hull's own /run has no such file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    if not target.exists():
        return
    syscalls.unshare(syscalls.NEWNS)
    syscalls.make_mounts_private()
    with tempfile.NamedTemporaryFile("w", dir=RUN_FOLDER) as file:
        file.write(resolv_conf)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        syscalls.bind(file.name, str(target))  # the mount keeps it when its name is gone


def _join(pid: int) -> None:
    """Those that differ from ours: nobody may join the user namespace that they are in already."""
    descriptors = {}
    for name, kind in _KINDS.items():
        theirs = Path(f"/proc/{pid}/ns/{name}")
        if theirs.stat().st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
            descriptors[kind] = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
    for kind, descriptor in descriptors.items():
        syscalls.join(descriptor, kind)
        os.close(descriptor)


def _init_of(outer: int) -> int:
    """The first process inside: a descendant whose number there is 1."""
    waiting = [outer]
    while waiting:
        pid = waiting.pop()
        try:
            if _number_inside(pid) == "1":
                return pid
            waiting += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except FileNotFoundError:
            continue  # it ended while we looked
    raise NotRunning("The hull is on its way down: `skysail up` starts it again.")


def _number_inside(pid: int) -> str:
    """A process has a number in each namespace from ours to its own. Only in the hull's does somebody else have 1."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
    return numbers[-1] if len(numbers) > 1 else ""
