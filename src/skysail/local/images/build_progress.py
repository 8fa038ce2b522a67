"""Progress of a uv run, as text for the user."""

from __future__ import annotations

_STEPS = {"Resolved", "Prepared", "Installed", "Bytecode"}
_MAX_NAMES = 3


class Progress:
    """Parses the output of uv, line by line. uv names only the large packages; the others take no time."""

    def __init__(self) -> None:
        self._downloading: dict[str, str] = {}
        self._seen = 0

    def parse(self, line: str) -> str | None:
        """Return the progress after this line. Returns None if the line has none."""
        match line.split():
            case ["Downloading", name, size]:
                self._downloading[name] = size
                self._seen += 1
            case ["Downloaded", name]:
                self._downloading.pop(name, None)
            case [first, *_] if first in _STEPS:
                return line.strip()
            case _:
                return None
        return self._downloads()

    def _downloads(self) -> str:
        here = self._seen - len(self._downloading)
        names = [f"{name} {size}" for name, size in list(self._downloading.items())[:_MAX_NAMES]]
        more = len(self._downloading) - len(names)
        rest = f" and {more} more" if more else ""
        coming = f"; downloading: {', '.join(names)}{rest}" if names else ""
        return f"downloaded {here} of {self._seen} large packages{coming}"
