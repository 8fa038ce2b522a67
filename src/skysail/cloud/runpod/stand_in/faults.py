"""Faults of the stand-in, scripted in advance, so that each run is deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

Operation = Literal["create", "delete", "list", "get", "logs", "catalogue", "exec", "registries", "volumes", "billing"]
FaultKind = Literal[
    "none",
    "500",  # nothing was done
    "500-done",  # done, and answered with an error
    "timeout-done",  # done, and never answered
    "slow-done",  # done after a while, even if the client has given up
    "unmarked",  # pods are shown without their name and variables
    "lost",  # the connection is cut before anything is done
    "malformed-done",  # done, and the answer cannot be decoded
    "400",  # rejected for a reason that the service does not document
    "401",
    "402",
    "proxy-403",  # answered by a proxy in HTML
    "404",
    "429",
    "redirect",
    "empty",  # an empty list
    "partial",  # a page that announces another one, which is empty
    "dear",  # billed at twice the list price
    "late",  # missing from lists for a long time
    "hidden",  # missing from lists and lookups for a long time
    "cut",  # a log stream that ends after some lines
    "silent",  # a log stream that sends nothing after some lines, and does not end
    "no-capacity",
    "sold-out",  # the catalogue shows no stock of any GPU
    "no-start",  # the container never starts, and the service gives up
]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of the `at`-th call of an operation, or of every call. `seconds` is a delay or a Retry-After."""

    what: FaultKind
    on: Operation
    at: int | None = None
    seconds: float = 30.0
    lines: int = 100


NONE = Fault(what="none", on="list")


class FaultScript:
    """Faults by call: the first that matches applies. Calls are numbered from 1, separately for each operation.

    With `path`, the script is read from a file of JSON, and again whenever the file changes: so a test can reach a
    stand-in in another process. Calls are then numbered from the change on.
    """

    def __init__(self, faults: Sequence[Fault] = (), path: Path | None = None) -> None:
        self.faults = list(faults)
        self.calls: Counter[Operation] = Counter()
        self._path = path
        self._read_at = 0

    def next_fault(self, on: Operation) -> Fault:
        self._reload()
        self.calls[on] += 1
        number = self.calls[on]
        return next((fault for fault in self.faults if fault.on == on and fault.at in {None, number}), NONE)

    def _reload(self) -> None:
        if self._path is None:
            return
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._read_at:
                return
            self.faults = msgspec.json.decode(self._path.read_bytes(), type=list[Fault])
        except (OSError, msgspec.MsgspecError):
            return  # missing, or half written
        self._read_at = changed
        self.calls.clear()
