"""One process at a time: whoever fetches or builds something into the cache holds its lock."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(lock: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock inside the block. `waiting` is called once where another process has it. Its folder must exist."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
