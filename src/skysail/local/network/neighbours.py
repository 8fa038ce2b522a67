"""Static neighbour entries of the pod network, so that no pod can take over another address by ARP spoofing.

The hardware address is derived from the IP address. Each network namespace has a permanent entry for each other one,
which ARP messages cannot change, and the bridge has a static port for each hardware address. Uses rtnetlink, because
starting `ip` for each pair of pods would take seconds.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address

from skysail.cloud.errors import OutcomeUnknown
from skysail.local.network import netns

_NEW, _DELETE = 28, 29  # RTM_NEWNEIGH, RTM_DELNEIGH
_REQUEST, _ACK, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_PERMANENT, _STATIC = 0x80, 0x40  # NUD_PERMANENT, NUD_NOARP
_OF_MASTER = 0x4  # NTF_MASTER: the entry is for the bridge that the port belongs to
_BRIDGE_FAMILY = 7
_DESTINATION, _HARDWARE = 1, 2  # NDA_DST, NDA_LLADDR
_HEADER = struct.Struct("=IHHII")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")


def hardware_address(address: str) -> str:
    """Return a locally administered hardware address, which is unique for each IPv4 address."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + IPv4Address(address).packed)


class Link:
    """One interface in one network namespace, with a netlink socket there to set its neighbours."""

    def __init__(self, interface: str, namespace: str = "") -> None:
        """Open an interface, by default in the network namespace of this process.

        Raises OSError if it does not exist.
        """
        make = _make_socket if not namespace else lambda name: netns.call(namespace, lambda: _make_socket(name))
        self._socket, self._index = make(interface)

    def close(self) -> None:
        self._socket.close()

    def set_neighbour(self, address: str) -> None:
        """Set the permanent hardware address of a neighbour, and replace an older entry."""
        body = _NEIGHBOUR.pack(socket.AF_INET, self._index, _PERMANENT, 0, 0) + _addresses(address)
        self._ask(_NEW, _REPLACE | _CREATE, body)

    def remove_neighbour(self, address: str) -> None:
        body = _NEIGHBOUR.pack(socket.AF_INET, self._index, 0, 0, 0)
        self._ask(_DELETE, 0, body + _attribute(_DESTINATION, IPv4Address(address).packed))

    def set_port(self, address: str) -> None:
        """Bind the hardware address of a pod to this port of a bridge."""
        body = _NEIGHBOUR.pack(_BRIDGE_FAMILY, self._index, _STATIC, _OF_MASTER, 0)
        self._ask(_NEW, _REPLACE | _CREATE, body + _attribute(_HARDWARE, _packed(address)))

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, 0, 0)
        self._socket.send(header + body)
        (error,) = _ERROR.unpack_from(self._socket.recv(4096), _HEADER.size)
        if error:
            raise OSError(-error, os.strerror(-error))


class Neighbours:
    """All addresses of the pod network. Blocking, and thread-safe."""

    def __init__(self, link: Callable[..., Link] = Link) -> None:
        self._make = link
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()

    def add(self, address: str, interface: str, namespace: str = "", *, port: str = "") -> None:
        """Add this address to all other namespaces, and all others to this one. `port` is its end at the bridge.

        Raises OutcomeUnknown if the kernel rejects an entry; then all of it is undone.
        """
        try:
            link = self._make(interface, namespace)
            with self._lock:
                self._introduce(address, link, port)
        except OSError as error:
            self.remove(address)
            raise OutcomeUnknown(f"The neighbours of {address} could not be set: {error.strerror}.") from error

    def remove(self, address: str) -> None:
        """Remove the address everywhere. Does nothing for unknown addresses."""
        with self._lock:
            link = self._links.pop(address, None)
            if link is None:
                return
            link.close()
            for other in self._links.values():
                with suppress(OSError):  # the namespace or the entry is gone already
                    other.remove_neighbour(address)

    def close(self) -> None:
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()

    def _introduce(self, address: str, link: Link, port: str) -> None:
        others = dict(self._links)
        self._links[address] = link
        for known, other in others.items():
            link.set_neighbour(known)
            other.set_neighbour(address)
        if port:
            end = self._make(port, "")
            try:
                end.set_port(address)
            finally:
                end.close()


def _make_socket(interface: str) -> tuple[socket.socket, int]:
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        return connection, socket.if_nametoindex(interface)
    except OSError:
        connection.close()
        raise


def _addresses(address: str) -> bytes:
    return _attribute(_DESTINATION, IPv4Address(address).packed) + _attribute(_HARDWARE, _packed(address))


def _attribute(kind: int, data: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(size, kind) + data + bytes(-size % 4)


def _packed(address: str) -> bytes:
    return bytes.fromhex(hardware_address(address).replace(":", ""))
