"""Default seccomp filter, as BPF instructions without libseccomp.

The filter is a deny list: it answers EPERM to system calls that pods do not need, and allows all others, including
those of later kernels. Numbers are from the kernel's tables.
"""

from __future__ import annotations

import os
import platform
import struct

# name: (x86_64, aarch64); -1 if the architecture lacks the call
_DENIED: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE = (56, 220)
_CLONE3 = 435
_SOCKET = (41, 198)
# AF_ALG: holes in the kernel's cryptography let a program change files that it may only read. AF_VSOCK: such sockets
# reach the machine's hypervisor from any network namespace. Other container runtimes refuse both families, too.
_DENIED_FAMILIES = (38, 40)
_NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW* flags that clone takes
_X32 = 0x40000000
_EPERM, _ENOSYS = 1, 38
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_Instruction = tuple[int, int, int, int]


def program(machine: str = platform.machine()) -> bytes | None:
    """Return the filter for `bwrap --seccomp` and for prctl(PR_SET_SECCOMP).

    Returns None if the numbers of this architecture are not known here.
    """
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    instructions: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # numbers of 32-bit programs mean other calls
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        instructions += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    for numbers in _DENIED.values():
        if numbers[column] >= 0:
            instructions += _deny(numbers[column], _EPERM)
    # The flags of clone3 are behind a pointer, which a filter cannot follow: with ENOSYS, libc falls back to clone.
    instructions += _deny(_CLONE3, _ENOSYS)
    families = [instruction for family in _DENIED_FAMILIES for instruction in _deny(family, _EPERM)]
    instructions += [(_IF_EQUAL, 0, len(families) + 2, _SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    instructions += [*families, (_RETURN, 0, 0, _ALLOW)]
    instructions += [(_IF_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    instructions += [(_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def descriptor() -> int | None:
    """Return an open memfd with the filter. bwrap reads it to its end, so each start needs its own.

    Returns None if there is no filter for this architecture.
    """
    content = program()
    if content is None:
        return None
    found = os.memfd_create("seccomp")
    os.write(found, content)
    os.lseek(found, 0, os.SEEK_SET)
    return found


def _deny(number: int, error: int) -> tuple[_Instruction, _Instruction]:
    return (_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)
