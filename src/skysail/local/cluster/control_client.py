"""How other processes speak with a hull: one request and one answer over a unix socket in its home.

A unix socket is found by its path, so it crosses network namespaces; and a network socket stays in the namespace in
which it was made. Together they are the doors: the hull makes a socket inside and hands it out over this one.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import msgspec

from skysail.base.unix_sockets import reachable
from skysail.local.cluster.supervisor import Unit, UnitStatus
from skysail.local.errors import NotRunning, Refused

MAX_MESSAGE_BYTES = 200_000
_TIMEOUT_SECONDS = 30.0

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class AskStatus(msgspec.Struct, frozen=True, tag="status"): ...


class StopCluster(msgspec.Struct, frozen=True, tag="stop"):
    """End everything in order. The answer comes at once; the home's lock tells when it is done."""


class StartUnit(msgspec.Struct, frozen=True, tag="start-unit"):
    """Start a unit, or replace the one of its name."""

    unit: Unit


class ResumeUnit(msgspec.Struct, frozen=True, tag="resume-unit"):
    name: str


class StopUnit(msgspec.Struct, frozen=True, tag="stop-unit"):
    name: str


class SignalUnit(msgspec.Struct, frozen=True, tag="signal-unit"):
    name: str
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """Hand out a socket that listens inside the hull. Port 0 lets the kernel choose."""

    host: str
    port: Port


class Dial(msgspec.Struct, frozen=True, tag="dial"):
    """Hand out a socket that is connected to something inside the hull."""

    host: str
    port: Port


Request = AskStatus | StopCluster | StartUnit | ResumeUnit | StopUnit | SignalUnit | Listen | Dial


class LocalClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a hull says of itself. `steps` are what it has done since it started, for people."""

    is_ready: bool
    pid: int
    started: float
    url: str
    with_operator: bool
    with_audit: bool
    # Whether clouds are only pretended.
    mock_clouds: bool
    steps: tuple[str, ...]
    units: tuple[UnitStatus, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    status: LocalClusterStatus | None = None


class Control:
    """The client. Blocking, for command lines, tests and threads; every call is a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> LocalClusterStatus:
        answer, _ = self._ask(AskStatus())
        assert answer.status is not None, "the hull answers a question for its status with its status"
        return answer.status

    def stop(self) -> None:
        self._ask(StopCluster())

    def start_unit(self, unit: Unit) -> None:
        self._ask(StartUnit(unit))

    def resume_unit(self, name: str) -> None:
        self._ask(ResumeUnit(name))

    def stop_unit(self, name: str) -> None:
        """Returns when the process is gone."""
        self._ask(StopUnit(name))

    def signal_unit(self, name: str, number: int) -> None:
        self._ask(SignalUnit(name, number))

    def listen(self, host: str, port: int = 0) -> socket.socket:
        return self._socket(Listen(host, port))

    def dial(self, host: str, port: int) -> socket.socket:
        return self._socket(Dial(host, port))

    def _socket(self, request: Request) -> socket.socket:
        _, handed = self._ask(request)
        assert handed is not None, "listen and dial are answered with a socket or with an error"
        # Whether a socket blocks is a property of the open file, and the hull's event loop had switched that off.
        handed.setblocking(True)
        return handed

    def _ask(self, request: Request) -> tuple[Answer, socket.socket | None]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            try:
                with reachable(self._path) as path:
                    connection.connect(path)
                connection.send(msgspec.json.encode(request))
                body, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 1)
            except OSError as error:
                raise self._explained(error) from error
        handed = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not body:
            raise NotRunning(f"The hull at {self._path} ended before it answered.")
        answer = msgspec.json.decode(body, type=Answer)
        if answer.error:
            raise Refused(answer.error)
        return answer, handed

    def _explained(self, error: OSError) -> NotRunning | Refused:
        if isinstance(error, TimeoutError):
            return NotRunning(
                f"The hull at {self._path} did not answer within {_TIMEOUT_SECONDS:.0f} s: wait until the machine "
                "has less to "
                "do, or `skysail down` and `skysail up`."
            )
        if isinstance(error, PermissionError):
            return Refused(f"The hull at {self._path} belongs to another user: ask as that user, or use sudo.")
        return NotRunning(f"No hull answers at {self._path}: `skysail up` starts one.")
