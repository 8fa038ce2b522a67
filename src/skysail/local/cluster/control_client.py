"""Client of the control socket of a local cluster: one request and one answer per connection.

A unix socket is found by its path, so it works across network namespaces, while a network socket stays in the namespace
in which it was created. Both together let processes of this machine reach the cluster: the local cluster creates a
network socket inside, and passes its descriptor over the control socket.
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
    """Stop everything in order. The answer comes at once; the home's lock is free when all has stopped."""


class StartUnit(msgspec.Struct, frozen=True, tag="start-unit"):
    """Start a unit, or replace the unit of the same name."""

    unit: Unit


class ResumeUnit(msgspec.Struct, frozen=True, tag="resume-unit"):
    name: str


class StopUnit(msgspec.Struct, frozen=True, tag="stop-unit"):
    name: str


class SignalUnit(msgspec.Struct, frozen=True, tag="signal-unit"):
    name: str
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """Return a socket that listens inside the local cluster. With port 0 the kernel chooses."""

    host: str
    port: Port


class Dial(msgspec.Struct, frozen=True, tag="dial"):
    """Return a socket that is connected to an address inside the local cluster."""

    host: str
    port: Port


Request = AskStatus | StopCluster | StartUnit | ResumeUnit | StopUnit | SignalUnit | Listen | Dial


class LocalClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a local cluster. `steps` are the start-up steps so far, as text for the user."""

    is_ready: bool
    pid: int
    started: float
    url: str
    with_operator: bool
    with_audit: bool
    # Whether the operator uses mock clouds.
    mock_clouds: bool
    stand_ins: tuple[str, ...] = ()
    steps: tuple[str, ...]
    units: tuple[UnitStatus, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    status: LocalClusterStatus | None = None


class Control:
    """Client of the control socket. Blocking, for commands, tests and threads; each call opens a connection."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> LocalClusterStatus:
        answer, _ = self._ask(AskStatus())
        assert answer.status is not None, "the answer to AskStatus has a status"
        return answer.status

    def stop(self) -> None:
        self._ask(StopCluster())

    def start_unit(self, unit: Unit) -> None:
        self._ask(StartUnit(unit))

    def resume_unit(self, name: str) -> None:
        self._ask(ResumeUnit(name))

    def stop_unit(self, name: str) -> None:
        """Stop a unit, and return when its process has ended."""
        self._ask(StopUnit(name))

    def signal_unit(self, name: str, number: int) -> None:
        self._ask(SignalUnit(name, number))

    def listen(self, host: str, port: int = 0) -> socket.socket:
        return self._socket(Listen(host, port))

    def dial(self, host: str, port: int) -> socket.socket:
        return self._socket(Dial(host, port))

    def _socket(self, request: Request) -> socket.socket:
        _, passed = self._ask(request)
        assert passed is not None, "listen and dial are answered with a socket or with an error"
        # The blocking mode belongs to the open file, and the event loop of the local cluster had switched blocking off.
        passed.setblocking(True)
        return passed

    def _ask(self, request: Request) -> tuple[Answer, socket.socket | None]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_TIMEOUT_SECONDS)
            try:
                with reachable(self._path) as path:
                    connection.connect(path)
                connection.send(msgspec.json.encode(request))
                body, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 1)
            except OSError as error:
                raise self._translate(error) from error
        passed = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not body:
            raise NotRunning(f"The local cluster at {self._path} ended before it answered.")
        answer = msgspec.json.decode(body, type=Answer)
        if answer.error:
            raise Refused(answer.error)
        return answer, passed

    def _translate(self, error: OSError) -> NotRunning | Refused:
        if isinstance(error, TimeoutError):
            return NotRunning(
                f"The local cluster at {self._path} did not answer within {_TIMEOUT_SECONDS:.0f} s: wait until the "
                "machine is less busy, or run `skysail down` and `skysail up`."
            )
        if isinstance(error, PermissionError):
            return Refused(f"The local cluster at {self._path} belongs to another user: run as that user, or use sudo.")
        return NotRunning(f"No local cluster answers at {self._path}: `skysail up` starts one.")
