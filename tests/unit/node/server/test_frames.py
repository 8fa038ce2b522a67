import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.server.errors import ProtocolBroken
from skysail.node.server.spdy.frames import FIN, Control, Data, Decoder, Kind, words

BYTES = [
    (Data(1, b"abc"), "00000001 00 000003 616263"),
    (Data(5, b"", FIN), "00000005 01 000000"),
    (Control(Kind.PING, words(7)), "8003 0006 00 000004 00000007"),
    (Control(Kind.RST_STREAM, words(3, 5)), "8003 0003 00 000008 00000003 00000005"),
    (Control(Kind.GOAWAY, words(9, 0), FIN), "8003 0007 01 000008 00000009 00000000"),
]

FRAMES = st.one_of(
    st.builds(Data, st.integers(0, 2**31 - 1), st.binary(max_size=300), st.integers(0, 255)),
    st.builds(Control, st.integers(0, 2**16 - 1), st.binary(max_size=300), st.integers(0, 255)),
)


@pytest.mark.parametrize(("frame", "wire"), BYTES)
def test_a_frame_has_these_bytes(frame, wire):
    assert frame.encode() == bytes.fromhex(wire)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 40)))
def test_frames_come_out_whole_however_the_bytes_are_cut(frames, cuts):
    wire = b"".join(frame.encode() for frame in frames)
    decoder, found = Decoder(), []
    for cut in [*cuts, max(len(wire), 1)]:
        found += decoder.feed(wire[:cut])
        wire = wire[cut:]
    assert found == frames


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_an_error(data):
    try:
        for frame in Decoder().feed(data):
            assert isinstance(frame, Data | Control)
    except ProtocolBroken:
        assert data[0] & 0x80 or len(data) > 8


def test_another_version_is_refused():
    with pytest.raises(ProtocolBroken, match="version 2"):
        list(Decoder().feed(struct.pack(">HHI", 0x8002, 1, 0)))


def test_a_control_frame_that_is_too_short_is_refused():
    with pytest.raises(ProtocolBroken, match="too short"):
        _ = Control(Kind.PING, b"\0\0").stream
