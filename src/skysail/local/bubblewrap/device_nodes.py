"""Mounts the device nodes of the cluster read-only, so that no container can change their mode, owner or times.

A user namespace with host ids of its own prevents that already. In a container without such ids the root of a pod is,
on the host, the owner of the nodes. Devices on a read-only mount can be written to nevertheless.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from skysail.local.bubblewrap import mounts

NODES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))


def protect(nodes: Iterable[str] = NODES) -> None:
    """Cover each node in the mount namespace of this process. May be called twice.

    Where the kernel does not allow it, the check of the sandbox says whether the nodes can be changed.
    """
    for node in nodes:
        with contextlib.suppress(OSError):
            if not os.statvfs(node).f_flag & os.ST_RDONLY:
                mounts.cover_read_only(node)
