"""What the bridge passes on, and what it rejects: nobody chooses its host or sends credentials of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from skysail.bridge import http_headers
from skysail.bridge.http_headers import BadRequest
from skysail.cloud import http_address

BASE = URL("https://abc--web.modal.run/prefix")
CALL = "__modal_function_call_id=fc-1"
HOST = [("Host", "web")]

SMUGGLED = [
    ("POST", "/", [("Content-Length", "5"), ("Transfer-Encoding", "chunked")]),
    ("POST", "/", [("Content-Length", "5"), ("Content-Length", "6")]),
    ("POST", "/", [("Content-Length", "5"), ("Content-Length", "5")]),
    ("POST", "/", [("Content-Length", "5, 6")]),
    ("POST", "/", [("Content-Length", "+5")]),
    ("POST", "/", [("Content-Length", "0x10")]),
    ("POST", "/", [("Content-Length", "-1")]),
    ("POST", "/", [("Content-Length", "")]),
    ("POST", "/", [("Transfer-Encoding", "gzip, chunked")]),
    ("POST", "/", [("Transfer-Encoding", "chunked, identity")]),
    ("POST", "/", [("Transfer-Encoding", "xchunked")]),
    ("POST", "/", [("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")]),
    ("POST", "/", [("Transfer-Encoding ", "chunked")]),
    ("POST", "/", [("Content Length", "5")]),
    ("GET", "/", [("X", "a\r\nModal-Key: k")]),
    ("GET", "/", [("X", "a\nb")]),
    ("GET", "/", [("X", "a\0b")]),
    ("GET", "/", [("X:Y", "a")]),
    ("GET", "/", [("Host", "web"), ("Host", "other")]),
    ("GE T", "/", []),
    ("CONNECT", "/", []),
    ("TRACE", "/", []),
]
FOREIGN_TARGETS = [
    "http://169.254.169.254/latest/meta-data",
    "https://evil.example/",
    "evil.example:443",
    "*",
    "",
    "@evil.example/",
    "/a b",
    "/a\tb",
    "/\u00e4",
    "/a\r\nHost: evil.example",
]
CONFINED_TARGETS = [
    "/",
    "//evil.example/x",
    "///evil.example",
    "/@evil.example",
    "/\\evil.example",
    "/..//evil.example",
    "/%2e%2e/x",
    "/a?next=http://evil.example/",
    "/a#b",
    "/:80/",
    "/http://evil.example/",
]


@pytest.mark.parametrize(("method", "target", "headers"), SMUGGLED)
def test_validate_ambiguous_request_is_rejected(method, target, headers):
    with pytest.raises(BadRequest):
        http_headers.validate(method, target, headers)


@pytest.mark.parametrize("target", FOREIGN_TARGETS)
def test_validate_target_that_is_no_path_is_rejected(target):
    with pytest.raises(BadRequest):
        http_headers.validate("GET", target, HOST)


@pytest.mark.parametrize("target", CONFINED_TARGETS)
def test_destination_any_path_stays_at_the_server(target):
    http_headers.validate("GET", target, HOST)
    url = http_headers.destination(BASE, target)
    assert (url.scheme, url.raw_host, url.port) == ("https", "abc--web.modal.run", 443)
    assert str(url).startswith("https://abc--web.modal.run/prefix/")


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40))
def test_destination_no_text_leaves_the_server(text):
    url = http_headers.destination(BASE, f"/{text}")
    assert url.origin() == BASE.origin()
    assert (url.user, url.password) == (None, None)


def test_request_headers_credentials_are_the_accounts_and_hop_by_hop_headers_stay():
    received = [
        ("Host", "web.team-a"),
        ("Authorization", "Bearer callers"),
        ("authorization", "Bearer again"),
        ("Modal-Key", "forged"),
        ("MODAL-SECRET", "forged"),
        ("X-Forwarded-For", "1.2.3.4"),
        ("X-Forwarded-Host", "evil.example"),
        ("Forwarded", "for=1.2.3.4"),
        ("Connection", "close, X-Private, Authorization"),
        ("X-Private", "1"),
        ("Keep-Alive", "5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("Proxy-Authorization", "Basic x"),
        ("Transfer-Encoding", "chunked"),
        ("X-Kept", "yes"),
        ("Cookie", "a=b"),
    ]
    sent = http_headers.request_headers(received, [("Authorization", "Bearer ours")], peer="10.0.0.9", host="web")
    assert sent == [
        ("X-Kept", "yes"),
        ("Cookie", "a=b"),
        ("X-Forwarded-For", "10.0.0.9"),
        ("X-Forwarded-Host", "web"),
        ("X-Forwarded-Proto", "http"),
        ("Authorization", "Bearer ours"),
    ]


def test_response_headers_credentials_never_come_back():
    received = [
        ("Content-Type", "text/plain"),
        ("Authorization", "Bearer ours"),
        ("Modal-Key", "k"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("Location", "https://abc--web.modal.run/prefix/next?x=1"),
    ]
    assert http_headers.response_headers(received, [("authorization", "Bearer ours")], BASE) == [
        ("Content-Type", "text/plain"),
        ("Location", "/next?x=1"),
    ]
    foreign = [("Location", "https://other.example/x")]
    assert http_headers.response_headers(foreign, [], BASE) == foreign


@pytest.mark.parametrize(
    ("status", "location", "followed"),
    [
        (303, f"/result/1?{CALL}", f"https://abc--web.modal.run/result/1?{CALL}"),
        (303, f"https://abc--web.modal.run/x?a=b&{CALL}", f"https://abc--web.modal.run/x?a=b&{CALL}"),
        (303, "/result/1", None),
        (303, "/result/1?a=b", None),
        (303, "/result/1?__modal_function_call_id=", None),
        (303, f"/result/1#{CALL}", None),
        (303, f"https://evil.example/?{CALL}", None),
        (303, f"//evil.example/?{CALL}", None),
        (303, f"http://abc--web.modal.run/?{CALL}", None),
        (303, f"https://abc--web.modal.run:8443/?{CALL}", None),
        (303, f"https://user:pass@abc--web.modal.run/?{CALL}", None),
        (303, "", None),
        (302, f"/x?{CALL}", None),
        (307, f"/x?{CALL}", None),
        (200, f"/x?{CALL}", None),
    ],
)
def test_follows_only_the_result_of_a_function_call_at_the_same_server(status, location, followed):
    found = http_address.follows(status, location, BASE, URL("https://abc--web.modal.run/prefix/slow"))
    assert (None if found is None else str(found)) == followed


@pytest.mark.parametrize(
    ("method", "has_body", "may"),
    [("GET", False, True), ("HEAD", False, True), ("GET", True, False), ("PUT", True, False), ("POST", False, False)],
)
def test_may_retry_only_idempotent_requests_without_body(method, has_body, may):
    assert http_headers.may_retry(method, has_body=has_body) is may
