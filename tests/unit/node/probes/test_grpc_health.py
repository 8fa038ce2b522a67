"""The health call by the byte. The answers are those of a real server (grpcio 1.85), cut into their frames."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.node.probes.grpc_health import HealthResponse, NotHttp2, request

SETTINGS = (
    b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00@\x00\x00\x00\x05\x00@\x00\x00\x00\x06\x00\x00@\x00"
    b"\xfe\x03\x00\x00\x00\x01\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00?\x00\x01\x00\x00\x00\x04\x01\x00\x00\x00\x00"
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x05"
)
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00\xd9&\xaa\xc4$\x93W\xf3"
HEADERS = (
    b"\x00\x00N\x01\x04\x00\x00\x00\x01\x88@\x0ccontent-type\x10application/grpc"
    b"@\x14grpc-accept-encoding\x17identity, deflate, gzip"
)
TRAILERS = b"\x00\x00\x1e\x01\x05\x00\x00\x00\x01@\x0bgrpc-status\x010\x00\x0cgrpc-message\x00"
REFUSED = (
    b"\x00\x00P\x01\x05\x00\x00\x00\x01\x88@\x0ccontent-type\x10application/grpc@\x0bgrpc-status\x0212"
    b"\x00\x0cgrpc-message\x11Method not found!"
)


def message(content: bytes, flags: int = 0) -> bytes:
    body = b"\x00" + len(content).to_bytes(4, "big") + content
    return len(body).to_bytes(3, "big") + bytes([0, flags]) + b"\x00\x00\x00\x01" + body


SERVING = PING + HEADERS + message(b"\x08\x01") + TRAILERS
NOT_SERVING = PING + HEADERS + message(b"\x08\x02") + TRAILERS
UNHEALTHY = 'service unhealthy (responded with "{}")'


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (SERVING, ""),
        (NOT_SERVING, UNHEALTHY.format("NOT_SERVING")),
        (HEADERS + message(b"\x08\x03"), UNHEALTHY.format("SERVICE_UNKNOWN")),
        (HEADERS + message(b""), UNHEALTHY.format("UNKNOWN")),
        (HEADERS + message(b"\x08\x09"), UNHEALTHY.format(9)),
        (REFUSED, "the server rejected the health check: it must serve grpc.health.v1.Health"),
        (
            b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
            "the server rejected the health check: it must serve grpc.health.v1.Health",
        ),
    ],
)
@given(cuts=st.lists(st.integers(0, 400), max_size=5))
def test_an_answer_says_the_same_however_it_arrives(sent, reason, cuts):
    whole, health_response = SETTINGS + sent, HealthResponse("")
    borders = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for begin, end in itertools.pairwise(borders):
        health_response.feed(whole[begin:end])
    assert health_response.is_complete
    assert health_response.reason == reason


def test_a_service_that_the_server_does_not_know_is_named():
    health_response = HealthResponse("shop")
    health_response.feed(SETTINGS + REFUSED)
    assert health_response.reason.endswith("grpc.health.v1.Health for the service shop")


def test_settings_and_pings_are_acknowledged():
    assert HealthResponse("").feed(SETTINGS + PING) == (
        b"\x00\x00\x00\x04\x01\x00\x00\x00\x00" + PING.replace(b"\x06\x00", b"\x06\x01", 1)
    )


def test_padding_is_no_part_of_a_message():
    body = b"\x02" + b"\x00\x00\x00\x00\x02\x08\x01" + b"\x00\x00"
    health_response = HealthResponse("")
    health_response.feed(SETTINGS + len(body).to_bytes(3, "big") + b"\x00\x08\x00\x00\x00\x01" + body)
    assert (health_response.is_complete, health_response.reason) == (True, "")


@pytest.mark.parametrize("sent", [b"HTTP/1.1 400 Bad Request\r\n", SERVING, b"\xff" * 20])
def test_a_peer_that_does_not_begin_with_settings_speaks_something_else(sent):
    with pytest.raises(NotHttp2):
        HealthResponse("").feed(sent)


def test_the_request_names_service_and_host_whatever_their_length():
    made = request("x" * 300, "10.244.0.9:50051")
    assert made.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04")
    assert b"\x0a:authority\x1010.244.0.9:50051" in made
    assert made.endswith(b"\x00\x00\x00\x01\x2f\x0a\xac\x02" + b"x" * 300)
    assert request("", "h").endswith(b"\x00\x00\x05\x00\x01\x00\x00\x00\x01" + bytes(5))
