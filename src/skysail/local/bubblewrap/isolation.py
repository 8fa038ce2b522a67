"""Host ids and limits that keep the pods of one cluster apart from the machine and from each other.

Root gives each pod a range of 65,536 unprivileged host ids. Without these ids (a cluster without root, or in a
container that has few ids) every user of every pod is, on the host, the user who started the cluster.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

from skysail.local.bubblewrap import device_nodes, user_namespace
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.id_ranges import FIRST, IdRanges, are_mapped, subordinate
from skysail.local.bubblewrap.staging import Staging

# Threads count as processes. Large training programs have several hundred.
MAX_PROCESSES = 4096

log = logging.getLogger(__name__)


class PodIds:
    """Host ids of one pod, and its user namespaces: one for each user that starts a container. Blocking."""

    def __init__(self, tools: HostTools, first: int, staging: Staging, max_processes: int) -> None:
        self.first = first
        self.staging = staging
        self._tools = tools
        self._max_processes = max_processes
        self._namespaces: dict[int, int] = {}
        self._lock = threading.Lock()

    def namespace(self, user: int) -> int:
        """Return a descriptor of the user namespace for this user of the pod. It is open until `close`."""
        with self._lock:
            if user not in self._namespaces:
                self._namespaces[user] = user_namespace.create(
                    self._tools, owner=self.first + user, first=self.first, max_processes=self._max_processes
                )
            return self._namespaces[user]

    def offset(self, path: Path) -> int:
        """Return the number to add to an id of the pod when a file below `path` is given to that id."""
        return 0 if self.staging.can_map(path, self.namespace(0)) else self.first

    def close(self) -> None:
        with self._lock:
            for descriptor in self._namespaces.values():
                os.close(descriptor)
            self._namespaces.clear()


class Isolation:
    """Assigns ids to pods.

    `ranges` is None if every pod has the single id of the cluster's owner. `staging` is None if this process may not
    mount anything.
    `shares_ids`: PVCs are on a file system that cannot map ids, so all pods have the same range; otherwise a pod could
    not read the files of another pod.
    """

    def __init__(
        self,
        tools: HostTools,
        staging: Staging | None = None,
        ranges: IdRanges | None = None,
        *,
        shares_ids: bool = False,
        max_processes: int = MAX_PROCESSES,
    ) -> None:
        self.max_processes = max_processes
        self.shares_ids = shares_ids
        self.staging = staging
        self._tools = tools
        self._ranges = ranges

    @classmethod
    def detect(
        cls, tools: HostTools, folder: Path, disks: Path, *, seed: int = 0, max_processes: int = MAX_PROCESSES
    ) -> Isolation:
        """Detect by trying: neither the user id nor a sysctl proves that it is allowed. Blocking.

        Call it in a mount namespace of the cluster. `folder` is for temporary mounts: every id must be able to reach
        it. `disks` is the folder of the PVCs.
        """
        device_nodes.protect()
        # A container can name them as /proc/self/exe, and where they belong to the id of the pods it could write them.
        device_nodes.protect(str(Path(program).resolve()) for program in (sys.executable, tools.bwrap))
        staging = _opened(folder)
        if staging is None or os.geteuid() != 0 or not are_mapped():
            return cls(tools, staging, max_processes=max_processes)
        disks.mkdir(parents=True, exist_ok=True)
        try:
            namespace = user_namespace.create(tools, owner=FIRST, first=FIRST, max_processes=max_processes)
            try:
                shares_ids = not staging.can_map(disks, namespace)
            finally:
                os.close(namespace)
        except OSError as error:
            log.warning("no id ranges for pods, using a single id", extra={"why": str(error)})
            return cls(tools, staging, max_processes=max_processes)
        ranges = IdRanges(subordinate(), seed)
        return cls(tools, staging, ranges, shares_ids=shares_ids, max_processes=max_processes)

    @property
    def has_ranges(self) -> bool:
        return self._ranges is not None

    @property
    def limits_processes(self) -> bool:
        """Return whether RLIMIT_NPROC has an effect: the kernel exempts the root of the machine."""
        return self.has_ranges or os.geteuid() != 0 or not are_mapped()

    def allocate(self) -> PodIds | None:
        """Return the ids of a new pod.

        Returns None if every pod has the single id of the cluster's owner.
        Raises NoCapacity if all ranges are in use.
        """
        if self._ranges is None or self.staging is None:
            return None
        first = FIRST if self.shares_ids else self._ranges.allocate()
        return PodIds(self._tools, first, self.staging, self.max_processes)

    def release(self, ids: PodIds | None) -> None:
        """Release the ids. Call it when no process of the pod is left."""
        if ids is None or self._ranges is None:
            return
        ids.close()
        if not self.shares_ids:
            self._ranges.release(ids.first)


def _opened(folder: Path) -> Staging | None:
    staging = Staging(folder)
    try:
        staging.open()
    except OSError as error:
        log.info("no folder for mounts of containers", extra={"why": str(error)})
        return None
    return staging
