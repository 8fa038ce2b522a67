"""Disk usage of pods in bytes and files, and free space of file systems. Blocking."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

_BLOCK = 512  # unit of st_blocks on every file system
# Counted for a folder whose path is longer than the kernel takes: only a program that hides files makes such paths.
_HIDDEN_BYTES = 2**50


class DiskUsage(msgspec.Struct, frozen=True):
    bytes: int = 0
    files: int = 0

    def __add__(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.bytes + other.bytes, self.files + other.files)


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a file system, and the free space for users other than root.

    `max_files` is 0 on file systems that do not count files.
    """

    size: int
    available: int
    max_files: int
    available_files: int


def disk(folder: Path) -> Disk:
    found = os.statvfs(folder)
    return Disk(
        size=found.f_blocks * found.f_frsize,
        available=found.f_bavail * found.f_frsize,
        max_files=found.f_files,
        available_files=found.f_favail,
    )


def folders(*paths: Path) -> DiskUsage:
    """Return the usage of these folders. Hard links count once, files that vanish meanwhile do not count."""
    size = count = 0
    seen: set[tuple[int, int]] = set()
    for found in _entries(paths):
        count += 1
        if found is None:
            size += _HIDDEN_BYTES
            continue
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
        size += found.st_blocks * _BLOCK
    return DiskUsage(size, count)


def deleted_files(namespaces: Collection[int], proc: Path = Path("/proc")) -> dict[int, DiskUsage]:
    """Return the usage of deleted but still open files, by the pid namespace of their processes.

    Such a file has no name in any folder, so a program could fill the disk without any visible usage.
    """
    found: dict[int, dict[tuple[int, int], int]] = {namespace: {} for namespace in namespaces}
    for process in (folder for folder in proc.iterdir() if folder.name.isdigit()):
        with contextlib.suppress(OSError):  # the process has ended, or is not ours
            namespace = (process / "ns" / "pid").stat().st_ino
            if namespace in found:
                found[namespace].update(_deleted(process))
    return {namespace: DiskUsage(sum(files.values()), len(files)) for namespace, files in found.items()}


def _deleted(process: Path) -> Iterator[tuple[tuple[int, int], int]]:
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            found = descriptor.stat()
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                yield (found.st_dev, found.st_ino), found.st_blocks * _BLOCK


def _entries(paths: Collection[Path]) -> Iterator[os.stat_result | None]:
    """Yield each file and folder below these paths, and None for one whose path is longer than the kernel takes.

    Not with os.walk, which calls itself for each level: a program that nests 1,000 folders would end the count.
    """
    pending = [name for path in paths for name in _names(str(path))]
    while pending:
        path = pending.pop()
        try:
            found = os.lstat(path)
        except OSError as error:  # the file has vanished
            if error.errno == errno.ENAMETOOLONG:
                yield None
            continue
        yield found
        if stat.S_ISDIR(found.st_mode):
            pending += _names(path)


def _names(folder: str) -> list[str]:
    """Return the paths of all that is in a folder, none if the folder has vanished."""
    with contextlib.suppress(OSError):
        return [f"{folder}/{name}" for name in os.listdir(folder)]  # noqa: PTH208 (thousands of files)
    return []
