from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.local.network import dns_wire
from skysail.local.network.dns_wire import Code, NotAQuery, QueryError
from tests.unit.local.network.wire import decode, query


def test_a_question_is_read_as_it_was_asked():
    question = dns_wire.read(query("Web.Default.svc.cluster.local", 33, id_=4711))
    assert (question.id, question.name, question.type) == (4711, "web.default.svc.cluster.local", 33)


def test_an_extension_behind_the_question_does_no_harm():
    extension = b"\0" + struct.pack("!2HIH", 41, 4096, 0, 0)
    message = bytearray(query("web") + extension)
    message[11] = 1
    assert dns_wire.read(bytes(message)).name == "web"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (query("web", questions=0), Code.MALFORMED),
        (query("web", questions=2), Code.MALFORMED),
        (query("web", flags=0x2800), Code.NOT_IMPLEMENTED),
        (query("web", class_=3), Code.REFUSED),
        (query("web")[:-1], Code.MALFORMED),
        (query("web")[:14], Code.MALFORMED),
        (query("web")[:12], Code.MALFORMED),
        (query("web")[:12] + b"\xc0\x0c\0\1\0\1", Code.MALFORMED),  # a name that points at itself
        (query("web")[:12] + b"\x40" + b"x" * 64 + b"\0\0\1\0\1", Code.MALFORMED),
        (query("web")[:12] + b"\x01x" * 200 + b"\0\0\1\0\1", Code.MALFORMED),
    ],
)
def test_a_question_that_cannot_be_answered_says_which_answer_is_right(message, code):
    with pytest.raises(QueryError) as refused:
        dns_wire.read(message)
    assert refused.value.code is code
    assert dns_wire.failure(message, code)[:4] == message[:2] + bytes([0x80, code])


@pytest.mark.parametrize("message", [b"", b"\0" * 11, query("web", flags=0x8180)])
def test_what_is_no_question_gets_no_answer(message):
    with pytest.raises(NotAQuery):
        dns_wire.read(message)


@given(st.binary(max_size=600))
def test_any_bytes_are_a_question_or_one_of_two_errors(message):
    try:
        question = dns_wire.read(message)
    except (NotAQuery, QueryError):
        return
    assert question.wire in message


@given(st.binary(max_size=300), st.integers(0, 0x87FF))
def test_any_bytes_behind_a_good_header_are_a_question_or_one_of_two_errors(rest, flags):
    try:
        dns_wire.read(struct.pack("!6H", 1, flags, 1, 0, 0, 0) + rest)
    except (NotAQuery, QueryError):
        return


labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=63)


@given(st.lists(labels, max_size=3).map(".".join), st.integers(0, 65535), st.integers(0, 65535))
def test_every_name_and_type_comes_back(name, type_, id_):
    question = dns_wire.read(query(name, type_, id_=id_))
    assert (question.name, question.type, question.id) == (name, type_, id_)
    assert decode(dns_wire.answer(question, Code.NO_SUCH_NAME)).code == Code.NO_SUCH_NAME


def test_records_are_written_as_the_standard_says():
    question = dns_wire.read(query("A.b"))
    records = [
        dns_wire.address("a.b", "10.244.0.5"),
        dns_wire.target("a.b", "c.d", 8000),
        dns_wire.pointer("a.b", "e.f"),
        dns_wire.alias("a.b", "g.h"),
    ]
    answer = decode(dns_wire.answer(question, Code.OK, records, [dns_wire.address("c.d", "10.244.0.6")]))
    assert answer.records == [
        ("A.b", 1, "10.244.0.5"),
        ("A.b", 33, (0, 100, 8000, "c.d")),
        ("A.b", 12, "e.f"),
        ("A.b", 5, "g.h"),
    ]
    assert answer.extra == [("c.d", 1, "10.244.0.6")]
    assert (answer.code, answer.is_truncated) == (Code.OK, False)


def test_what_does_not_fit_is_asked_again_by_tcp():
    question = dns_wire.read(query("a.b"))
    many = dns_wire.answer(question, Code.OK, [dns_wire.address("a.b", f"10.244.0.{last}") for last in range(100)])
    cut = decode(dns_wire.truncate(many, question))
    assert (cut.records, cut.is_truncated, cut.id) == ([], True, question.id)
    few = dns_wire.answer(question, Code.OK, [dns_wire.address("a.b", "10.244.0.1")])
    assert dns_wire.truncate(few, question) == few
