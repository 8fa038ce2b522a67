"""The system calls of a hull that Python 3.11 has no name for. Knows nothing of hulls."""

from __future__ import annotations

import ctypes
import os
import signal

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_MS_BIND = 0x1000
_MS_REC_PRIVATE = 0x4000 | 0x40000


def unshare(flags: int) -> None:
    """Leave the named namespaces for new ones. A new pid namespace begins with the next child."""
    _check(_libc().unshare(flags), "unshare")


def join(descriptor: int, kind: int) -> None:
    """Enter the namespace that a file below /proc/<pid>/ns stands for. Net: this thread. Pid: the next child."""
    _check(_libc().setns(descriptor, kind), "setns")


def mount(kind: str, target: str) -> None:
    """Mount a fresh proc, sysfs or tmpfs."""
    _check(_libc().mount(kind.encode(), target.encode(), kind.encode(), 0, None), f"mount {kind} on {target}")


def bind(source: str, target: str) -> None:
    """From here on whoever opens the target in this mount namespace finds the source."""
    _check(_libc().mount(source.encode(), target.encode(), None, _MS_BIND, None), f"mount {source} on {target}")


def make_mounts_private() -> None:
    """From here on no mount of this namespace is seen by the machine."""
    _check(_libc().mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "make mounts private")


def die_with_parent() -> None:
    """The kernel sends KILL when the parent ends, however it ends. It must be asked for after each fork."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
