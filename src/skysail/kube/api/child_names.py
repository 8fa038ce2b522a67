"""Names of children whose limits are stricter than those of their owner. Pure.

A custom object may have a name of up to 253 characters, with dots, and may start with a digit. Services, Jobs and label
values are limited to the 63 characters of a DNS label.
"""

from __future__ import annotations

import base64
import hashlib
import re

MAX_LABEL_LENGTH = 63
# A DNS label that is also a valid Service name: it starts with a letter and has no dots.
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_HASH = 6


def child_prefix(name: str, longest: int) -> str:
    """Return the name if it is a valid prefix of children; else a shortened name with a hash of the full name."""
    if len(name) <= longest and _LABEL.fullmatch(name):
        return name
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:_HASH]
    plain = name.replace(".", "-")
    beginning = (plain if plain[0].isalpha() else f"t{plain}")[: longest - _HASH - 1]
    return f"{beginning.rstrip('-')}-{digest}"


def label_value(name: str, longest: int) -> str:
    """Return the name as a label value, which allows dots and digits, or its stem if the name is too long."""
    return name if len(name) <= MAX_LABEL_LENGTH else child_prefix(name, longest)
