"""Listening sockets of units, held by the supervisor for its whole lifetime.

A socket listens from the beginning and is inherited by each process of its unit, so no other process in the same
network can take the port between two processes. While the unit has no process, connections are reset at once, as they
would be without the socket. While a process starts, they wait for it.
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
    """Listening sockets by port. All methods must be called in one event loop."""

    def __init__(self) -> None:
        self._by_port: dict[int, socket.socket] = {}

    def hold(self, ports: Iterable[int]) -> None:
        """Open these ports on all addresses, unless they are open already. Raises Refused if a port is in use."""
        for port in ports:
            if port not in self._by_port:
                self._by_port[port] = _listen(port)
                self.reset_connections((port,))

    def hand_over(self, ports: Iterable[int]) -> tuple[int, ...]:
        """Return the descriptors of these ports. From now on connections wait for the process that inherits them."""
        sockets = [self._by_port[port] for port in ports]
        for connection in sockets:
            asyncio.get_running_loop().remove_reader(connection)
        return tuple(connection.fileno() for connection in sockets)

    def reset_connections(self, ports: Iterable[int]) -> None:
        """Reset the connections to these ports, because no process would answer them."""
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
    with suppress(OSError):  # the client has disconnected already
        caller, _ = connection.accept()
        with caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
