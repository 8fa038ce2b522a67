"""The append-only ledger of a simulated account. The state of each instance follows from its rows."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from skysail.cloud.account import Instance, RankState
from skysail.cloud.provider import Ended
from skysail.cloud.simulated.options import SimulationOptions

Verb = Literal["create", "started", "exited", "end asked", "ended", "refused"]

log = logging.getLogger(__name__)


class LedgerCorrupt(Exception):
    """A ledger has an invalid line, which the message names. The account's instances are unknown then."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event at time `at`. `refused` is a create or terminate call that failed; `note` has the reason.

    `usd` is the price per hour in a `create` row and the total cost in an `ended` row. `seconds` is the maximum
    lifetime of the instance. Only `options` of the launch spec is kept, because environment variables hold secrets.
    `members` is the size of a gang; `is_one_pod`: they are copies behind one pod. An `exited` row with `rank` is about
    one member of a gang.
    """

    at: float
    verb: Verb
    instance: str = ""
    claim: str = ""
    cluster: str = ""
    pod: str = ""
    region: str = ""
    usd: float = 0.0
    seconds: float | None = None
    options: SimulationOptions = SimulationOptions()
    exit: Ended | None = None
    note: str = ""
    members: int = 1
    is_one_pod: bool = False
    rank: int | None = None


class Ledger:
    """A ledger in memory, or in a file of JSON lines that survives the process.

    `mark` is a part of each new instance id and differs for each process, so that no id is reused after the file is
    lost.
    """

    def __init__(self, mark: str = "") -> None:
        self.mark = mark
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._encoder = msgspec.json.Encoder()
        self.rows: list[Row] = []
        self.instances: dict[str, Instance] = {}
        self.beginnings: dict[str, Row] = {}

    @classmethod
    def open(cls, path: Path, *, mark: str) -> Self:
        """Open the ledger in this file and read its rows. An incomplete last line is dropped.

        Raises `LedgerCorrupt` if another line is invalid.
        """
        ledger = cls(mark)
        ledger._open(path)
        try:
            ledger._read(path)
        except LedgerCorrupt:
            ledger.close()
            raise
        return ledger

    def write(self, row: Row) -> None:
        if self._path is not None and self._descriptor is not None:
            if not _is_at(self._path, self._descriptor):
                self._rewrite(self._path)
            _append(self._descriptor, self._encoder.encode(row) + b"\n")
        self._apply(row)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _read(self, path: Path) -> None:
        assert self._descriptor is not None, "the ledger is open"
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._descriptor, len(whole) + len(newline))
        for number, row in _rows(path, whole):
            if row.verb not in {"create", "refused"} and row.instance not in self.instances:
                raise _corrupt(path, number, f"instance {row.instance or 'without an id'} was never created")
            self._apply(row)

    def _rewrite(self, path: Path) -> None:
        """Write the file again from memory after it was removed or replaced."""
        log.warning(
            "ledger %s was removed or replaced while in use, written again with all rows; "
            "to start with an empty ledger, run `skysail down` before you delete the file",
            path,
        )
        self.close()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_suffix(".replaced"))
        self._open(path)
        assert self._descriptor is not None, "the ledger is open"
        _append(self._descriptor, b"".join(self._encoder.encode(row) + b"\n" for row in self.rows))

    def _apply(self, row: Row) -> None:
        self.rows.append(row)
        if row.verb == "create":
            self.beginnings[row.instance] = row
        if row.instance and row.verb != "refused":
            self.instances[row.instance] = _after(self.instances.get(row.instance), row)


def _append(descriptor: int, lines: bytes) -> None:
    """Write all bytes or none: an incomplete row, as a full disk leaves it, would make the whole ledger unreadable."""
    size, written = os.fstat(descriptor).st_size, 0
    try:
        written = os.write(descriptor, lines)
    finally:
        if written != len(lines):
            os.ftruncate(descriptor, size)
    if written != len(lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _rows(path: Path, lines: bytes) -> Iterator[tuple[int, Row]]:
    decoder = msgspec.json.Decoder(Row)
    for number, line in enumerate(lines.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _corrupt(path, number, str(error)) from error


def _corrupt(path: Path, number: int, message: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"Line {number} of the ledger {path} cannot be read ({message}): repair or delete the line, or move the file "
        "away, then run `skysail down` and `skysail up`."
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _after(previous: Instance | None, row: Row) -> Instance:
    """Return the state of the instance after this row."""
    if previous is None:
        assert row.verb == "create", "an instance begins with its creation"
        return Instance(
            id=row.instance,
            claim=row.claim,
            cluster=row.cluster,
            state="starting",
            created=row.at,
            usd_per_hour=row.usd,
            region=row.region,
            ranks=(RankState(),) * row.members if row.members > 1 else (),
        )
    match row.verb:
        case "started":
            ranks = tuple(RankState(state="running", started=row.at) for _ in previous.ranks)
            return msgspec.structs.replace(previous, state="running", started=row.at, ranks=ranks)
        case "exited" if row.rank is not None:
            ranks = previous.ranks
            ended = msgspec.structs.replace(ranks[row.rank], state="ended", exit=row.exit)
            return msgspec.structs.replace(previous, ranks=(*ranks[: row.rank], ended, *ranks[row.rank + 1 :]))
        case "exited":
            return msgspec.structs.replace(previous, exit=row.exit)
        case "ended":
            return msgspec.structs.replace(previous, state="ended", ended=row.at, usd_total=row.usd)
        case _:
            return previous
