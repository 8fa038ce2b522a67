"""Ports that belong to units for as long as the supervisor lives.

A socket listens here from the beginning and is handed to each process of its unit, so nothing else in the same network
can take the port between two processes. While there is no process, callers are turned away at once, as they would be
without the socket. While a process starts, they wait for it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

from skysail.local.errors import Refused

_BACKLOG = 128
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once, without waiting for the peer


class Listeners:
    """All methods belong to one event loop."""

    def __init__(self) -> None:
        self._by_port: dict[int, socket.socket] = {}

    def hold(self, ports: Iterable[int]) -> None:
        """Open these ports, on every address, unless they are held already. Raises Refused for one that is taken."""
        for port in ports:
            if port not in self._by_port:
                self._by_port[port] = _listen(port)
                self.turn_away((port,))

    def hand_over(self, ports: Iterable[int]) -> tuple[int, ...]:
        """Return the descriptors of these ports. From now on callers wait for the process that inherits them."""
        sockets = [self._by_port[port] for port in ports]
        for connection in sockets:
            asyncio.get_running_loop().remove_reader(connection)
        return tuple(connection.fileno() for connection in sockets)

    def turn_away(self, ports: Iterable[int]) -> None:
        """Reset the connections of callers: there is no process that would answer them."""
        for port in ports:
            if port in self._by_port:
                asyncio.get_running_loop().add_reader(self._by_port[port], _reset_next, self._by_port[port])

    def close(self) -> None:
        self.hand_over(self._by_port)
        for connection in self._by_port.values():
            connection.close()
        self._by_port.clear()


def _listen(port: int) -> socket.socket:
    has_both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_both else socket.AF_INET
    try:
        connection = socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=has_both)
    except OSError as error:
        raise Refused(f"Port {port} of the local cluster cannot be opened: {error.strerror}.") from error
    connection.setblocking(False)
    return connection


def _reset_next(connection: socket.socket) -> None:
    with suppress(OSError):  # the caller has left already
        caller, _ = connection.accept()
        with caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
