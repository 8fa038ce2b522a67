"""Headers and targets of requests through the bridge: what is passed on, and what is rejected. Pure.

The bridge holds credentials of clouds. So a request must never choose its host, send credentials of its own choice, or
mean something else to the next server than to the bridge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from yarl import URL

Headers = Iterable[tuple[str, str]]

# Headers of one connection (RFC 9110, 7.6.1), and those of proxies.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Set by the bridge. A caller's own value would be a claim that nobody checks.
_FORWARDED = frozenset({"forwarded", "host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"})
# Credentials of clouds. They are never taken from a caller and never passed back to one.
_CREDENTIALS = frozenset({"modal-key", "modal-secret"})
# Handshake of a WebSocket, which each side of the bridge does on its own.
_WEBSOCKET = frozenset(
    {"sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-version"}
)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# A visible ASCII character. The target of a request has no others.
_TARGET = re.compile(r"/[\x21-\x7e]*")
_DIGITS = re.compile(r"[0-9]{1,19}")
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})


class BadRequest(Exception):
    """The request is malformed or ambiguous. The text is a sentence for the caller."""


def validate(method: str, target: str, headers: Headers) -> None:
    """Raise BadRequest for a request whose meaning two servers could understand differently."""
    if not _TOKEN.fullmatch(method) or method in _REFUSED_METHODS:
        raise BadRequest("This method is not supported.")
    if not _TARGET.fullmatch(target):
        raise BadRequest("The request target must be a path that starts with a slash.")
    found = [(name.lower(), value) for name, value in headers]
    for name, value in found:
        if not _TOKEN.fullmatch(name) or any(character in value for character in "\r\n\0"):
            raise BadRequest("A header is malformed.")
    _validate_length(found)


def _validate_length(headers: list[tuple[str, str]]) -> None:
    lengths = [value.strip() for name, value in headers if name == "content-length"]
    encodings = [value.strip().lower() for name, value in headers if name == "transfer-encoding"]
    if len(lengths) > 1 or any(not _DIGITS.fullmatch(length) for length in lengths):
        raise BadRequest("A request has one Content-Length, which is a number.")
    if encodings not in ([], ["chunked"]):
        raise BadRequest("The only supported Transfer-Encoding is chunked.")
    if lengths and encodings:
        raise BadRequest("A request has either Content-Length or Transfer-Encoding.")
    if len([name for name, _ in headers if name == "host"]) > 1:
        raise BadRequest("A request has one Host.")


def destination(base: URL, target: str) -> URL:
    """Return the URL of a request. The target only adds a path and a query: scheme, host and port are those of `base`.

    `//evil.example/x` is a path here, and so is any other text that starts with a slash.
    """
    path, mark, query = target.partition("?")
    prefix = base.raw_path.rstrip("/")
    text = f"{base.scheme}://{base.raw_authority}{prefix}{path}{mark}{query}"
    url = URL(text, encoded=True)
    if url.raw_authority != base.raw_authority or url.scheme != base.scheme:
        raise BadRequest("The request target must be a path.")
    return url


def request_headers(
    headers: Headers, credentials: Headers, *, peer: str, host: str, is_websocket: bool = False
) -> list[tuple[str, str]]:
    """Return the headers for the cloud: the caller's without those of this connection, and the credentials."""
    received, secret = list(headers), list(credentials)
    dropped = {
        *_HOP_BY_HOP,
        *_FORWARDED,
        *_CREDENTIALS,
        *_named_by_connection(received),
        *(name.lower() for name, _ in secret),
        *(_WEBSOCKET if is_websocket else ()),
    }
    kept = [(name, value) for name, value in received if name.lower() not in dropped]
    forwarded = [("X-Forwarded-For", peer), ("X-Forwarded-Host", host), ("X-Forwarded-Proto", "http")]
    return [*kept, *(row for row in forwarded if row[1]), *secret]


def response_headers(headers: Headers, credentials: Headers, base: URL) -> list[tuple[str, str]]:
    """Return the headers for the caller. A redirect inside the server becomes a path, so that it stays inside."""
    received = list(headers)
    dropped = {
        *_HOP_BY_HOP,
        *_CREDENTIALS,
        *_named_by_connection(received),
        *(name.lower() for name, _ in credentials),
    }
    kept = [(name, value) for name, value in received if name.lower() not in dropped]
    return [(name, _relative(value, base) if name.lower() == "location" else value) for name, value in kept]


def may_retry(method: str, *, has_body: bool) -> bool:
    """Return whether a request may be sent twice: an idempotent method, and nothing of its body was consumed."""
    return method in _IDEMPOTENT and not has_body


def _named_by_connection(headers: Headers) -> set[str]:
    names = (value for name, value in headers if name.lower() == "connection")
    return {word.strip().lower() for value in names for word in value.split(",") if word.strip()}


def _relative(location: str, base: URL) -> str:
    try:
        url = URL(location, encoded=True)
        if not url.absolute or url.origin() != base.origin():
            return location
    except ValueError:
        return location
    prefix = base.raw_path.rstrip("/")
    path = url.raw_path_qs
    return path.removeprefix(prefix) or "/" if path.startswith(prefix) else path
