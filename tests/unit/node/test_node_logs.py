"""What containers printed: written in pieces, read by every option."""

import asyncio
import re
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skysail.cloud.provider import Output, RunId
from skysail.node.log_store import LogQuery, LogStore, RotationPolicy

RUN = RunId("uid", "main", 0)


@pytest.fixture
def store(tmp_path):
    return LogStore(tmp_path)


def write(store, *texts, run=RUN, start=0.0, stream="stdout"):
    """One piece per second."""
    writer = store.writer(run)
    for second, text in enumerate(texts):
        writer.write(Output(stream, start + second, text))
    writer.close()


async def read(store, run=RUN, **options):
    return b"".join([piece async for piece in store.read(run, LogQuery(**options))])


OPTIONS = [
    ({}, b"a\nb\nc\nd\n"),
    ({"tail": 2}, b"c\nd\n"),
    ({"tail": 0}, b""),
    ({"tail": 9}, b"a\nb\nc\nd\n"),
    ({"since": 12.0}, b"c\nd\n"),
    ({"since": 12.5}, b"d\n"),
    ({"since": 99.0}, b""),
    ({"tail": 3, "since": 12.0}, b"c\nd\n"),
    ({"tail": 1, "since": 11.0}, b"d\n"),
    ({"limit": 3}, b"a\nb"),
    ({"limit": 0}, b""),
    ({"limit": 99}, b"a\nb\nc\nd\n"),
    ({"tail": 2, "limit": 3}, b"c\nd"),
    ({"tail": 1, "timestamps": True}, b"1970-01-01T00:00:13.000000000Z d\n"),
    ({"follow": True, "tail": 1}, b"d\n"),
]


@pytest.mark.parametrize(("options", "text"), OPTIONS, ids=[str(options) for options, _ in OPTIONS])
async def test_every_option(store, options, text):
    write(store, b"a\n", b"b\n", b"c\n", b"d\n", start=10.0)
    assert await read(store, **options) == text


async def test_lines_may_come_in_any_pieces(store):
    write(store, b"fir", b"st\nsecond\nthi", b"rd")
    assert await read(store) == b"first\nsecond\nthird"
    assert await read(store, tail=2) == b"second\nthird"


async def test_streams_are_not_mixed_within_a_line(store):
    writer = store.writer(RUN)
    for stream, text in (("stdout", b"out"), ("stderr", b"err\n"), ("stdout", b"put\n")):
        writer.write(Output(stream, 1.0, text))
    assert await read(store) == b"err\noutput\n"
    writer.close()


async def test_a_line_without_end_is_one_line_with_one_timestamp(store):
    long = b"x" * 100_000
    write(store, b"before\n", *[long[start : start + 7000] for start in range(0, 100_000, 7000)], b"\n", b"after\n")
    assert await read(store) == b"before\n" + long + b"\nafter\n"
    assert await read(store, tail=2) == long + b"\nafter\n"
    assert (await read(store, timestamps=True)).count(b"1970-") == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=40), max_size=30),
    st.one_of(st.none(), st.integers(0, 40)),
    st.integers(40, 400),
)
def test_tail_is_exact_over_files_and_pieces(tmp_path_factory, pieces, tail, file_bytes):
    store = LogStore(tmp_path_factory.mktemp("logs"), RotationPolicy(file_bytes, files=1000))
    text = b"".join(pieces)
    write(store, *pieces)
    lines = re.findall(rb"[^\n]*\n|[^\n]+$", text)
    wanted = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
    assert asyncio.run(read(store, tail=tail)) == b"".join(wanted)


async def test_what_is_kept_is_bounded_and_the_oldest_goes(tmp_path):
    store = LogStore(tmp_path, RotationPolicy(file_bytes=1000, files=3))
    write(store, *[b"%d\n" % n for n in range(1000)])
    kept = (await read(store)).splitlines()
    assert kept == [b"%d" % n for n in range(1000 - len(kept), 1000)]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 3 * 1100


async def test_a_follower_hears_everything_until_the_run_has_ended(tmp_path):
    store = LogStore(tmp_path, RotationPolicy(file_bytes=100, files=1000))
    writer = store.writer(RUN)
    writer.write(Output("stdout", 0.0, b"before\n"))
    following = asyncio.create_task(read(store, follow=True))
    for n in range(50):
        await asyncio.sleep(0)
        writer.write(Output("stdout", 1.0 + n, b"%d\n" % n))
    await asyncio.sleep(0)
    assert not following.done()
    writer.write(Output("stdout", 99.0, b"no line end"))
    writer.close()
    writer.close()
    assert await following == b"before\n" + b"".join(b"%d\n" % n for n in range(50)) + b"no line end"


async def test_a_last_line_without_an_end_gains_none(store):
    writer = store.writer(RUN)
    writer.write(Output("stdout", 1.0, b"one\ntwo"))
    writer.close()
    assert await read(store) == b"one\ntwo"
    assert await read(store, tail=1) == b"two"
    assert (await read(store, timestamps=True)).endswith(b"Z two")


async def test_a_follower_that_is_too_slow_goes_on_with_what_is_left(tmp_path):
    store = LogStore(tmp_path, RotationPolicy(file_bytes=60, files=2))
    writer = store.writer(RUN)
    writer.write(Output("stdout", 0.0, b"first\n"))
    pieces = store.read(RUN, LogQuery(follow=True))
    assert await anext(pieces) == b"first\n"
    for n in range(20):
        writer.write(Output("stdout", 1.0 + n, b"%d\n" % n))
    writer.close()
    rest = b"".join([piece async for piece in pieces]).splitlines()
    assert rest[-2:] == [b"18", b"19"]


async def test_a_follower_of_a_limited_log_ends_at_the_limit(store):
    writer = store.writer(RUN)
    writer.write(Output("stdout", 0.0, b"enough\n"))
    assert await read(store, follow=True, limit=3) == b"eno"
    writer.close()


async def test_the_run_before_is_kept_and_the_ones_before_that_are_not(store):
    for number in range(4):
        write(store, b"run %d\n" % number, run=RunId("uid", "main", number))
    assert store.numbers("uid", "main") == [2, 3]
    assert await read(store, RunId("uid", "main", 2)) == b"run 2\n"


async def test_a_writer_that_comes_back_drops_what_it_is_told_again(store):
    write(store, b"a\n", b"b\n")
    write(store, b"a\n", b"b\n", b"c\n")
    assert await read(store) == b"a\nb\nc\n"


def write_stream(store: LogStore, *pieces: tuple[int, bytes], now: float, stream: str = "stdout", close: bool = True):
    """Write pieces as a provider that does not know when they were printed: each reader sees its own time."""
    writer = store.writer(RUN)
    for offset, data in pieces:
        writer.write(Output(stream, now, data, offset))
    if close:
        writer.close()
    else:
        writer._file.close()  # as after a crash: the text without a line end is lost


async def test_writer_of_repeated_output_with_offsets_stores_each_byte_once(store):
    write_stream(store, (0, b"a\nbe"), now=1.0, close=False)
    write_stream(store, (0, b"a\n"), (2, b"behind\nhalf"), now=2.0)
    write_stream(store, (0, b"a\nbehind\nhalf a line\nlast"), now=3.0)
    assert await read(store) == b"a\nbehind\nhalf a line\nlast"
    write_stream(store, (0, b"on stderr\n"), now=4.0, stream="stderr")
    write_stream(store, (0, b"on stderr\n"), now=5.0, stream="stderr")
    assert await read(store) == b"a\nbehind\nhalf a line\nlaston stderr\n"


async def test_writer_after_a_gap_in_the_stream_continues_behind_it(store):
    write_stream(store, (0, b"a\n"), (100, b"b\n"), now=1.0)
    write_stream(store, (98, b"?\nb\nc\n"), now=2.0)
    assert await read(store) == b"a\nb\nc\n"


async def test_writer_after_rotation_knows_the_bytes_of_deleted_files(tmp_path):
    store = LogStore(tmp_path, RotationPolicy(file_bytes=200, files=2))
    lines = [b"%03d\n" % n for n in range(100)]
    pieces = [(4 * n, line) for n, line in enumerate(lines)]
    write_stream(store, *pieces[:60], now=1.0)
    write_stream(store, *pieces, now=2.0)
    kept = (await read(store)).splitlines(keepends=True)
    assert kept == lines[-len(kept) :]


async def test_a_line_torn_by_a_crash_is_cut_off(store, tmp_path):
    write(store, b"a\n")
    with (tmp_path / "uid/main/0/0").open("ab") as file:
        file.write(b"1970-01-01T00:00:05.0000")
    assert await read(store) == b"a\n"
    write(store, b"b\n", start=6.0)
    assert await read(store) == b"a\nb\n"


async def test_a_forgotten_pod_leaves_nothing_and_ends_its_followers(store, tmp_path):
    writer = store.writer(RUN)
    writer.write(Output("stdout", 0.0, b"a\n"))
    pieces = store.read(RUN, LogQuery(follow=True))
    assert await anext(pieces) == b"a\n"
    store.forget("uid")
    store.forget("uid")
    assert [piece async for piece in pieces] == []
    assert list(tmp_path.iterdir()) == []


def test_only_logs_of_pods_are_forgotten(store, tmp_path):
    (tmp_path / ".nfs0001").touch()
    write(store, b"a\n")
    store.forget_others({"uid"})
    assert store.end(RUN, lines=1, size=9) == b"a\n"
    store.forget_others(set())
    assert [entry.name for entry in tmp_path.iterdir()] == [".nfs0001"]


def test_the_end_of_a_log_is_bounded_in_lines_and_bytes(store):
    write(store, b"one\n", b"two\n", b"three\n")
    assert store.end(RUN, lines=2, size=100) == b"two\nthree\n"
    assert store.end(RUN, lines=80, size=8) == b"o\nthree\n"
    assert store.end(RunId("uid", "other", 0), lines=80, size=8) == b""


async def test_a_run_that_printed_nothing_has_an_empty_log(store):
    assert await read(store) == b""
    write(store)
    assert await read(store, tail=3, follow=True) == b""


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b"])
def test_no_name_leads_out_of_the_folder(store, name):
    with pytest.raises(ValueError, match="cannot be the name"):
        store.writer(RunId(name, "main", 0))
    with pytest.raises(ValueError, match="cannot be the name"):
        store.numbers("uid", name)


async def test_writer_after_a_full_disk_doubles_no_later_line(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = store.writer(RUN)
    writer.write(Output("stdout", 1.0, b"before\n", 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
    try:
        writer.write(Output("stdout", 2.0, b"lost\n", 7))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.write(Output("stdout", 3.0, b"after\n", 12))
    writer.close()
    write_stream(store, (0, b"before\nlost\nafter\nlast\n"), now=4.0)
    assert await read(store) == b"before\nafter\nlast\n"


async def test_a_full_disk_loses_lines_and_breaks_none(store):
    """The kernel takes a part of the write that reaches a limit, as it does on a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = store.writer(RUN)
    writer.write(Output("stdout", 1.0, b"before\n"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
    try:
        for second in range(2, 5):
            writer.write(Output("stdout", float(second), b"lost\n"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.write(Output("stdout", 5.0, b"after\n"))
    writer.close()
    assert await read(store) == b"before\nafter\n"
