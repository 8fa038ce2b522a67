"""Makes sockets in another network namespace: a socket stays in the one in which it was made, whoever uses it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from skysail.local.cluster import syscalls

T = TypeVar("T")

FOLDER = Path("/run/netns")  # where `ip netns` keeps them
_SETTINGS = Path("/proc/sys/net/ipv4")
_ALL_GROUPS = "0 2147483647"


def make_socket(namespace: str) -> socket.socket:
    """A TCP socket of the named namespace, not blocking. Blocks for a moment: not for the event loop's thread."""
    with _inside(namespace):
        made = socket.socket()
    made.setblocking(False)
    return made


def allow_low_ports(namespace: str) -> None:
    """Let everybody in that namespace listen on port 80 and ping, as container runtimes do. Blocks for a moment.

    Capabilities for that would have no effect: the user namespace of a pod does not own its network. Raises OSError.
    """
    with _inside(namespace):
        allow_unprivileged()


def allow_unprivileged() -> None:
    """Do the same for the network namespace of this thread. Raises OSError."""
    _SETTINGS.joinpath("ip_unprivileged_port_start").write_text("0")
    try:
        _SETTINGS.joinpath("ping_group_range").write_text(_ALL_GROUPS)
    except OSError:  # a cluster without root has one group, which is 0 in its user namespace
        _SETTINGS.joinpath("ping_group_range").write_text("0 0")


def call(namespace: str, work: Callable[[], T]) -> T:
    """Return what the work returns in the named namespace. Blocks for a moment, too."""
    with _inside(namespace):
        return work()


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread, and no other, is in that namespace meanwhile."""
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
