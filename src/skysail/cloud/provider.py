"""What a place where pods run must do, as a kubelet needs it. Knows no Kubernetes.

A *pod* is a place with an address and volumes; a *run* is one start of one container in it, known by pod UID, container
name and run number. Whether a container is run again is decided by the node; a provider runs once what it is told.
Every method may be called at any time, by many tasks at once, and after a restart of the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec


class File(msgspec.Struct, frozen=True):
    """One file of a volume, by its path inside the volume."""

    path: str
    content: bytes
    mode: int = 0o644


class Scratch(msgspec.Struct, frozen=True, tag="scratch"):
    """Empty at the start, gone with the pod."""

    in_memory: bool = False
    size_limit: int | None = None


class Files(msgspec.Struct, frozen=True, tag="files"):
    """Given content, such as a ConfigMap's. May be replaced while the pod runs."""

    files: tuple[File, ...]


class Folder(msgspec.Struct, frozen=True, tag="folder"):
    """A folder or file of the machine itself."""

    path: str
    create: bool = False


class Disk(msgspec.Struct, frozen=True, tag="disk"):
    """A disk that outlives pods, by the provider's name for it."""

    id: str
    read_only: bool = False


class Volume(msgspec.Struct, frozen=True):
    name: str
    source: Scratch | Files | Folder | Disk


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    volume: str
    path: str
    sub_path: str = ""
    read_only: bool = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a container may use, in cores, bytes and devices. None: as much as there is."""

    cpu: float | None = None
    memory: int | None = None
    gpus: int = 0


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """As whom a container runs, and what it may. None: as the provider sees fit.

    Capabilities are named as Linux does without `CAP_`. Those that most runtimes leave to a container are there unless
    they are in `dropped`, which may hold `ALL`; those in `added` stay even then.
    """

    user: int | None = None
    group: int | None = None
    must_not_be_root: bool = False
    dropped: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    has_read_only_root: bool = False


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Everything is resolved: no reference and no `$(NAME)` is left."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    mounts: tuple[Mount, ...] = ()
    limits: Limits = Limits()
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    rights: Rights = Rights()
    message_path: str = "/dev/termination-log"


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The place for containers."""

    uid: str
    namespace: str
    name: str
    hostname: str
    subdomain: str = ""
    volumes: tuple[Volume, ...] = ()
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    uses_host_network: bool = False


class RunId(msgspec.Struct, frozen=True, order=True):
    """One start of one container."""

    pod: str
    container: str
    number: int


class Pending(msgspec.Struct, frozen=True, tag="pending"):
    """Accepted and not running yet. `why` is for the user; `reason` is one CamelCase word.

    `is_forgotten`: what to run is not known any more, for example after a restart, so `start` has to be called again.
    """

    reason: str
    why: str = ""
    is_forgotten: bool = False


class Running(msgspec.Struct, frozen=True, tag="running"):
    """`image_id` is what the place calls that which runs; empty where the name of the image says all."""

    started: float
    image_id: str = ""


EVICTED = "Evicted"
LOST = "Lost"


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """`reason` is Completed, Error, OOMKilled, StartError or the provider's own; `message` is what the program left.

    With reason `Evicted` the provider took back the place itself, and `message` is why: nothing in that pod runs again.
    With reason `Lost` it was the place that went away, or who looks after it: the program did nothing wrong.
    """

    code: int
    reason: str
    message: str = ""
    started: float | None = None
    ended: float
    image_id: str = ""


State = Pending | Running | Ended


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of ours that the provider has. An incomplete one never means that something is gone."""

    runs: dict[RunId, State]
    pods: dict[str, str]  # UID of each prepared pod -> its address
    complete: bool = True


class Output(msgspec.Struct, frozen=True):
    """A piece of what a run printed, in order. Not always a whole line."""

    stream: Literal["stdout", "stderr"]
    at: float
    data: bytes


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used: seconds of a core since its start, and bytes of memory now."""

    cpu_seconds: float
    memory: int


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this provider can do besides running. Asked before anything is promised to a user."""

    exec: bool = False
    attach: bool = False
    port_forward: bool = False
    volumes: bool = False
    several_containers: bool = False
    host_network: bool = False
    host_network_setting: str = ""  # with which an administrator allows the host network; none where there is no way
    capabilities: frozenset[str] = frozenset()  # those that a container may have where it asks for them
    stats: bool = False
    gang: bool = False
    live_prices: bool = False
    billable: bool = True


class Session(Protocol):
    """A command that somebody talks to: an exec, or an attached run. With a tty there is no stderr."""

    async def write(self, data: bytes) -> None:
        """To its standard input. Waits while the program does not read."""
        ...

    async def close_stdin(self) -> None: ...

    def output(self) -> AsyncIterator[Output]:
        """Until it ends. Iterated once."""
        ...

    async def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> int:
        """Its exit code; 128 + n for a signal."""
        ...

    async def kill(self) -> None:
        """End an exec at once, with all that it started and left in its group. An attached run goes on."""
        ...

    async def close(self) -> None:
        """The user is gone: an exec gets SIGHUP where it has a tty, an attached run goes on. May be called twice."""
        ...


class Line(Protocol):
    """A TCP connection to a port in a pod."""

    async def read(self) -> bytes:
        """Some bytes; none at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    async def close(self) -> None: ...


class Provider(Protocol):
    """Raises only errors of `cloud.errors`."""

    @property
    def name(self) -> str: ...

    @property
    def abilities(self) -> Abilities: ...

    async def prepare(self, pod: Pod) -> str:
        """Make the place and return its address. Called again for the same UID: the same address, nothing new.

        A pod at a cloud has none that the cluster could use: the address is empty then.
        """
        ...

    async def start(self, run: RunId, container: Container) -> None:
        """Start one run in a prepared pod. Called again for the same run: nothing happens, whatever became of it.

        May be slow (an image is fetched). Raises `Refused` where the run can never start, for example because the
        image is unknown; `Gone` where the pod was not prepared.
        """
        ...

    async def stop(self, run: RunId, grace: float) -> None:
        """Ask the run to end, and end it after `grace` seconds. Returns at once; `changes` tells the end."""
        ...

    async def release(self, pod: str) -> None:
        """End every run of this pod at once and take the place away. Unknown pods are fine."""
        ...

    async def list(self) -> Listing: ...

    def changes(self) -> AsyncIterator[RunId]:
        """Runs whose state may have changed, from now on. What happened before is in `list`."""
        ...

    async def state(self, run: RunId) -> State | None:
        """None where this run is not known: one that ended may be forgotten when the second after it is started."""
        ...

    def output(self, run: RunId) -> AsyncIterator[Output]:
        """What the run prints, from its start (or as far back as the provider keeps it) to its end."""
        ...

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:
        """Replace the content of a `Files` volume, at once for a reader. With ability `volumes`."""
        ...

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """Start a command beside a run. With ability `exec`; `Refused` where it cannot be started."""
        ...

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        """Talk to the run itself; its output from now on. With ability `attach`."""
        ...

    async def dial(self, pod: str, port: int, *, from_outside: bool = False) -> Line:
        """Connect to a port that something in the pod listens on. With ability `port_forward`.

        `from_outside`: as another pod would, so that what listens on the pod's loopback only is not found. Where a
        provider has one way in, it is the same.
        """
        ...

    async def usage(self) -> dict[RunId, Usage]:
        """With ability `stats`."""
        ...
