"""Text as a terminal shows it."""

from __future__ import annotations

import re

# What moves the cursor, colours what follows or sets a title, and whatever else is no character.
_COMMANDS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def shown(text: str) -> str:
    """Without what only tells a terminal how to show it, so that it does nothing to the terminal of its reader.

    Of a line that was written over again and again, as bars of progress are, only what was written last.
    """
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _COMMANDS.sub("", "\n".join(lines))


def ending(text: str, longest: int) -> str:
    """The end of it, in whole lines as far as there is more than one."""
    if len(text) <= longest:
        return text
    _, newline, whole = text[-longest:].partition("\n")
    return whole if newline and whole.strip() else text[-longest:]
