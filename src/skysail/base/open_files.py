"""Limits of open files, so that callers cannot use up all descriptors of this process.

A process without a free descriptor starts no pod, answers no probe and reads no file.
"""

from __future__ import annotations

import resource
import socket
from collections import Counter
from typing import Any

# Enough for a node. Pods inherit the limit, and some programs close every possible descriptor when they start.
_MAX_FILES = 65536
_SHARE_OF_ALL_CALLERS = 2
_SHARE_OF_ONE_CALLER = 8


def raise_limit() -> None:
    """Raise the soft limit, which is 1,024 on most machines, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def limit() -> int:
    """Return how many files this process can open, at most 65,536."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, _MAX_FILES)


class CallerLimits:
    """Open connections by the caller's address, over several listeners."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._open: Counter[str] = Counter()

    @classmethod
    def of_this_process(cls) -> CallerLimits:
        return cls(limit() // _SHARE_OF_ALL_CALLERS, limit() // _SHARE_OF_ONE_CALLER)

    def admit(self, caller: str) -> bool:
        """Count one more connection of this caller. Returns False if the caller has too many."""
        if self._open[caller] >= self._per_caller or self._open.total() >= self._total:
            return False
        self._open[caller] += 1
        return True

    def release(self, caller: str) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]


class LimitedListener(socket.socket):
    """Listening socket that closes connections of callers above their limit.

    Callers on the same machine, such as the API server, have the address that they connect to and are not limited.
    """

    def __init__(self, listener: socket.socket, limits: CallerLimits) -> None:
        super().__init__(fileno=listener.detach())
        self.setblocking(False)
        self._limits = limits

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises ConnectionAbortedError if the caller has too many, which asyncio ignores."""
        connection, peer = super().accept()
        caller = str(peer[0]) if peer else ""
        if not caller or connection.getsockname()[0] == caller:
            return connection, peer
        if not self._limits.admit(caller):
            connection.close()
            raise ConnectionAbortedError(f"{caller} has too many open connections")
        return _CountedConnection(connection, self._limits, caller), peer


class _CountedConnection(socket.socket):
    def __init__(self, connection: socket.socket, limits: CallerLimits, caller: str) -> None:
        super().__init__(fileno=connection.detach())
        self.setblocking(False)
        self._limits = limits
        self._caller: str | None = caller

    def close(self) -> None:
        super().close()
        if self._caller is not None:
            self._limits.release(self._caller)
            self._caller = None
