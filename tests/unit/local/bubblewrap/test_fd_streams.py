from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc

import pytest

from skysail.cloud.output_buffer import OutputBuffer, size_of
from skysail.cloud.provider import Output
from skysail.local.bubblewrap.fd_streams import Sink, Source


def piece(text: str) -> Output:
    return Output("stdout", 0.0, text.encode())


LETTER = size_of(piece("a"))


async def text(output) -> str:
    return "".join([piece.data.decode() async for piece in output])


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_a_reader_only_the_end_is_kept_and_nothing_waits():
    output_buffer = OutputBuffer(kept=4 * LETTER)
    for letter in "abcdefgh":
        await output_buffer.put(piece(letter))
    output_buffer.end()
    assert await text(output_buffer.replay()) == "efgh"


async def test_many_small_pieces_count_with_the_memory_that_they_take():
    output_buffer = OutputBuffer(kept=64 * 1024)
    tracemalloc.start()
    try:
        for number in range(64 * 1024):
            await output_buffer.put(Output("stdout", float(number), bytes([number % 256])))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * 64 * 1024
    assert output_buffer.dropped > 0


async def test_a_reader_who_needs_all_slows_the_program_down():
    output_buffer = OutputBuffer(kept=2 * LETTER)
    output = output_buffer.replay()
    for letter in "abc":
        await output_buffer.put(piece(letter))
    more = asyncio.create_task(output_buffer.put(piece("d")))
    await settle()
    assert not more.done()
    assert (await anext(output)).data == b"a"
    await more
    output_buffer.end()
    assert await text(output) == "bcd"


async def test_a_reader_whom_nobody_iterates_is_forgotten():
    output_buffer = OutputBuffer(kept=2 * LETTER)
    output = output_buffer.replay()
    del output
    gc.collect()
    for letter in "abcdef":
        await asyncio.wait_for(output_buffer.put(piece(letter)), 600)


async def test_a_visitor_sees_what_comes_and_may_miss_some():
    output_buffer = OutputBuffer(kept=2 * LETTER)
    await output_buffer.put(piece("a"))
    output = output_buffer.tail()
    for letter in "bcdef":
        await output_buffer.put(piece(letter))
    output_buffer.end()
    assert await text(output) == "ef"


async def test_a_reader_waits_for_the_next_piece_and_for_the_end():
    output_buffer = OutputBuffer()
    reading = asyncio.create_task(text(output_buffer.replay()))
    for letter in "abc":
        await output_buffer.put(piece(letter))
        await settle()
    assert not reading.done()
    output_buffer.end()
    assert await reading == "abc"


async def test_the_last_words_are_the_last_line():
    output_buffer = OutputBuffer()
    assert output_buffer.last_line() == ""
    await output_buffer.put(piece("one\ntw"))
    await output_buffer.put(piece("o\n"))
    assert output_buffer.last_line() == "two"


async def test_more_than_a_pipe_holds_goes_through_it():
    reading, writing = os.pipe()
    source, sink = Source(reading), Sink(writing)
    data = os.urandom(1_000_000)

    async def write() -> None:
        await sink.write(data)
        await sink.finish()

    task = asyncio.create_task(write())
    heard = b""
    while some := await source.read():
        heard += some
    await task
    source.close()
    source.close()
    sink.close()
    assert heard == data


async def test_writing_to_who_has_gone_is_dropped():
    reading, writing = os.pipe()
    os.close(reading)
    sink = Sink(writing)
    await sink.write(b"anybody?")
    sink.close()
    await sink.write(b"anybody?")


async def test_a_cancelled_reader_leaves_the_event_loop_clean():
    reading, writing = os.pipe()
    source = Source(reading)
    task = asyncio.create_task(source.read())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not asyncio.get_running_loop().remove_reader(reading)
    source.close()
    os.close(writing)
