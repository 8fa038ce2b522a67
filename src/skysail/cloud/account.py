"""Interface of a cloud account: create, list and terminate billed instances, one per launch spec.

This is the billed side of a provider; `provider.py` is the interface that a node uses. Only `claims/` creates and
terminates instances, because the decision to call costs money. All methods may be called by many tasks at once, and
after a restart of the caller. They raise only errors of `cloud.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Literal, Protocol, runtime_checkable

import msgspec

from skysail.cloud.lifetimes import DEFAULT_MAX_LIFETIME
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Container, Ended, Features, Output, Pod, PortConnection, Session

_MAX_ID_LENGTH = 256


class GpuRequest(msgspec.Struct, frozen=True):
    """Number and type of GPUs. The type is the cloud's own name; if it is empty, the cloud chooses."""

    type: str
    count: int = 1


class RegistryCredentials(msgspec.Struct, frozen=True):
    """User and password for the registry of the image. The password never appears in a repr."""

    registry: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"RegistryCredentials(registry={self.registry!r}, username={self.username!r})"


class Member(msgspec.Struct, frozen=True):
    """One container of an instance, in the sandbox of its own pod."""

    pod: Pod
    container: Container


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Launch spec. The instance is tagged with `claim` and `cluster`, so that an inventory shows its owner.

    `members` are one container, or the ranks of a gang in their order. A gang requires feature `gang`: all members
    start or none does, they share a private network, and one that fails ends the others. `gpus` are those of each
    member. `replicas` are copies of a single member.
    `max_lifetime` is the maximum lifetime, which the cloud enforces even if the operator is gone.
    No cloud enforces that of a web App: only the operator ends it.
    `region` and `cloud_type` are those of the offer, empty if the cloud chooses. `max_usd_per_hour` is a cap on the
    price of all replicas. `options` are settings that only this cloud knows.
    """

    claim: str
    cluster: str
    members: tuple[Member, ...]
    gpus: GpuRequest | None = None
    replicas: int = 1
    max_lifetime: float
    region: str = ""
    cloud_type: str = ""
    max_usd_per_hour: float | None = None
    registry_credentials: RegistryCredentials | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def pod(self) -> Pod:
        """Return the pod of rank 0."""
        return self.members[0].pod

    @property
    def container(self) -> Container:
        """Return the container of rank 0."""
        return self.members[0].container

    @property
    def size(self) -> int:
        """Return the number of containers that are launched and billed together."""
        return len(self.members) * self.replicas


InstanceState = Literal["starting", "running", "ended"]


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one member of a gang."""

    state: InstanceState = "starting"
    started: float | None = None
    exit: Ended | None = None


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One billed instance. `id` has at most 256 characters. `claim` and `cluster` are empty for a foreign instance.

    `exit` is the exit of its program. The instance may be billed longer, until its state is `ended`.
    `ranks` are the members of a gang in the order of its launch spec; empty for a single container. The `exit` of a
    gang is that of the rank that failed first, and its message names that rank.
    `app` is the cloud's own group of instances that the instance belongs to, such as an App of Modal.
    `url` is the persistent address of a web App.
    """

    id: str
    claim: str
    cluster: str
    state: InstanceState
    created: float
    started: float | None = None
    ended: float | None = None
    exit: Ended | None = None
    usd_per_hour: float = 0.0
    usd_total: float | None = None
    region: str = ""
    app: str = ""
    url: str = ""
    ranks: tuple[RankState, ...] = ()

    @property
    def has_usable_id(self) -> bool:
        """Return whether the id fits into a claim."""
        return 0 < len(self.id) <= _MAX_ID_LENGTH


def oldest_first(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """Sort by creation time, then by id."""
    return tuple(sorted(instances, key=lambda instance: (instance.created, instance.id)))


class Inventory(msgspec.Struct, frozen=True):
    """All instances of the account, including foreign ones. Terminated instances may be missing or stay for a while.

    Only a `complete` inventory proves absence, and only of instances created before the visibility window.
    `problem` is a sentence that says why the inventory is not complete, empty if the cloud does not know.
    `unreadable` are claims and instance ids that exist, but whose state the cloud did not return. The inventory proves
    nothing about them.
    """

    instances: tuple[Instance, ...]
    complete: bool = True
    problem: str = ""
    unreadable: frozenset[str] = frozenset()


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a cloud. Times are in seconds.

    `poll_interval`: poll interval.
    `visibility_delay`: time until a new instance appears in inventories.
    `create_timeout`: time that the cloud may work on a create whose caller has stopped waiting.
    `absence_threshold`: number of complete inventories that prove absence.
    `max_lifetime`: maximum lifetime of an instance.
    `forgets_ended`: the cloud does not show a terminated instance any more, so its exit has to be recorded before.
    """

    poll_interval: float = 5.0
    visibility_delay: float = 60.0
    create_timeout: float = 21 * 60.0
    absence_threshold: int = 3
    max_lifetime: float = DEFAULT_MAX_LIFETIME
    forgets_ended: bool = False


# Gets the name of a claim, the step of its launch, and a sentence for the user.
LaunchProgress = Callable[[str, Literal["image", "capacity"], str], None]


@runtime_checkable
class ReportsProgress(Protocol):
    """An account whose launches have steps that a user waits for."""

    def on_progress(self, progress: LaunchProgress) -> None:
        """Report each step of each launch to this function."""
        ...


class CloudAccount(Protocol):
    """One account at one cloud."""

    @property
    def name(self) -> str: ...

    @property
    def account(self) -> str:
        """Name of the account. Its inventory proves nothing about the instances of another account.

        Empty until the cloud has said it. Until then, `list` and `offers` fail.
        """
        ...

    @property
    def features(self) -> Features: ...

    @property
    def terms(self) -> Timings: ...

    async def create(self, spec: LaunchSpec) -> Instance:
        """Create an instance. Call once per launch spec: a second call may create a second instance.

        May take many minutes.
        Raises `Rejected`, `NoCapacity`, `Throttled` or `Unsupported` if nothing was created.
        Raises `OutcomeUnknown` if an instance may exist: check before any other call.
        """
        ...

    async def terminate(self, instance: str, grace: float) -> None:
        """Request the termination; the program has `grace` seconds. Idempotent. `Gone` does not prove termination."""
        ...

    async def delete_volume(self, namespace: str, volume: str) -> None:
        """Delete the `CloudVolume` with this id of pods of this namespace, with its files. Idempotent.

        Requires feature `volume_deletion`. A volume that does not exist is deleted already.
        """
        ...

    async def list(self) -> Inventory: ...

    async def offers(self) -> OfferList:
        """Return what the cloud offers now, with prices. Nothing is reserved, and an offer may be out of stock."""
        ...

    async def get(self, instance: str) -> Instance | None:
        """Look up one instance, independently of `list`. Returns None if the cloud does not have it."""
        ...

    def watch(self) -> AsyncIterator[str]:
        """Yield names of claims whose instance may have changed. A cloud without notifications yields nothing."""
        ...

    def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        """Yield the output of one rank's program from its start, or as far back as the cloud keeps it, to its end."""
        ...

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:
        """Start a command beside the program of one rank. Requires feature `exec`."""
        ...

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:
        """Attach to the program of one rank. Requires feature `attach`."""
        ...

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        """Connect to a port of one rank. Requires feature `port_forward`."""
        ...
