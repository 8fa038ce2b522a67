"""How much of its volume a model may take."""

from __future__ import annotations

import shutil
from pathlib import Path

from skysail.runtimes.fetch.errors import WrongContent
from skysail.runtimes.fetch.transfer.progress import in_units

# Of a node's disk: kubelets evict pods while a tenth of it is free, or 15 % where images are, and never let it be full.
# Of very large disks they are told to keep less.
_RESERVE_PERCENT = 15
_LARGEST_RESERVE = 50 * 2**30
# Of what is free on a disk that has less than that: so little makes no difference.
_ALWAYS_PERCENT = 10


class Room:
    """Of the volume that the folder is on. `of_node`: it is the disk of the node, which others live on as well."""

    def __init__(self, folder: Path, *, of_node: bool = False) -> None:
        self._folder = folder
        self._of_node = of_node
        folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(folder)
        reserve = min(disk.total * _RESERVE_PERCENT // 100, _LARGEST_RESERVE)
        self._reserve = min(reserve, disk.free * (100 - _ALWAYS_PERCENT) // 100) if of_node else 0

    @property
    def left(self) -> int:
        return max(shutil.disk_usage(self._folder).free - self._reserve, 0)

    def check(self, total: int, there: int) -> None:
        """Of a model that has so many bytes, of which some are there. Raises WrongContent."""
        left = self.left
        if total - there > left:
            raise self._too_small(f"The model has {in_units(total)}, and {{}} has room for {in_units(left)}")

    def keep(self) -> None:
        """While it is written. A full volume says so by itself, and a node would have evicted the pod before."""
        if self._of_node and not self.left:
            raise self._too_small("{} has no room for the rest of the model")

    def _too_small(self, what: str) -> WrongContent:
        if not self._of_node:
            return WrongContent("TooLarge", f"{what.format('its volume')}: use a larger volume.")
        where = f"the disk of its node, of which {in_units(self._reserve)} are left to others,"
        text = f"{what.format(where)}: use a node with a larger disk, or a smaller model."
        return WrongContent("TooLarge", text[0].upper() + text[1:])
