import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.server.backpressure import Flow
from skysail.node.server.errors import PeerGone
from skysail.node.server.spill_buffer import Inbox


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=30), st.none()), max_size=40))
def test_what_goes_in_comes_out_in_order_over_memory_and_disk(steps):
    """None is a read."""

    async def run():
        held = []
        inbox = Inbox(held.append, in_memory=50)
        taken = b""
        for step in steps:
            if step is not None:
                inbox.put(step)
            elif sum(held):
                taken += await inbox.read()
        inbox.end()
        while data := await inbox.read():
            taken += data
        return taken, sum(held)

    assert asyncio.run(run()) == (b"".join(step for step in steps if step), 0)


async def test_a_reader_waits_for_the_next_bytes():
    inbox = Inbox(lambda _: None)
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    inbox.put(b"late")
    assert await reading == b"late"


async def test_a_lost_inbox_holds_nothing_and_has_no_proper_end():
    held = []
    inbox = Inbox(held.append, in_memory=3)
    inbox.put(b"abc")
    inbox.put(b"on disk")
    inbox.lose()
    inbox.put(b"too late")
    assert sum(held) == 0
    with pytest.raises(PeerGone):
        await inbox.read()


def test_the_peer_is_paused_only_beyond_the_limit_and_resumed_below_it():
    heard = []
    flow = Flow(lambda: heard.append("pause"), lambda: heard.append("resume"), most=100 * 2**20)
    for change in (100, 1, -2, -16, 17, 5):
        flow.count(change * 2**20)
        heard.append(change)
    assert heard == [100, "pause", 1, -2, "resume", -16, 17, "pause", 5]
