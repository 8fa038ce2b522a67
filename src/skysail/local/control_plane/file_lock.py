"""File lock between processes that download or build into the cache."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(lock: Path, *, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock inside the block. Calls `waiting` once if another process has it. The folder must exist."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
