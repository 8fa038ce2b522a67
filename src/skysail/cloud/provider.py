"""Interface of a provider: what a kubelet needs to run pods. Independent of Kubernetes.

A *pod* is a sandbox with an address and volumes. A *run* is one start of one container in it, identified by pod UID,
container name and run number. The node decides whether to restart a container; a provider starts each run once. All
methods may be called at any time, by many tasks at once, and after a restart of the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from skysail.cloud.gang_limits import GangLimits


class File(msgspec.Struct, frozen=True):
    """One file of a volume, by its path inside the volume."""

    path: str
    content: bytes
    mode: int = 0o644


class EmptyDir(msgspec.Struct, frozen=True, tag="scratch"):
    """Volume that is empty at the start and deleted with the pod."""

    in_memory: bool = False
    size_limit: int | None = None


class ProjectedFiles(msgspec.Struct, frozen=True, tag="files"):
    """Volume with given files, such as a ConfigMap. The files may be replaced while the pod runs."""

    files: tuple[File, ...]


class HostPath(msgspec.Struct, frozen=True, tag="folder"):
    """A directory or file of the machine."""

    path: str
    create: bool = False


class PersistentDisk(msgspec.Struct, frozen=True, tag="disk"):
    """A persistent disk, by the provider's name for it."""

    id: str
    read_only: bool = False


class CloudVolume(msgspec.Struct, frozen=True, tag="cloud"):
    """A volume of the cloud itself, by a name of at most 72 characters. Created if missing, and kept after the pod."""

    id: str


class Volume(msgspec.Struct, frozen=True):
    name: str
    source: EmptyDir | ProjectedFiles | HostPath | PersistentDisk | CloudVolume


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    volume: str
    path: str
    sub_path: str = ""
    read_only: bool = False


class ResourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a container, in cores, bytes and devices. None means unlimited."""

    cpu: float | None = None
    memory: int | None = None
    ephemeral_storage: int | None = None
    gpus: int = 0


def machine_size(limits: ResourceLimits, requests: ResourceLimits) -> ResourceLimits:
    """Return the CPU and memory of a machine for one container: its limits, or its requests where it has none."""
    return ResourceLimits(
        cpu=requests.cpu if limits.cpu is None else limits.cpu,
        memory=requests.memory if limits.memory is None else limits.memory,
    )


class SecurityContext(msgspec.Struct, frozen=True, kw_only=True):
    """User, group and capabilities of a container. None means the provider's default.

    Capabilities are Linux names without `CAP_`. A container has the usual default capabilities except those in
    `drop`, which may contain `ALL`, plus those in `add`.
    """

    user: int | None = None
    group: int | None = None
    run_as_non_root: bool = False
    drop: frozenset[str] = frozenset()
    add: frozenset[str] = frozenset()
    read_only_root: bool = False
    is_unconfined: bool = False  # without the provider's default filter of system calls


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Container to run. All references and `$(NAME)` are resolved."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    mounts: tuple[Mount, ...] = ()
    limits: ResourceLimits = ResourceLimits()
    requests: ResourceLimits = ResourceLimits()
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    rights: SecurityContext = SecurityContext()
    message_path: str = "/dev/termination-log"
    ports: tuple[int, ...] = ()  # TCP ports that the container declares

    @property
    def machine_size(self) -> ResourceLimits:
        """Return the CPU and memory that a cloud provides and bills."""
        return machine_size(self.limits, self.requests)


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of the containers."""

    uid: str
    namespace: str
    name: str
    hostname: str
    subdomain: str = ""
    volumes: tuple[Volume, ...] = ()
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    uses_host_network: bool = False
    fs_group: int | None = None  # the group that volumes are given to, and that every container is in
    keeps_matching_groups: bool = False  # a PVC whose root has that group already is not walked
    groups: frozenset[int] = frozenset()  # more groups of every container
    ephemeral_storage: int | None = None  # bytes on the disk, for all containers and emptyDir volumes together

    @property
    def dns_names(self) -> tuple[str, ...]:
        """Return the names under which the other pods of its cluster would find the pod."""
        if not self.subdomain:
            return (self.hostname,)
        short = f"{self.hostname}.{self.subdomain}"
        local = f"{short}.{self.namespace}"
        return (f"{local}.svc.cluster.local", f"{local}.svc", local, short, self.hostname)


class RunId(msgspec.Struct, frozen=True, order=True):
    """One start of one container."""

    pod: str
    container: str
    number: int


class Pending(msgspec.Struct, frozen=True, tag="pending"):
    """Accepted, but not running yet. `message` is a message for the user; `reason` is one CamelCase word.

    `needs_restart_spec`: the container spec was lost, for example by a restart, so `start` has to be called again.
    """

    reason: str
    message: str = ""
    needs_restart_spec: bool = False


class Running(msgspec.Struct, frozen=True, tag="running"):
    """Running. `image_id` is the provider's id of the image or instance; empty if the image name is sufficient."""

    started: float
    image_id: str = ""


EVICTED = "Evicted"
LOST = "Lost"
# Reason of a run that never started because no candidate at its cloud had capacity: another provider may have some.
NO_CAPACITY = "NoCapacity"
# Reason of a run that never started because its App has no such handler: each further run would end the same way.
HANDLER_NOT_FOUND = "HandlerNotFound"


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """Terminated. `message` is the termination message of the program.

    `reason` is Completed, Error, OOMKilled, StartError or the provider's own.
    `Evicted`: the provider evicted the whole pod, nothing in it runs again, and `message` says why.
    `Lost`: the sandbox or its supervisor disappeared; the program did not fail.
    """

    code: int
    reason: str
    message: str = ""
    started: float | None = None
    ended: float
    image_id: str = ""


State = Pending | Running | Ended


class RuntimeListing(msgspec.Struct, frozen=True, kw_only=True):
    """All runs and pods of this cluster at the provider. An incomplete listing proves no absence."""

    runs: dict[RunId, State]
    pods: dict[str, str]  # UID of each prepared pod -> its address
    complete: bool = True


class Output(msgspec.Struct, frozen=True):
    """A chunk of the output of a run, in order. Not always a whole line.

    A provider that repeats output for a new reader repeats `at` with it. A provider that does not know that time sets
    `offset`: the number of bytes of this stream before the chunk.
    """

    stream: Literal["stdout", "stderr"]
    at: float
    data: bytes
    offset: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a run: CPU seconds since its start, and current memory in bytes."""

    cpu_seconds: float
    memory: int


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Features of a provider besides running containers. Checked before anything is promised to a user."""

    exec: bool = False
    attach: bool = False
    port_forward: bool = False
    volumes: bool = False
    volume_deletion: bool = False  # deletes volumes of the cloud, such as those for checkpoints
    multi_container: bool = False
    host_network: bool = False
    host_network_setting: str = ""  # with which an administrator allows the host network; none where there is no way
    capabilities: frozenset[str] = frozenset()  # those that a container may have where it asks for them
    ignored_capabilities: frozenset[str] = frozenset()  # those that it may ask for and that have no effect
    user_namespaces: bool = False
    supplemental_groups: bool = False
    stats: bool = False
    gang: bool = False
    gang_limits: GangLimits | None = None  # on the members of a gang; none where any members can be a gang
    live_prices: bool = False
    needs_command: bool = False  # cannot start an image by its own ENTRYPOINT, so a launch spec names the command line
    needs_shell: bool = False  # runs the program under a shell of the image
    billable: bool = True
    probe_commands_per_minute: int = 0  # how many commands the probes of all pods may run; 0 if there is no limit
    web_apps: bool = False  # runs servers as web Apps, whose containers it scales (`cloud.web_app`)


class Session(Protocol):
    """Interactive session: an exec, or an attached run. With a tty there is no stderr."""

    async def write(self, data: bytes) -> None:
        """Write to standard input. Waits while the program does not read."""
        ...

    async def close_stdin(self) -> None: ...

    def output(self) -> AsyncIterator[Output]:
        """Yield the output until the session ends. Iterate only once."""
        ...

    async def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> int:
        """Wait for the end. Returns the exit code; 128 + n for signal n."""
        ...

    async def kill(self) -> None:
        """Kill an exec with its process group. An attached run goes on."""
        ...

    async def close(self) -> None:
        """Detach the user: an exec with a tty gets SIGHUP, an attached run goes on. May be called twice."""
        ...


class PortConnection(Protocol):
    """A TCP connection to a port in a pod."""

    async def read(self) -> bytes:
        """Read some bytes. Returns no bytes at the end.

        Raises ConnectionError or an error of `cloud.errors` if the connection broke, so that bytes may be missing.
        """
        ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    async def close(self) -> None: ...


class Provider(Protocol):
    """Runs pods. Raises only errors of `cloud.errors`."""

    @property
    def name(self) -> str: ...

    @property
    def features(self) -> Features: ...

    async def create_sandbox(self, pod: Pod) -> str:
        """Create the sandbox and return its address. Idempotent: the same UID gets the same address.

        A repeated call replaces `hosts`, for runs that start afterwards.
        The address is empty for a pod at a cloud, because the cluster cannot reach it.
        """
        ...

    async def start(self, run: RunId, container: Container) -> None:
        """Start one run in a prepared pod. Does nothing for a run that was started before, even if it has ended.

        May be slow, because an image is pulled.
        Raises `Rejected` if the run can never start, for example because the image is unknown.
        Raises `Gone` if the pod was not prepared.
        """
        ...

    async def stop(self, run: RunId, grace: float) -> None:
        """Request the end of the run, and kill it after `grace` seconds. Returns at once; `changes` reports the end."""
        ...

    async def remove_sandbox(self, pod: str) -> None:
        """Kill every run of this pod and remove its sandbox. Ignores unknown pods."""
        ...

    async def list(self) -> RuntimeListing: ...

    def changes(self) -> AsyncIterator[RunId]:
        """Yield runs whose state may have changed since this call. Earlier changes are in `list`."""
        ...

    async def state(self, run: RunId) -> State | None:
        """Return the state of a run, or None if it is unknown.

        A terminated run may be forgotten when the second run after it starts.
        """
        ...

    def output(self, run: RunId) -> AsyncIterator[Output]:
        """Yield the output of the run from its start, or as far back as the provider keeps it, to its end."""
        ...

    async def update(self, pod: str, volume: str, files: tuple[File, ...]) -> None:
        """Replace the files of a `ProjectedFiles` volume atomically. Requires feature `volumes`."""
        ...

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """Start a command beside a run. Requires feature `exec`. Raises `Rejected` if the command cannot start."""
        ...

    async def attach(self, run: RunId, *, stdin: bool) -> Session:
        """Attach to the run; yields its output from now on. Requires feature `attach`."""
        ...

    async def connect(self, pod: str, port: int, *, from_outside: bool = False) -> PortConnection:
        """Connect to a port in the pod. Requires feature `port_forward`.

        `from_outside`: connect like another pod, so that ports on the pod's loopback interface are not reachable.
        Providers with a single way in ignore it.
        """
        ...

    async def usage(self) -> dict[RunId, Usage]:
        """Return the usage of all runs. Requires feature `stats`."""
        ...
