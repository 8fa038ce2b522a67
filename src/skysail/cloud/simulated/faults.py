"""Faults between a simulated cloud and its callers, scripted in advance, so that each run is deterministic."""

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
    "lost-done",  # executed, but the reply never arrived
    "lost-later",  # executed long after all callers stopped waiting
    "500",
    "500-done",
    "malformed",  # executed, but the reply cannot be decoded
    "401",
    "402",
    "404",
    "409",
    "429",
    "slow",
    "no-capacity",
    "duplicate",  # one call creates two instances
    "dear",  # at twice the price
    "low-stock",  # an offer says that little is left
    "out-of-stock",  # an offer says that nothing is left
    "late",  # missing from listings for a long time
    "hidden",  # missing from listings and lookups for a long time
    "slow-start",
    "slow-end",
    "preempted",
    "end-ignored",  # accepted and forgotten
    "empty",  # an empty listing that claims to be complete
    "partial",  # an incomplete listing, marked as such
    "partial-lie",  # an incomplete listing that claims to be complete
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
    """The outcome of the call is unknown to the caller. `what` decides how the server shows the fault on the wire."""

    def __init__(self, what: FaultKind) -> None:
        super().__init__(f"The simulated cloud gave no usable reply ({what}).")
        self.what = what


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the `at`-th call of an operation, or of every call, from `since` to `until` by the account's clock.

    `seconds` is the duration of a delay, or the delay until a throttled caller may retry. If `on` is None, the fault
    applies to any operation: a cloud that is down for an hour is `Fault(what="lost", since=0, until=3600)`.
    A `gpu_type` restricts the fault to creates and offers of this type.
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
                    f"{self.what!r} is no fault of {kind}: choose one of {', '.join(FAULTS_BY_OPERATION[kind])}"
                )

    def applies(self, on: Operation, number: int, now: float, gpu_type: str = "") -> bool:
        is_its_turn = self.on in {None, on} and self.at in {None, number} and self.since <= now < self.until
        return is_its_turn and (on == "offers" or self.is_about(gpu_type))

    def is_about(self, gpu_type: str) -> bool:
        """Return whether the fault concerns this GPU type. Case does not matter."""
        return not self.gpu_type or self.gpu_type.casefold() == gpu_type.casefold()

    async def before(self) -> None:
        """Delay or fail a call before it is executed."""
        match self.what:
            case "slow":
                await asyncio.sleep(self.seconds)
            case "lost" | "500" | "409":
                raise LostReply(self.what)
            case "401":
                raise Rejected("Unauthorized", "The simulated cloud rejects this token: set a valid one.")
            case "402":
                raise Rejected("PaymentRequired", "The simulated account has no credit left: add credit.")
            case "404":
                raise Gone("The simulated cloud reports that the instance does not exist.")
            case "429":
                raise Throttled("The simulated cloud throttles calls.", self.seconds)
            case "no-capacity":
                raise NoCapacity("The simulated cloud has no capacity.")

    def after(self) -> None:
        """Lose the reply to a call that was executed."""
        if self.what in {"lost-done", "500-done", "malformed"}:
            raise LostReply(self.what)


NOTHING = Fault(what="nothing")


class Script:
    """Faults by call: the first matching fault applies. Calls are numbered from 1, separately for each operation."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = list(faults)
        self.calls: Counter[Operation] = Counter()

    def next_fault(self, on: Operation, now: float, gpu_type: str = "") -> Fault:
        """Count the call. `gpu_type` is that of a create."""
        self.calls[on] += 1
        return next((fault for fault in self.faults if fault.applies(on, self.calls[on], now, gpu_type)), NOTHING)
