"""Interface of a cloud account: create, list and terminate billed instances, one per launch spec.

This is the billed side of a provider; `provider.py` is the interface that a node uses. Only `claims/` creates and
terminates instances, because the decision to call costs money. All methods may be called by many tasks at once, and
after a restart of the caller. They raise only errors of `cloud.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Literal, Protocol

import msgspec

from skysail.cloud.provider import Abilities, Container, Ended, Line, Output, Pod, Session

_LONGEST_ID = 256


class Gpus(msgspec.Struct, frozen=True):
    """Number and type of GPUs. The type is the cloud's own name; if it is empty, the cloud chooses."""

    type: str
    count: int = 1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Launch spec. The instance is tagged with `claim` and `cluster`, so that an inventory shows its owner.

    `seconds` is the maximum lifetime, which the cloud enforces even if the operator is gone.
    """

    claim: str
    cluster: str
    pod: Pod
    container: Container
    gpus: Gpus | None = None
    members: int = 1
    seconds: float


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One billed instance. `id` has at most 256 characters. `claim` and `cluster` are empty for a foreign instance.

    `exit` is the exit of its program. The instance may be billed longer, until its state is `ended`.
    """

    id: str
    claim: str
    cluster: str
    state: Literal["starting", "running", "ended"]
    created: float
    started: float | None = None
    ended: float | None = None
    exit: Ended | None = None
    usd_per_hour: float = 0.0
    usd_total: float | None = None
    region: str = ""

    @property
    def has_usable_id(self) -> bool:
        """Return whether the id fits into a claim."""
        return 0 < len(self.id) <= _LONGEST_ID


def oldest_first(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """Sort by creation time, then by id."""
    return tuple(sorted(instances, key=lambda instance: (instance.created, instance.id)))


class Inventory(msgspec.Struct, frozen=True):
    """All instances of the account, including foreign ones. Terminated instances may be missing or stay for a while.

    Only a `complete` inventory proves absence, and only of instances created before the visibility window.
    """

    instances: tuple[Instance, ...]
    complete: bool = True


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Timings of a cloud. Times are in seconds.

    `tick`: poll interval.
    `visibility`: time until a new instance appears in inventories.
    `creating`: time that the cloud may work on a create whose caller has stopped waiting.
    `absences`: number of complete inventories that prove absence.
    `longest`: maximum lifetime of an instance.
    """

    tick: float = 5.0
    visibility: float = 60.0
    creating: float = 21 * 60.0
    absences: int = 3
    longest: float = 24 * 3600.0


class Cloud(Protocol):
    """One account at one cloud."""

    @property
    def name(self) -> str: ...

    @property
    def account(self) -> str:
        """Name of the account. Its inventory proves nothing about the instances of another account."""
        ...

    @property
    def abilities(self) -> Abilities: ...

    @property
    def terms(self) -> Terms: ...

    async def create(self, order: Order) -> Instance:
        """Create an instance. Call once per launch spec: a second call may create a second instance.

        May take many minutes.
        Raises `Refused`, `NoCapacity`, `Throttled` or `Unsupported` if nothing was created.
        Raises `Unknown` if an instance may exist: check before any other call.
        """
        ...

    async def end(self, instance: str, grace: float) -> None:
        """Request the termination; the program has `grace` seconds. Idempotent. `Gone` does not prove termination."""
        ...

    async def list(self) -> Inventory: ...

    async def look(self, instance: str) -> Instance | None:
        """Look up one instance, independently of `list`. Returns None if the cloud does not have it."""
        ...

    def changes(self) -> AsyncIterator[str]:
        """Yield names of claims whose instance may have changed. A cloud without notifications yields nothing."""
        ...

    def output(self, instance: str) -> AsyncIterator[Output]:
        """Yield the output of the program from its start, or as far back as the cloud keeps it, to its end."""
        ...

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """Start a command beside the program. Requires feature `exec`."""
        ...

    async def attach(self, instance: str, *, stdin: bool) -> Session:
        """Attach to the program. Requires feature `attach`."""
        ...

    async def dial(self, instance: str, port: int) -> Line:
        """Connect to a port of the instance. Requires feature `port_forward`."""
        ...
