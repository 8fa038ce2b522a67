"""Unix sockets below a folder that only its owner may enter: other users and pods cannot reach them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket file that fits into the 107 bytes which the kernel allows, however deep the file lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Listen at this path, for the owner only. Replaces what an earlier process left there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.setblocking(False)
    previous = os.umask(0o177)
    try:
        with reachable(path) as name:
            listener.bind(name)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(previous)
    listener.listen(64)
    return listener
