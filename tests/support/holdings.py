"""What a cluster holds of the machine: processes, interfaces, mounts, descriptors. Seen from the host, by /proc."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec

from skysail.local.addresses import API_PORT, METRICS_PORT, NODE_PORT

_PROC = Path("/proc")
_ESTABLISHED = "01"
# Both ends of them keep idle connections for the next request, for as long as they like.
_POOLED = {API_PORT: "pooled: to the API server", NODE_PORT: "pooled: to the node", METRICS_PORT: "pooled: to metrics"}


class Process(msgspec.Struct, frozen=True):
    """One that may end while it is looked at: then it holds nothing."""

    pid: int

    @property
    def command(self) -> str:
        return _read(self._folder / "cmdline").replace("\0", " ").strip()

    @property
    def interfaces(self) -> list[str]:
        """Of the network in which it is."""
        return sorted(line.partition(":")[0].strip() for line in _read(self._folder / "net/dev").splitlines()[2:])

    @property
    def mounts(self) -> list[str]:
        return sorted(line.split()[4] for line in _read(self._folder / "mountinfo").splitlines())

    @property
    def descriptors(self) -> Counter[str]:
        """How many of each kind."""
        sockets = self._sockets()
        return Counter(_kind(target, sockets) for target in self._targets())

    def children(self) -> list[Process]:
        """All of them, however deep."""
        found: list[Process] = []
        for listed in (self._folder / "task").glob("*/children"):
            for pid in _read(listed).split():
                child = Process(int(pid))
                found += [child, *child.children()]
        return found

    @property
    def root(self) -> Path:
        """Its files, as it sees them."""
        return self._folder / "root"

    @property
    def _folder(self) -> Path:
        return _PROC / str(self.pid)

    def _targets(self) -> list[str]:
        found = []
        for entry in (self._folder / "fd").iterdir():
            try:
                found.append(str(entry.readlink()))
            except OSError:
                continue  # closed meanwhile
        return found

    def _sockets(self) -> dict[str, str]:
        """What each socket of its network is, by inode."""
        found = {}
        for name in ("tcp", "tcp6", "udp", "udp6"):
            for line in _read(self._folder / "net" / name).splitlines()[1:]:
                fields = line.split()
                ports = [int(address.rpartition(":")[2], 16) for address in fields[1:3]]
                found[fields[9]] = _connection(name, ports, is_open=fields[3] == _ESTABLISHED)
        for line in _read(self._folder / "net/unix").splitlines()[1:]:
            found[line.split()[6]] = "unix"
        return found


def machine() -> Process:
    return Process(os.getpid())


def _connection(name: str, ports: list[int], *, is_open: bool) -> str:
    if not is_open:
        return f"{name} {ports[0]}"
    pooled = next((_POOLED[port] for port in ports if port in _POOLED), None)
    return pooled or f"{name} {ports[0]} to {ports[1]}"


def _kind(target: str, sockets: dict[str, str]) -> str:
    if target.startswith("socket:["):
        return sockets.get(target[8:-1], "socket of another network")
    return target.partition(":[")[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
