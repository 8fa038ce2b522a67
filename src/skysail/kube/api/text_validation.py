"""Validation of text that a schema takes and no program can be given. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def nul_errors(where: str, value: Any) -> Iterator[str]:
    """Yield a sentence for each text with a NUL byte, at any depth. `where` is the path of the value."""
    if isinstance(value, str):
        if "\0" in value:
            yield f"{where} has a NUL byte, which no program can be given: remove it."
    elif isinstance(value, Mapping):
        for name, part in sorted(value.items()):
            yield from nul_errors(where, name)
            yield from nul_errors(f"{where}.{name}".replace("\0", "\\0"), part)
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from nul_errors(f"{where}[{index}]", part)
