"""The SPDY session against a peer that is written here, byte by byte."""

import asyncio

import pytest

from skysail.node.server.errors import BadRequest, PeerGone, ProtocolBroken
from skysail.node.server.spdy.frames import FIN, Control, Data, Decoder, Kind, Reset, words
from skysail.node.server.spdy.headers import Compressor, Decompressor
from skysail.node.server.spdy.session import Session


class Peer:
    """Both the carrier below the session and the client above it."""

    def __init__(self):
        self._decoder = Decoder()
        self._compressor = Compressor()
        self.sent = []
        self.opened = []
        self.is_closed = False
        self.session = Session(self, self.accept)

    def accept(self, stream):
        if stream.headers.get("streamtype") == "bad":
            raise BadRequest("bad")
        self.opened.append(stream)

    def open(self, number, *, flags=0, **headers):
        block = self._compressor.block(headers)
        self.say(Control(Kind.SYN_STREAM, words(number, 0) + b"\0\0" + block, flags))

    def say(self, frame):
        self.session.feed(frame.encode())

    def write(self, data):
        self.sent += self._decoder.feed(data)

    async def drain(self):
        pass

    def pause(self):
        pass

    def resume(self):
        pass

    def close(self):
        self.is_closed = True


@pytest.fixture
async def peer():
    return Peer()


async def test_a_stream_is_answered_before_its_data(peer):
    peer.open(1, streamtype="stdout")
    await peer.opened[0].write(b"hello")
    peer.opened[0].finish()
    peer.opened[0].finish()
    reply, data, end = peer.sent
    assert (reply.kind, reply.stream) == (Kind.SYN_REPLY, 1)
    assert Decompressor().headers(reply.body[4:]) == {}
    assert (data, end) == (Data(1, b"hello"), Data(1, b"", FIN))


async def test_a_long_write_is_cut_into_pieces(peer):
    peer.open(1)
    await peer.opened[0].write(bytes(300_000))
    assert [len(frame.body) for frame in peer.sent[1:]] == [131072, 131072, 37856]


async def test_data_are_read_up_to_the_end_that_the_peer_tells(peer):
    peer.open(1)
    peer.say(Data(1, b"ab"))
    peer.say(Data(1, b"cd", FIN))
    assert [await peer.opened[0].read() for _ in range(3)] == [b"ab", b"cd", b""]


async def test_a_stream_may_be_half_closed_from_its_beginning(peer):
    peer.open(1, flags=FIN, streamtype="error")
    assert await peer.opened[0].read() == b""


async def test_odd_pings_are_echoed_and_even_ones_are_our_own(peer):
    peer.say(Control(Kind.PING, words(2)))
    peer.say(Control(Kind.PING, words(3)))
    assert peer.sent == [Control(Kind.PING, words(3))]


@pytest.mark.parametrize("number", [2, 1, 5], ids=["even", "smaller", "same"])
async def test_stream_numbers_are_odd_and_grow(peer, number):
    peer.open(5)
    peer.open(number)
    peer.open(7, after="the refused one, whose headers were inflated all the same")
    assert peer.sent[1] == Control(Kind.RST_STREAM, words(number, Reset.PROTOCOL_ERROR))
    assert [stream.number for stream in peer.opened] == [5, 7]


async def test_a_refused_stream_does_not_disturb_the_others(peer):
    peer.open(1, streamtype="bad")
    peer.open(3, streamtype="good")
    peer.say(Data(1, b"dropped"))
    assert Control(Kind.RST_STREAM, words(1, Reset.CANCEL)) in peer.sent
    assert peer.opened[0].headers == {"streamtype": "good"}


async def test_a_reset_stream_is_gone(peer):
    peer.open(1)
    peer.say(Control(Kind.RST_STREAM, words(1, Reset.CANCEL)))
    with pytest.raises(PeerGone):
        await peer.opened[0].read()
    with pytest.raises(PeerGone):
        await peer.opened[0].write(b"x")


@pytest.mark.parametrize("kind", [Kind.SETTINGS, Kind.WINDOW_UPDATE, 77])
async def test_frames_without_meaning_here_are_skipped(peer, kind):
    peer.say(Control(kind, words(1, 2)))
    assert peer.sent == []


async def test_headers_that_nobody_reads_are_inflated_all_the_same(peer):
    peer.open(1)
    peer.say(Control(Kind.HEADERS, words(1) + peer._compressor.block({"more": "headers"})))
    peer.open(3, streamtype="data")
    assert peer.opened[1].headers == {"streamtype": "data"}


@pytest.mark.parametrize(
    "frame", [Control(Kind.SYN_STREAM, b""), Control(Kind.PING, b"1"), Control(Kind.HEADERS, b"1234junk")]
)
async def test_a_peer_that_breaks_the_protocol_is_dropped(peer, frame):
    with pytest.raises(ProtocolBroken):
        peer.say(frame)


@pytest.mark.parametrize("how", ["goaway", "lost"])
async def test_a_peer_that_leaves_ends_every_stream(peer, how):
    peer.open(1)
    reading = asyncio.create_task(peer.opened[0].read())
    await asyncio.sleep(0)
    if how == "goaway":
        peer.say(Control(Kind.GOAWAY, words(0, 0)))
    else:
        peer.session.lose()
    with pytest.raises(PeerGone):
        await reading
    await peer.session.lost()


async def test_hanging_up_lets_the_peer_close_first(peer):
    peer.open(1)
    hanging_up = asyncio.create_task(peer.session.hang_up())
    await asyncio.sleep(0)
    peer.say(Data(1, b"still typing"))
    assert peer.sent[-1] == Data(1, b"", FIN)
    assert not peer.is_closed
    peer.session.lose()
    await hanging_up
    assert peer.is_closed
    assert Kind.GOAWAY not in {frame.kind for frame in peer.sent if isinstance(frame, Control)}
