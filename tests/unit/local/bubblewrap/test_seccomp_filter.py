from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from skysail.local.bubblewrap import seccomp_filter

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """Run the filter as the kernel does."""
    program = [struct.unpack_from("=HBBI", seccomp_filter.program(machine), at) for at in range(0, size(machine), 8)]
    data = {0: number, 4: architecture or ARCHITECTURES[machine], 16: argument}
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = data[value]
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return value


def size(machine: str) -> int:
    return len(seccomp_filter.program(machine))


@pytest.mark.parametrize(("column", "machine"), list(enumerate(ARCHITECTURES)))
def test_every_call_of_the_table_is_denied_and_others_pass(column, machine):
    denied = {numbers[column] for numbers in seccomp_filter._DENIED.values()} - {-1}
    for number in range(500):
        if number in denied:
            assert answer(machine, number) == ERRNO | errno.EPERM, number
        elif number == 435:
            assert answer(machine, number) == ERRNO | errno.ENOSYS
        else:
            assert answer(machine, number) == ALLOW, number


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_clone_is_for_processes_and_threads_and_not_for_namespaces(machine, clone):
    assert answer(machine, clone, 0x11) == ALLOW
    assert answer(machine, clone, 0x003D0F00) == ALLOW, "a thread of libc"
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, clone, flag | 0x11) == ERRNO | errno.EPERM


@pytest.mark.parametrize(("machine", "socket_call"), [("x86_64", 41), ("aarch64", 198)])
def test_socket_of_a_family_that_leaves_the_sandbox_is_denied(machine, socket_call):
    denied = {int(socket.AF_ALG), int(socket.AF_VSOCK)}
    for family in range(64):
        expected = ERRNO | errno.EPERM if family in denied else ALLOW
        assert answer(machine, socket_call, family) == expected, family


def test_programs_of_other_architectures_are_killed():
    assert answer("x86_64", 0, architecture=0x40000003) == KILL
    assert answer("aarch64", 0, architecture=0x40000028) == KILL
    assert answer("x86_64", 0x40000000) == ERRNO | errno.ENOSYS


def test_an_unknown_architecture_has_no_filter(monkeypatch):
    assert seccomp_filter.program("riscv64") is None
    monkeypatch.setattr(seccomp_filter, "program", lambda: None)
    assert seccomp_filter.descriptor() is None


def test_a_descriptor_holds_the_whole_filter():
    descriptor = seccomp_filter.descriptor()
    assert os.read(descriptor, 10_000) == seccomp_filter.program()
    os.close(descriptor)
