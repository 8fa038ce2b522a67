"""Ports that a supervisor opened for this process: they stay taken while the process restarts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, MutableMapping
from typing import Self

from skysail.base.open_files import CallerLimits, LimitedListener

VARIABLE = "SKYSAIL_LISTEN_FDS"


class InheritedListeners:
    """Sockets by port. They listen already: callers wait from the start of this process on."""

    def __init__(self, sockets: Iterable[socket.socket] = ()) -> None:
        self._limits = CallerLimits.of_this_process()
        limited = [LimitedListener(connection, self._limits) for connection in sockets]
        self._by_port: dict[int, socket.socket] = {listener.getsockname()[1]: listener for listener in limited}

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Take over what the environment names, once: the variable is removed, and programs of ours inherit nothing."""
        numbers = [int(number) for number in environment.pop(VARIABLE, "").split(",") if number]
        for number in numbers:
            os.set_inheritable(number, False)
        return cls(socket.socket(fileno=number) for number in numbers)

    def take(self, port: int) -> socket.socket | None:
        """Return the socket of this port, which is the caller's from now on. None if there is none."""
        return self._by_port.pop(port, None)

    def take_or_open(self, port: int, host: str) -> socket.socket:
        """Return the socket of this port, or open one if there is none."""
        return self.take(port) or LimitedListener(socket.create_server((host, port)), self._limits)
