"""Names of children that fit where an object's own name would not. Pure.

An object may have any name of up to 253 characters, with dots and a digit first. A Service, a Job and the value of a
label may not: they have the 63 characters of a DNS label.
"""

from __future__ import annotations

import base64
import hashlib
import re

LONGEST_LABEL = 63
# A label of DNS that is a Service's name as well: a letter first, no dots.
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_HASH = 6


def stem(name: str, longest: int) -> str:
    """The name itself where its children can begin with it; else as much of it as can, and a hash of all of it."""
    if len(name) <= longest and _LABEL.fullmatch(name):
        return name
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().lower()[:_HASH]
    plain = name.replace(".", "-")
    beginning = (plain if plain[0].isalpha() else f"t{plain}")[: longest - _HASH - 1]
    return f"{beginning.rstrip('-')}-{digest}"


def label_value(name: str, longest: int) -> str:
    """The name as the value of a label, which takes dots and digits; its stem where it is too long for one."""
    return name if len(name) <= LONGEST_LABEL else stem(name, longest)
