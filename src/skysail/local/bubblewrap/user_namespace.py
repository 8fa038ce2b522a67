"""User namespaces with a range of host ids. Created by util-linux programs: a process with threads must not fork."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterable

from skysail.local.bubblewrap.host_tools import HostTools

SIZE = 65536  # ids of a pod, as in Kubernetes
MAX_ID = SIZE - 1
_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def create(tools: HostTools, *, owner: int, first: int, max_processes: int) -> int:
    """Return a descriptor of a new user namespace, in which the ids from 0 are the host ids from `first`. Blocking.

    `owner` must be the host id of the user that starts bubblewrap: only a namespace's owner may enter it without
    privileges, and otherwise the program outlives its bubblewrap.
    The kernel applies the RLIMIT_NPROC of the process that makes the namespace to all users in the namespace together.
    Raises OSError if the machine does not allow it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    # Root without CAP_SYS_RESOURCE, as in a container, cannot raise its own limit.
    nproc = max_processes if hard == resource.RLIM_INFINITY else min(hard, max_processes)
    limit = (tools.prlimit, f"--nproc={nproc}:{nproc}", "--")
    with subprocess.Popen(  # noqa: S603 (the system's own programs)
        [*limit, *become(tools, owner, owner), tools.unshare, "--user", tools.cat],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENV,
        cwd="/",
    ) as maker:
        assert maker.stdin is not None, "stdin is a pipe"
        assert maker.stdout is not None, "stdout is a pipe"
        # `cat` returns the byte only when its namespace exists.
        maker.stdin.write(b"\n")
        maker.stdin.flush()
        if not maker.stdout.read(1):
            raise PermissionError("this machine does not allow a user namespace with several ids")
        for kind in ("uid_map", "gid_map"):
            _write(f"/proc/{maker.pid}/{kind}", f"0 {first} {SIZE}")
        return os.open(f"/proc/{maker.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def become(tools: HostTools, user: int, group: int, groups: Iterable[int] = ()) -> tuple[str, ...]:
    """Return the words that, before a command, run it with these host ids."""
    listed = ",".join(map(str, groups))
    more = ("--groups", listed) if listed else ("--clear-groups",)
    return (tools.setpriv, "--reuid", str(user), "--regid", str(group), *more, "--")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
