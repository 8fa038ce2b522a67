"""Folders nested deeper than recursive code can follow, as a hostile program makes them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

FILE_SIZE = 100_000


@contextlib.contextmanager
def nested(folder: Path, name: str, depth: int) -> Iterator[None]:
    """Make folders of this name, one in the other, and a file in the innermost one. Deleted at the end."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor)
    os.write(file, b"x" * FILE_SIZE)
    os.close(file)
    os.close(descriptor)
    try:
        yield
    finally:
        # pytest could not delete them.
        subprocess.run(["rm", "-rf", folder / name], check=True)
