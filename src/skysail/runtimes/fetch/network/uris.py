"""How URIs are shown and taken apart."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

_LONGEST = 300


def shown(uri: str) -> str:
    """As it may stand in logs and messages: user names, passwords and queries are left out, which may be secret."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "this address"
    if not parts.scheme:
        return "this address"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:_LONGEST]


def last_part(uri: str) -> str:
    """The name of the file that it speaks of; "" where it ends with a slash."""
    return unquote(urlsplit(uri).path).rpartition("/")[2]
