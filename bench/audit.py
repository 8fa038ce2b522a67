"""Who asked the API server for what, from its audit log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete"})


class Asked(NamedTuple):
    user: str
    verb: str
    resource: str
    subresource: str


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Reference(msgspec.Struct, frozen=True):
    resource: str = ""
    namespace: str = ""
    subresource: str = ""


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    verb: str
    user: _User
    object_ref: _Reference = _Reference()


def asked(log: Path, *, since: int, namespace: str) -> Counter[Asked]:
    """In one namespace, from this byte of the log on."""
    decoder = msgspec.json.Decoder(_Line)
    found: Counter[Asked] = Counter()
    with log.open("rb") as file:
        file.seek(since)
        for text in file:
            line = decoder.decode(text)
            about = line.object_ref
            if about.namespace == namespace:
                found[Asked(line.user.username, line.verb, about.resource, about.subresource)] += 1
    return found
