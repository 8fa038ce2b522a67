import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.server.errors import ProtocolBroken
from skysail.node.server.spdy.headers import DICTIONARY, Compressor, Decompressor

TEXT = st.text(st.characters(blacklist_characters="\0", codec="utf-8"), max_size=40)


def test_the_dictionary_is_that_of_the_draft():
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(st.dictionaries(TEXT.map(str.lower).filter(lambda name: name == name.lower()), TEXT), max_size=5))
def test_blocks_of_one_connection_are_read_in_their_order(blocks):
    compressor, decompressor = Compressor(), Decompressor()
    assert [decompressor.headers(compressor.block(block)) for block in blocks] == blocks


def test_names_are_lower_case_and_of_several_values_the_first_counts():
    assert Decompressor().headers(Compressor().block({"StreamType": "data\0error"})) == {"streamtype": "data"}


def deflated(plain):
    compressor = zlib.compressobj(9, zlib.DEFLATED, 15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return compressor.compress(plain) + compressor.flush(zlib.Z_SYNC_FLUSH)


BROKEN = [
    (b"not zlib", "cannot be inflated"),
    (deflated(b"\0\0"), "ends too early"),
    (deflated(b"\0\0\0\1\0\0\0\1a"), "ends too early"),
    (deflated(b"\0\0\0\1\0\0\0\x09ab"), "within a string"),
    (deflated(b"\xff\xff\xff\xff"), "ends too early"),
    (deflated(bytes(10_000_000)), "larger than"),
]


@pytest.mark.parametrize(("block", "why"), BROKEN, ids=[why for _, why in BROKEN])
def test_a_broken_block_is_refused(block, why):
    with pytest.raises(ProtocolBroken, match=why):
        Decompressor().headers(block)


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_an_error(plain):
    try:
        headers = Decompressor().headers(deflated(plain))
    except ProtocolBroken:
        return
    assert all(isinstance(value, str) for value in headers.values())
