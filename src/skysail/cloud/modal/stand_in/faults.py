"""Faults between the stand-in and its clients, scripted in advance, so that each run is deterministic."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

FaultKind = Literal[
    "throttled",  # refused, with the delay after which the SDK may retry
    "exhausted",  # refused without a delay: the SDK raises at once
    "unavailable",
    "internal",
    "unauthenticated",
    "cut",  # not executed; all connections are cut
    "lost-reply",  # executed; all connections are cut before the reply
    "black-hole",  # not executed; for `seconds` no byte passes in any direction
    "slow",  # answered after `seconds`
    "stuck",  # not executed and never answered, on a live connection
    "unanswered",  # executed and never answered, on a live connection
    "redirected",  # a request to a web Function (pseudo RPC `WebRequest`) is redirected to its result after `seconds`
    # Faults of the sandbox that a create call creates.
    "no-capacity",  # not scheduled for `seconds`; never if that is 0
    "preempted",  # ended by the service `seconds` after its start
    "hidden",  # missing from listings for `seconds`
    "out-of-memory",  # killed by the kernel `seconds` after its start
    "init-failure",  # its container cannot be started
]
OF_SANDBOX: frozenset[FaultKind] = frozenset({"no-capacity", "preempted", "hidden", "out-of-memory", "init-failure"})


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of `times` calls of an RPC, after the first `skip` calls. None means all further calls.

    `rpc` is the RPC's name, or `*` for each of them.
    """

    rpc: str
    kind: FaultKind
    skip: int = 0
    times: int | None = 1
    seconds: float = 0.0


class FaultScript:
    """Faults that are still to come. A fault is counted from the moment it was added.

    With `path`, the script is also read from a file of JSON, again whenever the file changes: so a test can reach a
    stand-in in another process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._read_at: int | None = None
        self._faults: list[tuple[Fault, int]] = []  # with the number of calls seen so far

    def add(self, *faults: Fault) -> None:
        self._faults += [(fault, 0) for fault in faults]

    def clear(self) -> None:
        self._faults.clear()

    def take(self, rpc: str) -> list[Fault]:
        """Return the faults of this call, and count the call."""
        self._reload()
        due: list[Fault] = []
        kept: list[tuple[Fault, int]] = []
        for fault, seen in self._faults:
            if fault.rpc not in {"*", rpc}:
                kept.append((fault, seen))
                continue
            if seen >= fault.skip:
                due.append(fault)
            if fault.times is None or seen + 1 < fault.skip + fault.times:
                kept.append((fault, seen + 1))
        self._faults = kept
        return due

    def _reload(self) -> None:
        if self._path is None:
            return
        try:
            changed = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._read_at:
            self._read_at = changed
            self._faults = [(fault, 0) for fault in msgspec.json.decode(self._path.read_bytes(), type=list[Fault])]
