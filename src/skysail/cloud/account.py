"""What a cloud that charges must do: create, list and end instances, each of which carries out one order.

This is the paid side of a provider; `contract.py` is what a node sees. Only `claims/` creates and ends instances,
because whether to call at all is the decision that costs money. Every method may be called by many tasks at once and
after a restart of the caller. Raises only errors of `cloud.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Literal, Protocol

import msgspec

from skysail.cloud.provider import Abilities, Container, Ended, Line, Output, Pod, Session

_LONGEST_ID = 256


class Gpus(msgspec.Struct, frozen=True):
    """So many of one type, by the cloud's own name; an empty one is the cloud's choice."""

    type: str
    count: int = 1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `claim` and `cluster` are written on the instance, so that a listing tells whose it is.

    `seconds` is how long it may live at all: the cloud ends it then, whatever became of us.
    """

    claim: str
    cluster: str
    pod: Pod
    container: Container
    gpus: Gpus | None = None
    members: int = 1
    seconds: float


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One paid thing. `id` has at most 256 characters. `claim` and `cluster` are empty where somebody else made it.

    `exit` is how its work ended; an instance may be billed beyond that, until its state is `ended`.
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
        """Whether it can be written down, and asked for."""
        return 0 < len(self.id) <= _LONGEST_ID


def oldest_first(instances: Iterable[Instance]) -> tuple[Instance, ...]:
    """The id decides between those of one second."""
    return tuple(sorted(instances, key=lambda instance: (instance.created, instance.id)))


class Inventory(msgspec.Struct, frozen=True):
    """What the account has, ours and others'. Instances that ended may be missing, or stay for a while.

    Only a `complete` one can show that something is not there, and only what was created before its visibility window.
    """

    instances: tuple[Instance, ...]
    complete: bool = True


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How far a cloud's answers can be trusted, and how long an instance may live.

    `creating`: so long a create may be worked on, although nobody waits for its answer any more.
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
        """Tells accounts at the same cloud apart. What one of them lists says nothing about instances of another."""
        ...

    @property
    def abilities(self) -> Abilities: ...

    @property
    def terms(self) -> Terms: ...

    async def create(self, order: Order) -> Instance:
        """Begin to pay. Called once per order: a second call may make a second instance. May take many minutes.

        `Refused`, `NoCapacity`, `Throttled`, `Unsupported`: nothing was made. `Unknown`: look before anything else.
        """
        ...

    async def end(self, instance: str, grace: float) -> None:
        """Ask to end it; its program has `grace` seconds. Called again: fine. `Gone` is no proof that it ended."""
        ...

    async def list(self) -> Inventory: ...

    async def look(self, instance: str) -> Instance | None:
        """One instance, by another way than `list`. None: the cloud says that there is none, or none any more."""
        ...

    def changes(self) -> AsyncIterator[str]:
        """Claims whose instance may have changed, from now on. A cloud that tells nothing yields nothing."""
        ...

    def output(self, instance: str) -> AsyncIterator[Output]:
        """What its program prints, from the start (or as far back as the cloud keeps it) to its end."""
        ...

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:
        """With ability `exec`."""
        ...

    async def attach(self, instance: str, *, stdin: bool) -> Session:
        """With ability `attach`."""
        ...

    async def dial(self, instance: str, port: int) -> Line:
        """With ability `port_forward`."""
        ...
