"""Limits of ephemeral storage: of each container, of the whole pod, and of its emptyDir volumes. Blocking.

The messages are those of a kubelet, because users and their tools search for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from skysail.cloud.provider import Pod
from skysail.kube.api import quantities
from skysail.local.storage import disk_usage
from skysail.local.storage.disk_usage import DiskUsage
from skysail.local.storage.volumes import Volumes


class ContainerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Folders in which a container writes, including its log, and its limit."""

    name: str
    folders: tuple[Path, ...]
    limit: int | None
    deleted: DiskUsage = DiskUsage()

    def usage(self) -> DiskUsage:
        return disk_usage.folders(*self.folders) + self.deleted


def excess(pod: Pod, volumes: Volumes, containers: Iterable[ContainerFiles]) -> str:
    """Return why the pod must be evicted. Empty if it is within all limits."""
    if message := volumes.excess():
        return message
    used = {container: container.usage() for container in containers}
    for container, usage in used.items():
        if container.limit is not None and usage.bytes > container.limit:
            limit = quantities.in_bytes(container.limit)
            return f'Container {container.name} exceeded its local ephemeral storage limit "{limit}".'
    total = sum((usage.bytes for usage in used.values()), volumes.usage().bytes)
    if pod.ephemeral_storage is not None and total > pod.ephemeral_storage:
        limit = quantities.in_bytes(pod.ephemeral_storage)
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {limit}."
    return ""
