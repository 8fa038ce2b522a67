"""Create sockets in other network namespaces. A socket stays in the namespace in which it was created."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from skysail.local.cluster import syscalls

T = TypeVar("T")

FOLDER = Path("/run/netns")  # folder of `ip netns`
_SETTINGS = Path("/proc/sys/net/ipv4")
_ALL_GROUPS = "0 2147483647"


def make_socket(namespace: str) -> socket.socket:
    """Return a non-blocking TCP socket of the named namespace. Blocks briefly: not for the event loop's thread."""
    with _inside(namespace):
        made = socket.socket()
    made.setblocking(False)
    return made


def allow_low_ports(namespace: str) -> None:
    """Allow all users in that namespace to listen on ports below 1024 and to ping, as container runtimes do.

    Capabilities would have no effect, because the user namespace of a pod does not own its network. Blocks briefly.
    Raises OSError.
    """
    with _inside(namespace):
        allow_unprivileged()


def allow_unprivileged() -> None:
    """Allow the same in the network namespace of this thread. Raises OSError."""
    _SETTINGS.joinpath("ip_unprivileged_port_start").write_text("0")
    try:
        _SETTINGS.joinpath("ping_group_range").write_text(_ALL_GROUPS)
    except OSError:  # a cluster without root has one group, which is 0 in its user namespace
        _SETTINGS.joinpath("ping_group_range").write_text("0 0")


def call(namespace: str, work: Callable[[], T]) -> T:
    """Run `work` in the named namespace, and return its result. Blocks briefly."""
    with _inside(namespace):
        return work()


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Switch this thread to that namespace inside the block."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.join(there, syscalls.NEWNET)
        finally:
            os.close(there)
        try:
            yield
        finally:
            syscalls.join(home, syscalls.NEWNET)
    finally:
        os.close(home)
