"""Holds bubblewrap before it starts a program until the limit of processes is set.

For containers without a range of ids. Their host id is the id of the cluster's owner, so a limit that is set earlier
would count the owner's other processes; set on the first process inside, it counts that user namespace only.
"""

from __future__ import annotations

import os
import resource


class ProcessGate:
    """`descriptor` is for `bwrap --block-fd`. Close it when bubblewrap has it, and open the gate in any case."""

    def __init__(self, max_processes: int) -> None:
        self._max_processes = max_processes
        self.descriptor, self._ours = os.pipe()
        self._is_open = False

    def limit(self, pid: int) -> None:
        """Limit the first process of the container, and so all that it starts. Raises ProcessLookupError."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
        most = self._max_processes if hard == resource.RLIM_INFINITY else min(hard, self._max_processes)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))

    def open(self) -> None:
        """Let bubblewrap go on. May be called twice."""
        if not self._is_open:
            self._is_open = True
            os.close(self._ours)
