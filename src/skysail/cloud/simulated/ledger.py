"""The append-only book of a simulated account. Everything that is known of an instance follows from its rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

import msgspec

from skysail.cloud.contract import Ended
from skysail.cloud.instances import Instance
from skysail.cloud.simulated.wishes import Wishes

Verb = Literal["create", "started", "exited", "end asked", "ended", "refused"]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened at `at`. `refused` is a create or an end that was not done; `note` says why.

    `usd` is the price of an hour on a `create`, and of all hours on an `ended`. `seconds` is how long an instance may
    live at all. Nothing of the order is kept but `wishes`: environments hold secrets.
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
    wishes: Wishes = Wishes()
    exit: Ended | None = None
    note: str = ""


class Ledger:
    """In memory, or in a file of JSON lines that outlives who writes it."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._encoder = msgspec.json.Encoder()
        self.rows: list[Row] = []
        self.instances: dict[str, Instance] = {}
        self.beginnings: dict[str, Row] = {}

    @classmethod
    def open(cls, path: Path) -> Self:
        """With all that the file tells. A last line that was never finished was never written."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        ledger = cls(descriptor)
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        os.ftruncate(descriptor, len(whole) + len(newline))
        for row in msgspec.json.Decoder(Row).decode_lines(whole):
            ledger._take(row)
        return ledger

    def write(self, row: Row) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, self._encoder.encode(row) + b"\n")
        self._take(row)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        if row.verb == "create":
            self.beginnings[row.instance] = row
        if row.instance and row.verb != "refused":
            self.instances[row.instance] = _after(self.instances.get(row.instance), row)


def _after(before: Instance | None, row: Row) -> Instance:
    """The instance after this row."""
    if before is None:
        assert row.verb == "create", "an instance begins with its creation"
        return Instance(
            id=row.instance,
            claim=row.claim,
            cluster=row.cluster,
            state="starting",
            created=row.at,
            usd_per_hour=row.usd,
            region=row.region,
        )
    match row.verb:
        case "started":
            return msgspec.structs.replace(before, state="running", started=row.at)
        case "exited":
            return msgspec.structs.replace(before, exit=row.exit)
        case "ended":
            return msgspec.structs.replace(before, state="ended", ended=row.at, usd_total=row.usd)
        case _:
            return before
