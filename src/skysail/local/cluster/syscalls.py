"""System calls for namespaces that Python 3.11 lacks."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING, _SET_PERMISSIONS = 1, 5
_MS_BIND = 0x1000
_MS_REC_PRIVATE = 0x4000 | 0x40000


def unshare(flags: int) -> None:
    """Move this process into new namespaces. A new pid namespace starts with the next child."""
    _check(_libc().unshare(flags), "unshare")


def join(descriptor: int, kind: int) -> None:
    """Join the namespace of a file below /proc/<pid>/ns. Network: this thread. Pid: the next child."""
    _check(_libc().setns(descriptor, kind), "setns")


def mount(kind: str, target: str) -> None:
    """Mount a fresh proc, sysfs or tmpfs."""
    _check(_libc().mount(kind.encode(), target.encode(), kind.encode(), 0, None), f"mount {kind} on {target}")


def bind(source: str, target: str) -> None:
    """Bind-mount `source` over `target` in this mount namespace."""
    _check(_libc().mount(source.encode(), target.encode(), None, _MS_BIND, None), f"mount {source} on {target}")


def make_mounts_private() -> None:
    """Stop the propagation of this namespace's mounts to the machine."""
    _check(_libc().mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "make mounts private")


def die_with_parent() -> None:
    """Ask the kernel to send KILL to this process when its parent ends. Must be called after each fork."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def leave_session_keyring() -> None:
    """Replace the session keyring, which programs inherit, by one that no program can read or change.

    Without effect if the machine does not allow the call, because then no program can use a keyring.
    """
    number = _KEYCTL.get(platform.machine())
    if number is None:
        return
    keyring = _libc().syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
    if keyring > 0:
        _libc().syscall(
            ctypes.c_long(number), ctypes.c_long(_SET_PERMISSIONS), ctypes.c_long(keyring), ctypes.c_long(0)
        )


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
