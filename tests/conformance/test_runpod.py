"""The account at RunPod passes the suite of clouds, against the stand-in with real containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from skysail.cloud.errors import Unsupported
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import CloudConformance, Real
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import outcome
from tests.support.runpod import QUICK, account, stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class TestRunPod(CloudConformance, Real):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with (
            local_provider(tmp_path) as provider,
            stand_in(provider, replace(QUICK, lag=0.05)) as (_, endpoint),
            account(endpoint) as cloud,
        ):
            yield AccountHarness(cloud)

    async def test_the_streams_are_kept_apart_and_pieces_are_in_order(self, customer: AccountHarness):
        """RunPod has one stream for both."""
        made = await customer.cloud.create(customer.order("seq 1 20000; echo err >&2"))
        pieces = [piece async for piece in customer.cloud.output(made.id)]
        heard = b"".join(piece.data for piece in pieces).decode().splitlines()
        assert [line for line in heard if line != "err"] == [str(number) for number in range(1, 20001)]
        assert [piece.at for piece in pieces] == sorted({piece.at for piece in pieces})

    @pytest.mark.parametrize(
        ("script", "want"),
        [("echo out; echo err >&2", (0, "out\n", "err\n")), ("exit 7", (7, "", "")), ("kill -KILL $$", (137, "", ""))],
    )
    async def test_a_command_ends_as_it_does(self, customer: AccountHarness, script, want):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("sh", "-c", script), stdin=False, tty=False)
        assert await outcome(session) == want
        await session.close()

    async def test_input_terminal_and_attach_are_refused(self, customer: AccountHarness):
        running = await customer.running()
        for attempt in (
            customer.cloud.exec(running.id, ("sh",), stdin=True, tty=False),
            customer.cloud.exec(running.id, ("sh",), stdin=False, tty=True),
            customer.cloud.attach(running.id, stdin=False),
        ):
            with pytest.raises(Unsupported):
                await attempt

    async def test_program_runs_once_though_its_container_is_restarted(self, customer: AccountHarness, tmp_path: Path):
        made = await customer.cloud.create(customer.order("echo run; kill -KILL $PPID"))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (137, "ContainerRestarted")
        assert await customer.said(made.id) == "run\n"
