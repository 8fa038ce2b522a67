"""State of a gang, from the status of its call and from its markers. Pure.

Only an ended call, or one that cannot end well any more, decides about exit codes: Modal may take containers away and
start them again on the same input, so a rank that has exited may start once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from skysail.base.names import Reason
from skysail.cloud.account import RankState
from skysail.cloud.modal.gangs.markers import Marker
from skysail.cloud.provider import LOST, Ended

# Exit codes of ranks that were ended from outside, as a shell and a kubelet report them.
_TIMEOUT_CODE = 124
_START_FAILED_CODE = 128
_KILLED_CODE = 137
_TERMINATED_CODE = 143
# Seconds that the markers may be late after the end of the call.
_LATE_SECONDS = 10.0
# Seconds in which the shim ends the other ranks after a failure. Afterwards the operator ends them.
_ABORT_SECONDS = 45.0
# Seconds between the deploy and the tag that names the call. An older App without it belongs to a process that died.
_UNFINISHED_SECONDS = 120.0

CallStatus = Literal["none", "pending", "success", "failure", "start-failed", "terminated", "timeout", "gone"]


class GangFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Known facts of a gang. Times are in seconds since 1970.

    `status` is `none` before the call is made, and `gone` if Modal does not have the call.
    `ended_seen`: when this process first saw the end of the call. `is_asked`: its end was requested.
    `startup_seconds`: time after its creation in which all ranks must start. `is_one_pod`: the ranks are one pod.
    """

    size: int
    created: float
    status: CallStatus
    markers: tuple[Marker, ...] = ()
    now: float
    ended_seen: float | None = None
    is_asked: bool = False
    startup_seconds: float = float("inf")
    is_one_pod: bool = False


class GangState(msgspec.Struct, frozen=True, kw_only=True):
    """`started`: when the last rank has started, None before. `exit`: that of the whole gang."""

    started: float | None = None
    exit: Ended | None = None
    ranks: tuple[RankState, ...] = ()


class _Outcome(msgspec.Struct, frozen=True):
    """End of one rank. `at` is None if the rank did not report it."""

    code: int
    reason: str
    message: str = ""
    at: float | None = None


_TIMED_OUT = _Outcome(_TIMEOUT_CODE, "DeadlineExceeded", "Modal ended the gang at its maximum lifetime.")
_TERMINATED = _Outcome(_TERMINATED_CODE, "Error", "The gang was terminated.")
_NOT_STARTED = _Outcome(
    _START_FAILED_CODE,
    "StartError",
    "Modal could not start the containers: the image needs Python 3.10 or newer as `python`.",
)
_NO_REPORT = _Outcome(_KILLED_CODE, "Error", "The container ended without a report.")


def assess(facts: GangFacts) -> GangState:
    """Return the state of the gang."""
    starts = _starts(facts)
    started = max(starts.values()) if len(starts) == facts.size else None
    lost = _loss(facts, is_started=started is not None)
    if not lost and not _is_decided(facts):
        return GangState(started=started, ranks=_ranks(facts, starts, ()))
    outcomes = [_Outcome(_KILLED_CODE, LOST, lost)] * facts.size if lost else _outcomes(facts, has_started=bool(starts))
    exits = [_ended(facts, starts.get(rank), outcome) for rank, outcome in enumerate(outcomes)]
    first = None if lost else _first_failed(facts, exits)
    exit_ = exits[0] if lost else _gang_exit(facts, exits, first)
    return GangState(started=started, exit=exit_, ranks=_ranks(facts, starts, _with_blame(facts, exits, first)))


def _loss(facts: GangFacts, *, is_started: bool) -> str:
    """Return why Modal has lost the gang, or why it will never run, as a sentence, or an empty string."""
    age = facts.now - facts.created
    problems = (
        (
            facts.status == "none" and age > _UNFINISHED_SECONDS,
            "The operator stopped while it launched the gang, before its call was recorded.",
        ),
        (facts.status == "gone", "Modal no longer has the call of the gang."),
        (_is_taken(facts), "Modal took the containers of the gang away, for example because it preempted them."),
        (facts.status == "terminated", "Modal terminated the gang, or its App was stopped."),
        (
            facts.status == "pending" and not is_started and age > facts.startup_seconds,
            f"Modal did not start all {facts.size} ranks in {facts.startup_seconds:.0f} seconds.",
        ),
    )
    return "" if facts.is_asked else next((text for is_so, text in problems if is_so), "")


def _is_taken(facts: GangFacts) -> bool:
    """Return whether a rank was interrupted from outside, or has started in a second container."""
    starts = {(mark.rank, mark.task) for mark in facts.markers if mark.kind == "start" and mark.rank < facts.size}
    return len(starts) > len({rank for rank, _ in starts}) or any(mark.is_interrupted for mark in facts.markers)


def _is_decided(facts: GangFacts) -> bool:
    exits = _exit_markers(facts)
    if facts.status in {"none", "pending"}:
        failures = [mark.at for mark in exits.values() if mark.code and not mark.is_aborted]
        return bool(failures) and facts.now - min(failures) > _ABORT_SECONDS
    is_late = facts.ended_seen is not None and facts.now - facts.ended_seen > _LATE_SECONDS
    return len(exits) == facts.size or is_late or facts.status == "start-failed"


def _outcomes(facts: GangFacts, *, has_started: bool) -> list[_Outcome]:
    marks = _exit_markers(facts)
    silent = _without_marker(facts, has_started=has_started)
    return [_reported(facts, marks[rank]) if rank in marks else silent for rank in _all(facts)]


def _reported(facts: GangFacts, mark: Marker) -> _Outcome:
    if mark.is_aborted and facts.status == "timeout":
        return _TIMED_OUT
    return _Outcome(mark.code, "Error" if mark.code else "Completed", at=mark.at)


def _without_marker(facts: GangFacts, *, has_started: bool) -> _Outcome:
    """Return the end of a rank that did not report it."""
    match facts.status:
        case "success":
            return _Outcome(0, "Completed")
        case "timeout":
            return _TIMED_OUT
        case "terminated":
            return _TERMINATED
        case "start-failed":
            return _NOT_STARTED
        case _:
            return _NO_REPORT if has_started else _NOT_STARTED


def _first_failed(facts: GangFacts, exits: Sequence[Ended]) -> int | None:
    """Return the rank that failed first by itself. Of one pod, it is the one with the worst exit."""
    marks = _exit_markers(facts)
    failed = [rank for rank, exit_ in enumerate(exits) if exit_.code]
    if not failed:
        return None
    own = [rank for rank in failed if rank not in marks or not marks[rank].is_aborted] or failed
    if facts.is_one_pod:
        return max(own, key=lambda each: exits[each].code)
    # After the end of the call, a rank without a report is the cause: the others were aborted because of it.
    is_over = facts.status != "pending"
    return min(own, key=lambda each: ((each in marks) == is_over, exits[each].ended))


def _with_blame(facts: GangFacts, exits: Sequence[Ended], first: int | None) -> list[Ended]:
    """Return the exits; ranks that failed because of the first one say so. Nobody is to blame for a requested end."""
    marks = _exit_markers(facts)
    is_unclear = first is None or (first in marks and marks[first].is_aborted)
    if facts.is_asked or is_unclear:
        return list(exits)
    return [
        msgspec.structs.replace(exit_, reason=Reason.GANG_FAILED.value)
        if rank != first and exit_.code and exit_.reason == "Error"
        else exit_
        for rank, exit_ in enumerate(exits)
    ]


def _gang_exit(facts: GangFacts, exits: Sequence[Ended], rank: int | None) -> Ended:
    """Return the exit of the gang: that of the rank that failed first."""
    ended = max(exit_.ended for exit_ in exits)
    if rank is None:
        return msgspec.structs.replace(exits[0], ended=ended)
    exit_ = exits[rank]
    named = exit_.reason in {"DeadlineExceeded", "StartError"} or facts.is_asked
    message = exit_.message if named else f"Rank {rank} ended with exit code {exit_.code}. {exit_.message}".strip()
    return msgspec.structs.replace(exit_, message=message, ended=ended)


def _ranks(facts: GangFacts, starts: dict[int, float], exits: Sequence[Ended]) -> tuple[RankState, ...]:
    if facts.is_one_pod:
        return ()
    return tuple(
        RankState(
            state="ended" if exits else "running" if rank in starts else "starting",
            started=starts.get(rank),
            exit=exits[rank] if exits else None,
        )
        for rank in _all(facts)
    )


def _ended(facts: GangFacts, started: float | None, outcome: _Outcome) -> Ended:
    ended = outcome.at if outcome.at is not None else facts.ended_seen or facts.now
    return Ended(code=outcome.code, reason=outcome.reason, message=outcome.message, started=started, ended=ended)


def _starts(facts: GangFacts) -> dict[int, float]:
    """Return when each rank first started."""
    found: dict[int, float] = {}
    for mark in facts.markers:
        if mark.kind == "start" and mark.rank < facts.size:
            found[mark.rank] = min(mark.at, found.get(mark.rank, mark.at))
    return found


def _exit_markers(facts: GangFacts) -> dict[int, Marker]:
    return {mark.rank: mark for mark in facts.markers if mark.kind == "exit" and mark.rank < facts.size}


def _all(facts: GangFacts) -> range:
    return range(facts.size)
