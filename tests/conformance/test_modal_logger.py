"""`modal-logger` against the stand-in for Modal: the program as people run it, with the unmodified SDK."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conformance.account_harness import AccountHarness
from tests.conformance.test_modal import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def customer(tmp_path: Path) -> AsyncIterator[AccountHarness]:
    async with opened(tmp_path, AccountHarness) as harness:
        yield harness


async def run(*arguments: str, **variables: str) -> tuple[int | None, bytes, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skysail.cli.modal_logger",
        *arguments,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await program.communicate()
    return program.returncode, out, err.decode()


async def test_logger_follows_a_sandbox_to_its_end_and_has_its_exit_code(customer):
    nonce = secrets.token_hex(8)
    wanted = customer.launch_spec(f"echo {nonce}; sleep 1; echo last; echo wrong >&2; exit 37", exit_=37)
    instance = await customer.cloud.create(wanted)
    code, out, err = await run(instance.id)
    assert (code, out) == (37, f"{nonce}\nlast\n".encode())
    assert "wrong" in err


async def test_logger_says_what_is_missing(customer):
    code, out, err = await run("sb-unknown")
    assert (code, out, err.count("\n")) == (1, b"", 1)
    assert "Modal has no sandbox sb-unknown" in err
    code, out, err = await run("sb-unknown", MODAL_TOKEN_ID="")
    assert (code, out) == (2, b"")
    assert err == "modal-logger: no credentials: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET.\n"
