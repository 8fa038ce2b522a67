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


def make_socket(namespace: str) -> socket.socket:
    """A TCP socket of the named namespace, not blocking. Blocks for a moment: not for the event loop's thread."""
    with _inside(namespace):
        made = socket.socket()
    made.setblocking(False)
    return made


def allow_low_ports(namespace: str) -> None:
    """Everybody in that namespace may listen on port 80, as container runtimes have it. Blocks for a moment, too."""
    with _inside(namespace):
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")


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
