"""Block bubblewrap before it starts a program, until the process limit is set.

For containers without a range of ids. Their host id is the id of the cluster's owner, so a limit that is set earlier
would count the owner's other processes. Set on PID 1 of the container, it counts that user namespace only.
"""

from __future__ import annotations

import os
import resource


class ProcessGate:
    """Pipe on which bubblewrap waits.

    `descriptor` is for `bwrap --block-fd`. Close it when bubblewrap has inherited it, and open the gate in any case.
    """

    def __init__(self, max_processes: int) -> None:
        self._max_processes = max_processes
        self.descriptor, self._ours = os.pipe()
        self._is_open = False

    def limit(self, pid: int) -> None:
        """Limit PID 1 of the container, and so all its descendants. Raises ProcessLookupError."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
        limit = self._max_processes if hard == resource.RLIM_INFINITY else min(hard, self._max_processes)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (limit, limit))

    def open(self) -> None:
        """Unblock bubblewrap. Idempotent."""
        if not self._is_open:
            self._is_open = True
            os.close(self._ours)
