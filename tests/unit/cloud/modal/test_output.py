"""Output of a sandbox whose stream ends early."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from skysail.cloud.modal import internals
from skysail.cloud.modal.internals import LogChunk
from skysail.cloud.modal.output import SandboxOutput


class Inventory:
    """One sandbox, which has ended. Modal has stored its output."""

    def __init__(self, stored: list[str], seconds: float = 0.0) -> None:
        entries = [
            SimpleNamespace(message=text, timestamp=datetime.fromtimestamp(5.0 + seconds * number, UTC))
            for number, text in enumerate(stored)
        ]

        async def tail(_count: int, source: str):
            for entry in entries if source == "stdout" else []:
                yield entry

        self._sandbox = SimpleNamespace(object_id="sb-1", logs=SimpleNamespace(tail=SimpleNamespace(aio=tail)))

    @contextlib.asynccontextmanager
    async def open(self, _sandbox_id: str):
        yield self._sandbox

    async def has_ended(self, _sandbox_id: str) -> bool:
        return True


@pytest.mark.parametrize("streamed", ["", "one\n", "one\ntw", "one\ntwo\n"])
async def test_output_of_a_stream_that_ends_with_its_worker_is_completed_from_the_stored_one(monkeypatch, streamed):
    async def read_output(_sandbox, stream, position):
        if streamed and stream == "stdout" and not position:
            yield LogChunk(streamed.encode(), "entry-1")

    monkeypatch.setattr(internals, "read_output", read_output)
    output = SandboxOutput(Inventory(["one\n", "two\n"]))
    pieces = [piece async for piece in output.replay("sb-1")]
    assert b"".join(piece.data for piece in pieces) == b"one\ntwo\n"
    assert [piece.offset for piece in pieces][-1] == 8 - len(pieces[-1].data)


async def test_stored_output_of_which_modal_returns_only_the_end_repeats_no_line(monkeypatch):
    async def read_output(_sandbox, stream, position):
        if stream == "stdout" and not position:
            yield LogChunk(b"first\n", "entry-1")

    monkeypatch.setattr(internals, "read_output", read_output)
    stored = ["first\n", *(f"{number}\n" for number in range(1, 20_000))]
    output = SandboxOutput(Inventory(stored, seconds=1.0), now=lambda: 5.5)
    pieces = [piece async for piece in output.replay("sb-1")]
    assert b"".join(piece.data for piece in pieces) == "".join(stored).encode()


@pytest.mark.parametrize("read_at", [10.0, 24.5, 5000.0], ids=["slow clock", "at once", "late"])
async def test_stored_output_of_which_modal_returns_only_the_end_continues_behind_the_bytes_that_were_read(
    monkeypatch, read_at
):
    """Between the last line that was read and the reading of it, 500 more lines were written."""

    async def read_output(_sandbox, stream, position):
        if stream == "stdout" and not position:
            yield LogChunk(b"18998\n", "entry-1")
            yield LogChunk(b"18999\n190", "entry-2")

    monkeypatch.setattr(internals, "read_output", read_output)
    stored = [f"{number}\n" for number in range(20_000)]
    output = SandboxOutput(Inventory(stored, seconds=0.001), now=lambda: read_at)
    pieces = [piece async for piece in output.replay("sb-1")]
    assert b"".join(piece.data for piece in pieces) == "".join(stored[18_998:]).encode()
    assert {piece.offset for piece in pieces[2:]} == {None}, "the number of bytes before the stored end is unknown"


async def test_stored_output_without_the_bytes_that_were_read_is_copied_from_a_minute_before_the_reading(monkeypatch):
    async def read_output(_sandbox, stream, position):
        if stream == "stdout" and not position:
            yield LogChunk(b"not stored\n", "entry-1")

    monkeypatch.setattr(internals, "read_output", read_output)
    stored = [f"{number}\n" for number in range(20_000)]
    output = SandboxOutput(Inventory(stored, seconds=1.0), now=lambda: 5.0 + 19_000.0)
    pieces = [piece async for piece in output.replay("sb-1")]
    assert b"".join(piece.data for piece in pieces[1:]) == "".join(stored[18_941:]).encode()
