"""Join the namespaces of a running container, and exec a command there. A program of its own, without our imports.

argv: three descriptors: of the command's settings (JSON), of the container (a pidfd of its PID 1), and of the pipe for
the reason if the command cannot be started. End of file without a reason means that the command runs.
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
import warnings  # noqa: F401 (os.execvpe imports it, and inside the container there may be no standard library)

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


def main(settings_descriptor: int, container: int, report: int) -> int:
    for descriptor in (container, report):
        os.set_inheritable(descriptor, False)
    with os.fdopen(settings_descriptor) as settings_file:
        settings = json.load(settings_file)
    try:
        _die_with_parent()
        for group in settings["groups"]:
            with open(group, "w") as processes:  # noqa: PTH123 (pathlib takes a third of the start)
                processes.write("0")
        _check(_libc.setns(container, settings["namespaces"]), "setns")
        child = os.fork()  # only children enter a pid namespace
    except OSError as error:
        os.write(report, str(error).encode())
        return _NOT_STARTED
    if child == 0:
        _become(settings, report)
    os.close(report)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(settings: dict, report: int) -> None:  # type: ignore[type-arg]
    """Exec the command, or write the reason to `report` and exit. Never returns."""
    argv = settings["argv"]
    try:
        os.setsid()
        if settings["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(settings["working_dir"])
        _drop_capabilities(set(settings["capabilities"]))
        if settings["ids"] is not None:
            _change_ids(**settings["ids"])
        if settings["max_processes"] is not None:
            _limit_processes(settings["max_processes"])
        _die_with_parent()  # again: the kernel resets it when the ids change
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if settings["filter"] is not None:
            _apply_filter(base64.b64decode(settings["filter"]))
        os.execvpe(argv[0], argv, settings["env"])  # noqa: S606 (this is what we are for)
    except FileNotFoundError:
        os.write(report, f'"{argv[0]}" cannot be started: executable file not found in $PATH'.encode())
    except OSError as error:
        os.write(report, f'"{argv[0]}" cannot be started: {error.strerror}'.encode())
    except ValueError as error:  # an argument or a variable that exec rejects
        os.write(report, f"The command cannot be started: {error}.".encode())
    os._exit(_NOT_STARTED)


def _drop_capabilities(kept: set[int]) -> None:
    """Drop the same capabilities as the program: those outside of the bounding set are lost at exec."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if capability not in kept and _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _change_ids(user: int, group: int, groups: list[int]) -> None:
    """Become the user of the container: this process is root of the machine, which has no id in the container."""
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _limit_processes(number: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


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
