"""What uv tells while it works, in words for somebody who waits."""

from __future__ import annotations

_STEPS = {"Resolved", "Prepared", "Installed", "Bytecode"}
_MAX_NAMES = 3


class Progress:
    """Fed line by line. uv names the large packages alone; the others take no time."""

    def __init__(self) -> None:
        self._on_their_way: dict[str, str] = {}
        self._seen = 0

    def heard(self, line: str) -> str | None:
        """A step for the user, or None where the line is not about one."""
        match line.split():
            case ["Downloading", name, size]:
                self._on_their_way[name] = size
                self._seen += 1
            case ["Downloaded", name]:
                self._on_their_way.pop(name, None)
            case [first, *_] if first in _STEPS:
                return line.strip()
            case _:
                return None
        return self._downloads()

    def _downloads(self) -> str:
        here = self._seen - len(self._on_their_way)
        names = [f"{name} {size}" for name, size in list(self._on_their_way.items())[:_MAX_NAMES]]
        more = len(self._on_their_way) - len(names)
        rest = f" and {more} more" if more else ""
        coming = f"; on their way: {', '.join(names)}{rest}" if names else ""
        return f"downloaded {here} of {self._seen} large packages{coming}"
