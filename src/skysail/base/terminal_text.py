"""Terminal control sequences, removed from text."""

from __future__ import annotations

import re

# Cursor movements, colours, titles and all other control characters.
_COMMANDS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def strip_control(text: str) -> str:
    """Remove control sequences, so that the text cannot change the reader's terminal.

    A line that was overwritten with carriage returns, such as a progress bar, is reduced to its last content.
    """
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _COMMANDS.sub("", "\n".join(lines))


def tail(text: str, longest: int) -> str:
    """Return at most `longest` characters from the end, cut at a line break if there is one."""
    if len(text) <= longest:
        return text
    _, newline, whole = text[-longest:].partition("\n")
    return whole if newline and whole.strip() else text[-longest:]
