"""Run a program of this machine inside a running local cluster, with its network, mounts and processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from skysail.local.addresses import RUN_FOLDER
from skysail.local.cluster import syscalls
from skysail.local.errors import NotRunning

# The user namespace first: joining it grants the permission to join the others. The pid namespace is needed because a
# sandbox that is started without it waits for ever for a process that it cannot see.
_KINDS = {"user": syscalls.NEWUSER, "mnt": syscalls.NEWNS, "net": syscalls.NEWNET, "pid": syscalls.NEWPID}
_RESOLV_CONF = Path("/etc/resolv.conf")
_CLUSTER_RUN_DIR = "/run"


def run_inside(outer: int, command: Sequence[str], env: Mapping[str, str], *, resolv_conf: str) -> int:
    """Run a command inside the local cluster of this outer process, on our terminal, and return its exit code.

    Only the command sees `resolv_conf` as /etc/resolv.conf, because the machine's own file cannot resolve the cluster's
    names.

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
    """Replace this process by the command, or exit with the reason on stderr. Never returns."""
    try:
        _resolve_by(resolv_conf)
        os.chdir(folder if folder.is_dir() else "/")
        os.execvpe(command[0], tuple(command), env)  # noqa: S606 (the user's own shell)
    except OSError as error:
        os.write(2, f"skysail: {command[0]} cannot be started: {error.strerror}.\n".encode())
    finally:
        os._exit(127)


def _resolve_by(resolv_conf: str) -> None:
    """Mount `resolv_conf` over /etc/resolv.conf, in a new mount namespace so that no other process sees it."""
    target = _RESOLV_CONF.resolve()
    if target.is_relative_to(_CLUSTER_RUN_DIR):  # a link into the machine's /run, which is empty inside
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
        syscalls.bind(file.name, str(target))  # the mount keeps the file after it is unlinked


def _join(pid: int) -> None:
    """Join the namespaces that differ from ours: a process cannot join the user namespace in which it is already."""
    descriptors = {}
    for name, kind in _KINDS.items():
        theirs = Path(f"/proc/{pid}/ns/{name}")
        if theirs.stat().st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
            descriptors[kind] = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
    for kind, descriptor in descriptors.items():
        syscalls.join(descriptor, kind)
        os.close(descriptor)


def _init_of(outer: int) -> int:
    """Return the pid of the descendant that is PID 1 inside. Raises NotRunning if there is none."""
    waiting = [outer]
    while waiting:
        pid = waiting.pop()
        try:
            if _number_inside(pid) == "1":
                return pid
            waiting += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except FileNotFoundError:
            continue  # the process has ended meanwhile
    raise NotRunning("The local cluster is stopping: `skysail up` starts it again.")


def _number_inside(pid: int) -> str:
    """Return the pid of a process in its innermost pid namespace.

    Returns an empty string for a process in our own pid namespace.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
    return numbers[-1] if len(numbers) > 1 else ""
