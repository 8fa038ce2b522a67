"""Joins a box that runs and becomes a command in it. Started as a program of its own; imports nothing of ours.

argv: three descriptors: of the order (JSON), of the box (a pidfd of its first process), and of the pipe in which the
reason is written if the command cannot be started. The pipe's end without a word means that the command runs.
"""

import base64
import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import warnings  # noqa: F401 (os.execvpe imports it, and inside the box there may be no standard library)

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_INSTRUCTION_BYTES = 8
_HIGHEST_CAPABILITY = 63
_NOT_STARTED = 126

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def main(order_descriptor: int, box: int, report: int) -> int:
    for descriptor in (box, report):
        os.set_inheritable(descriptor, False)
    with os.fdopen(order_descriptor) as order_file:
        order = json.load(order_file)
    try:
        _die_with_parent()
        for group in order["groups"]:
            with open(group, "w") as processes:  # noqa: PTH123 (pathlib takes a third of the start)
                processes.write("0")
        _check(_libc.setns(box, order["namespaces"]), "setns")
        child = os.fork()  # a pid namespace is entered by children only
    except OSError as error:
        os.write(report, str(error).encode())
        return _NOT_STARTED
    if child == 0:
        _become(order, report)
    os.close(report)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(order: dict, report: int) -> None:  # type: ignore[type-arg]
    """Never returns."""
    argv = order["argv"]
    try:
        os.setsid()
        if order["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(order["working_dir"])
        _give_up_rights(set(order["capabilities"]))
        if order["ids"] is not None:
            _change_ids(**order["ids"])
        if order["max_processes"] is not None:
            _limit_processes(order["max_processes"])
        _die_with_parent()  # after the change of ids, which makes the kernel forget it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if order["filter"] is not None:
            _apply_filter(base64.b64decode(order["filter"]))
        os.execvpe(argv[0], argv, order["env"])  # noqa: S606 (this is what we are for)
    except FileNotFoundError:
        os.write(report, f'"{argv[0]}" cannot be started: executable file not found in $PATH'.encode())
    except OSError as error:
        os.write(report, f'"{argv[0]}" cannot be started: {error.strerror}'.encode())
    except ValueError as error:  # a word or a variable that no program can be given
        os.write(report, f"The command cannot be started: {error}.".encode())
    os._exit(_NOT_STARTED)


def _give_up_rights(kept: set[int]) -> None:
    """As the box's own program: what is not in the bounding set is lost with the next exec."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if capability not in kept and _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _change_ids(user: int, group: int, groups: list[int]) -> None:
    """Become the user of the container: this process came as root of the machine, which has no id in the container."""
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _limit_processes(number: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _apply_filter(instructions: bytes) -> None:
    content = _Filter(len(instructions) // _INSTRUCTION_BYTES, instructions)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(content), 0, 0), "seccomp")


def _die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:4])))
