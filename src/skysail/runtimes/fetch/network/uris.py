"""Formatting and parsing of URIs."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

_MAX_LENGTH = 300


def redact(uri: str) -> str:
    """Return the URI for logs and messages, without user name, password and query, which may be secret."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "this address"
    if not parts.scheme:
        return "this address"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:_MAX_LENGTH]


def last_part(uri: str) -> str:
    """Return the file name of the URI; "" if it ends with a slash."""
    return unquote(urlsplit(uri).path).rpartition("/")[2]
