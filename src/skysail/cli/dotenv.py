"""Credentials in the file `.env` of the working directory, for commands on a developer's machine.

A process inside a cluster never reads the file: there, credentials are in Secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FILE = ".env"
# Other variables, such as PATH, would change what a command does in a way that its user does not expect.
_NAME = re.compile(r"(?:MODAL|RUNPOD|SKYSAIL)_[A-Z0-9_]+")
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


def environment(variables: Mapping[str, str], folder: Path | None = None) -> dict[str, str]:
    """Return the variables, with those of `.env` that are not set. A missing or unreadable file has none."""
    if _IN_CLUSTER in variables:
        return dict(variables)
    try:
        text = ((folder or Path.cwd()) / FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return dict(variables)
    return {**parse(text), **variables}


def parse(text: str) -> dict[str, str]:
    """Return the variables for clouds and for Skysail in `name=value` lines. Quotes around a value are removed."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and _NAME.fullmatch(match[1]):
            found[match[1]] = _unquoted(match[2])
    return found


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value
