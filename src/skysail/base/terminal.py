"""Text as a terminal shows it."""

from __future__ import annotations


def shown(text: str) -> str:
    """Of a line that was written over again and again, as bars of progress are, only what was written last."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def ending(text: str, longest: int) -> str:
    """The end of it, in whole lines as far as there is more than one."""
    if len(text) <= longest:
        return text
    _, newline, whole = text[-longest:].partition("\n")
    return whole if newline and whole.strip() else text[-longest:]
