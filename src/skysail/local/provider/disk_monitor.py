"""Evict pods before they fill the disk that they share with etcd, as a kubelet does under disk pressure.

There is no reserve file, because the pod that fills the disk would use that space too. Instead, the last part of the
disk is the reserve, and the delay until the next check is too short to fill the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from skysail.base import clock, tasks
from skysail.kube.api import quantities
from skysail.local.storage import disk_usage
from skysail.local.storage.disk_usage import Disk, DiskUsage

RESOURCE = "ephemeral-storage"
# A share of the disk stays free, but at most this much: disks of workstations are large and often nearly full.
_RESERVE_PART = 10
_MAX_RESERVE = 2**30
_FILES_PART = 20
_MAX_FILES_RESERVE = 10_000
# A pod with less is not worth evicting.
_MIN_BYTES = 10 * 2**20
_MIN_FILES = 1000
_FASTEST_DISK = 4 * 2**30  # bytes per second
_MIN_DELAY, _MAX_DELAY = 0.1, 5.0
# Keep the condition for a while: pods that are scheduled at once could fill the disk again.
_CONDITION_SECONDS = 60.0

log = logging.getLogger(__name__)


class PodDisk(msgspec.Struct, frozen=True):
    """Disk usage of one pod: files that are deleted with the pod, and PVCs that it can write."""

    ephemeral: DiskUsage
    persistent: DiskUsage = DiskUsage()


class Evictor(Protocol):
    """Provider whose pods have files on the disk."""

    async def disk_usage(self) -> dict[str, PodDisk]:
        """Return the usage of each pod that can be evicted, by UID."""
        ...

    async def evict(self, pod: str, message: str) -> None:
        """Stop the pod and delete its files. Returns when both are done. Does nothing for unknown pods."""
        ...


class DiskMonitor:
    """Monitor of the disk of the home. All methods must be called in one event loop."""

    def __init__(
        self,
        folder: Path,
        *,
        measure: Callable[[Path], Disk] = disk_usage.disk,
        now: Callable[[], float] = clock.boottime,
    ) -> None:
        self._folder = folder
        self._measure = measure
        self._now = now
        self._evictors: list[Evictor] = []
        self._pressure_until: float | None = None

    def register(self, evictor: Evictor) -> None:
        self._evictors.append(evictor)

    @property
    def has_pressure(self) -> bool:
        return self._pressure_until is not None and self._now() < self._pressure_until

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await tasks.run_logged(self.check(), "disk check")
            await asyncio.sleep(delay(self._measure(self._folder)))

    async def check(self) -> None:
        """Evict one pod after the other, until enough is free or no pod uses much."""
        while shortage := shortage_of(disk := self._measure(self._folder)):
            self._pressure_until = self._now() + _CONDITION_SECONDS
            usage = {evictor: await evictor.disk_usage() for evictor in self._evictors}
            largest = choose(
                [(evictor, pod, used) for evictor, pods in usage.items() for pod, used in pods.items()], disk
            )
            if largest is None:
                log.warning("disk nearly full, no pod to evict", extra={"available": disk.available})
                return
            evictor, pod, used = largest
            log.warning("disk nearly full, pod evicted", extra={"pod": pod, "available": disk.available})
            amount = quantities.in_bytes(used.ephemeral.bytes + used.persistent.bytes)
            await evictor.evict(pod, f"{shortage} The pod was using {amount}.")


def shortage_of(disk: Disk) -> str:
    """Return the shortage, in the words of a kubelet. Empty if there is none."""
    if disk.available < _reserve(disk):
        threshold, available = quantities.in_bytes(_reserve(disk)), quantities.in_bytes(disk.available)
        return f"The node was low on resource: {RESOURCE}. Threshold quantity: {threshold}, available: {available}."
    if _lacks_files(disk):
        left = f"Threshold quantity: {_files_reserve(disk)}, available: {disk.available_files}."
        return f"The node was low on resource: inodes. {left}"
    return ""


def delay(disk: Disk) -> float:
    """Return the time in which even the fastest disk cannot use up the space above the reserve."""
    return min(max((disk.available - _reserve(disk)) / _FASTEST_DISK / 2, _MIN_DELAY), _MAX_DELAY)


def choose(candidates: Iterable[tuple[Evictor, str, PodDisk]], disk: Disk) -> tuple[Evictor, str, PodDisk] | None:
    """Return the pod that frees the most. If none frees much: the pod with the largest PVC, which may be growing."""
    lacks_files = _lacks_files(disk) and disk.available >= _reserve(disk)

    def amount(used: DiskUsage) -> int:
        least = _MIN_FILES if lacks_files else _MIN_BYTES
        size = used.files if lacks_files else used.bytes
        return size if size >= least else 0

    ranked = [((amount(row[2].ephemeral), amount(row[2].persistent)), row) for row in candidates]
    rank, row = max(ranked, key=lambda pair: pair[0], default=((0, 0), None))
    return row if any(rank) else None


def _reserve(disk: Disk) -> int:
    return min(disk.size // _RESERVE_PART, _MAX_RESERVE)


def _files_reserve(disk: Disk) -> int:
    return min(disk.max_files // _FILES_PART, _MAX_FILES_RESERVE)


def _lacks_files(disk: Disk) -> bool:
    return disk.available_files < _files_reserve(disk)
