"""Free space for a model on its volume."""

from __future__ import annotations

import shutil
from pathlib import Path

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.transfer.progress import in_units

# Reserve on a node's disk: kubelets evict pods when less than 10 % is free, or 15 % where images are. Administrators of
# very large disks usually configure less.
_RESERVE_PERCENT = 15
_MAX_RESERVE_BYTES = 50 * 2**30
# Part of the free space that may be used even if less than the reserve is free.
_ALWAYS_PERCENT = 10


class DiskSpace:
    """Free space of the folder's volume. `of_node`: it is the node's disk, which other pods use as well."""

    def __init__(self, folder: Path, *, of_node: bool = False) -> None:
        self._folder = folder
        self._of_node = of_node
        folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(folder)
        reserve = min(disk.total * _RESERVE_PERCENT // 100, _MAX_RESERVE_BYTES)
        self._reserve = min(reserve, disk.free * (100 - _ALWAYS_PERCENT) // 100) if of_node else 0

    @property
    def left(self) -> int:
        return max(shutil.disk_usage(self._folder).free - self._reserve, 0)

    def check(self, total: int, there: int) -> None:
        """Check the space for a model of `total` bytes, of which `there` exist. Raises InvalidContent."""
        remaining = self.left
        if total - there > remaining:
            if self._of_node:
                raise InvalidContent(
                    "TooLarge",
                    f"The model has {in_units(total)}, but the disk of its node has {in_units(remaining)} free, "
                    "beside a"
                    f" reserve of {in_units(self._reserve)}: use a node with a larger disk, or a smaller model.",
                )
            raise InvalidContent(
                "TooLarge",
                f"The model has {in_units(total)}, but its volume has {in_units(remaining)} free: use a larger volume.",
            )

    def keep(self) -> None:
        """Check the reserve during a write.

        A full volume reports itself, but a node would evict the pod before. Raises InvalidContent.
        """
        if self._of_node and not self.left:
            raise InvalidContent(
                "TooLarge",
                f"The disk of the node has no space left for the model, beside a reserve of {in_units(self._reserve)}:"
                " use a node with a larger disk, or a smaller model.",
            )
