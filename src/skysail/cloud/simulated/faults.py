"""What goes wrong between a cloud and who calls it, named before it happens: each run is a plan and not a chance."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, Rejected, Throttled

Operation = Literal["create", "end", "list", "look", "offers"]
FaultKind = Literal[
    "nothing",
    "lost",  # the request never arrived
    "lost-done",  # it was done, and the reply never arrived
    "lost-later",  # it is done long after everybody stopped waiting
    "500",
    "500-done",
    "malformed",  # it was done, and nobody can read the reply
    "401",
    "402",
    "404",
    "409",
    "429",
    "slow",
    "no-capacity",
    "duplicate",  # one call makes two
    "dear",  # at twice the price
    "low-stock",  # an offer says that little is left
    "out-of-stock",  # an offer says that nothing is left
    "late",  # missing from listings for long
    "hidden",  # denied for long, whoever asks
    "slow-start",
    "slow-end",
    "preempted",
    "end-ignored",  # accepted and forgotten
    "empty",  # a listing without anything, which says that it is complete
    "partial",  # a listing that says that it is not complete
    "partial-lie",  # a listing that is not complete, and says that it is
]
_ANSWERS: tuple[FaultKind, ...] = ("lost", "500", "malformed", "401", "402", "404", "409", "429", "slow")
_EFFECTS: tuple[FaultKind, ...] = (*_ANSWERS, "lost-done", "500-done")
FAULTS_BY_OPERATION: dict[Operation, tuple[FaultKind, ...]] = {
    "create": (
        *_EFFECTS,
        "lost-later",
        "no-capacity",
        "duplicate",
        "dear",
        "late",
        "hidden",
        "slow-start",
        "slow-end",
        "preempted",
    ),
    "end": (*_EFFECTS, "slow-end", "end-ignored"),
    "list": (*_ANSWERS, "empty", "partial", "partial-lie"),
    "look": _ANSWERS,
    "offers": (*_ANSWERS, "empty", "dear", "low-stock", "out-of-stock"),
}


class LostReply(OutcomeUnknown):
    """The caller cannot know whether it was done. `what` tells a server how this looks on the wire."""

    def __init__(self, what: FaultKind) -> None:
        super().__init__(f"No answer that can be trusted came from the simulated cloud ({what}).")
        self.what = what


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Befalls the `at`-th call of this kind, or every one, from `since` until `until` by the account's clock.

    `seconds` is how long it lasts: slowness, lateness, or how long a caller is asked to wait. An `on` of None is any
    call: a cloud that is down for an hour is `Fault(what="lost", since=0, until=3600)`. A `gpu_type` restricts the
    fault to creates and offers of this type.
    """

    what: FaultKind
    on: Operation | None = None
    at: int | None = None
    since: float = -math.inf
    until: float = math.inf
    seconds: float = 30.0
    gpu_type: str = ""

    def __post_init__(self) -> None:
        kinds = (self.on,) if self.on else get_args(Operation)
        for kind in kinds:
            if self.what not in (*FAULTS_BY_OPERATION[kind], "nothing"):
                raise ValueError(
                    f"{self.what!r} cannot befall {kind}: choose one of {', '.join(FAULTS_BY_OPERATION[kind])}"
                )

    def befalls(self, on: Operation, number: int, now: float, gpu_type: str = "") -> bool:
        is_its_turn = self.on in {None, on} and self.at in {None, number} and self.since <= now < self.until
        return is_its_turn and (on == "offers" or self.is_about(gpu_type))

    def is_about(self, gpu_type: str) -> bool:
        """Return whether the fault concerns this GPU type. Case does not matter."""
        return not self.gpu_type or self.gpu_type.casefold() == gpu_type.casefold()

    async def before(self) -> None:
        """What keeps a call from being done, or from being done soon."""
        match self.what:
            case "slow":
                await asyncio.sleep(self.seconds)
            case "lost" | "500" | "409":
                raise LostReply(self.what)
            case "401":
                raise Rejected("Unauthorized", "The simulated cloud does not know this token: give it a valid one.")
            case "402":
                raise Rejected("PaymentRequired", "The simulated account has no money left: add some.")
            case "404":
                raise Gone("The simulated cloud says that there is no such thing.")
            case "429":
                raise Throttled("The simulated cloud has had enough of calls for now.", self.seconds)
            case "no-capacity":
                raise NoCapacity("The simulated cloud has no such machine free.")

    def after(self) -> None:
        """What becomes of the reply to a call that was done."""
        if self.what in {"lost-done", "500-done", "malformed"}:
            raise LostReply(self.what)


NOTHING = Fault(what="nothing")


class Script:
    """Which fault befalls which call: the first one that fits. Calls are numbered from 1, each kind by itself."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = list(faults)
        self.calls: Counter[Operation] = Counter()

    def next_fault(self, on: Operation, now: float, gpu_type: str = "") -> Fault:
        """Count the call. `gpu_type` is that of a create."""
        self.calls[on] += 1
        return next((fault for fault in self.faults if fault.befalls(on, self.calls[on], now, gpu_type)), NOTHING)
