"""Program of a gang: which rank is to blame for its end."""

from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.simulated.gang import GangProgram
from skysail.cloud.simulated.programs import FakeProgram
from tests.support.virtual_time import run


@pytest.mark.parametrize(
    ("seconds", "is_stopped", "expected", "message"),
    [
        ((None, 5.0), False, [(143, "GangFailed"), (9, "Error")], "Rank 1 ended with exit code 9."),
        ((5.0, 5.0), False, [(9, "Error"), (9, "GangFailed")], "Rank 0 ended with exit code 9."),
        ((None, None), True, [(137, "Error"), (137, "Error")], "Rank 0 ended with exit code 137."),
    ],
    ids=["stopped", "failed later", "asked to end"],
)
def test_ranks_that_ended_because_of_another_one_say_so(seconds, is_stopped, expected, message):
    async def test() -> None:
        exits = {}
        clock = asyncio.get_running_loop().time
        ranks = [FakeProgram(f"rank {rank}", seconds=each, code=9, now=clock) for rank, each in enumerate(seconds)]
        gang = GangProgram(ranks, record=exits.__setitem__, now=clock)
        await gang.start()
        ending = asyncio.create_task(gang.wait())
        await asyncio.sleep(1.0)
        if is_stopped:
            await gang.stop(0.0)
        ended = await ending
        assert [(exits[rank].code, exits[rank].reason) for rank in range(2)] == expected
        assert (ended.reason, ended.message) == ("Error", message)

    run(test())
