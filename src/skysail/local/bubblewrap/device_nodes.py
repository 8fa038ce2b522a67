"""Mount the device nodes of the cluster read-only, so that no container can change their mode, owner or times.

A user namespace with its own host ids prevents that already. In a container without such ids, the root of a pod is the
owner of the nodes on the host. Devices on a read-only mount can still be written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from skysail.local.bubblewrap import mounts

NODES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))


def protect(nodes: Iterable[str] = NODES) -> None:
    """Cover each node in the mount namespace of this process. Idempotent.

    If the kernel does not allow it, the sandbox check finds nodes that can be changed.
    """
    for node in nodes:
        with contextlib.suppress(OSError):
            if not os.statvfs(node).f_flag & os.ST_RDONLY:
                mounts.cover_read_only(node)
