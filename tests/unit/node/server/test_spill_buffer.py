import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.server.backpressure import Backpressure
from skysail.node.server.errors import PeerGone
from skysail.node.server.spill_buffer import SpillBuffer


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.none()), max_size=40))
def test_what_goes_in_comes_out_in_order_over_memory_and_disk(steps):
    """None is a read."""

    async def run():
        held = []
        spill_buffer = SpillBuffer(held.append, in_memory=50)
        taken = b""
        for step in steps:
            if step is not None:
                spill_buffer.put(step)
            elif sum(held):
                taken += await spill_buffer.read()
        spill_buffer.end()
        while data := await spill_buffer.read():
            taken += data
        return taken, sum(held)

    assert asyncio.run(run()) == (b"".join(step for step in steps if step), 0)


async def test_a_reader_waits_for_the_next_bytes():
    spill_buffer = SpillBuffer(lambda _: None)
    reading = asyncio.create_task(spill_buffer.read())
    await asyncio.sleep(0)
    spill_buffer.put(b"late")
    assert await reading == b"late"


async def test_a_lost_inbox_holds_nothing_and_has_no_proper_end():
    held = []
    spill_buffer = SpillBuffer(held.append, in_memory=3)
    spill_buffer.put(b"abc")
    spill_buffer.put(b"on disk")
    spill_buffer.lose()
    spill_buffer.put(b"too late")
    assert sum(held) == 0
    with pytest.raises(PeerGone):
        await spill_buffer.read()


def test_the_peer_is_paused_only_beyond_the_limit_and_resumed_below_it():
    heard = []
    backpressure = Backpressure(lambda: heard.append("pause"), lambda: heard.append("resume"), max_bytes=100 * 2**20)
    for change in (100, 1, -2, -16, 17, 5):
        backpressure.count(change * 2**20)
        heard.append(change)
    assert heard == [100, "pause", 1, -2, "resume", -16, 17, "pause", 5]
