"""Who still runs for a home: every process of a local cluster carries SKYSAIL_HOME in its environment."""

from __future__ import annotations

import os
from pathlib import Path


def of_home(home: Path) -> dict[int, str]:
    """Command lines by pid, without this process."""
    mark = f"SKYSAIL_HOME={home}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked, or it is not ours to look at
    found.pop(os.getpid(), None)
    return found
