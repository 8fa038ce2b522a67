"""Memory and CPU limits by control groups, where we are root of the machine; elsewhere there are none.

Both generations of the kernel's interface are known: version 2 where it has the memory controller, else version 1.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import msgspec

from skysail.cloud.provider import Limits

_PERIOD = 100_000  # microseconds; a share of a core is a share of this


class Group(msgspec.Struct, frozen=True):
    """The limits of one run. Joined by writing to each of `joined_by`."""

    folders: tuple[Path, ...]

    @property
    def joined_by(self) -> tuple[str, ...]:
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def ran_out_of_memory(self) -> bool:
        return any(
            _killed(folder / name) for folder in self.folders for name in ("memory.events", "memory.oom_control")
        )

    def remove(self) -> bool:
        """Whether nothing of it is left. A process that is about to go keeps it. Gone already is fine."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


NO_GROUP = Group(())


class Groups:
    """All groups of one cluster, in a folder of its own of each tree that the machine has."""

    def __init__(self, trees: dict[str, Path], name: str) -> None:
        self._parents = {kind: tree / name for kind, tree in trees.items()}
        self.are_enforced = bool(trees)

    @classmethod
    def mount(cls, folder: Path, name: str) -> Groups:
        """Mount the trees below `folder`, for a hull has a fresh /sys without any. Not allowed: no limits."""
        for kinds in (("unified",), ("memory", "cpu")):
            trees = {kind: folder / kind for kind in kinds if _mount(kind, folder / kind)}
            groups = cls(trees, name)
            if trees and groups._open():
                return groups
        return cls({}, name)

    def make(self, name: str, limits: Limits) -> Group:
        """A group with these limits; nothing to join where there is nothing to limit."""
        made: list[Path] = []
        for kind, parent in self._parents.items():
            settings = _settings(kind, limits)
            if not settings:
                continue
            folder = parent / name
            folder.mkdir(exist_ok=True)
            made.append(folder)
            for file, value in settings.items():
                if (folder / file).exists():  # a kernel without swap has no file for it
                    (folder / file).write_text(value)
        return Group(tuple(made))

    def close(self) -> None:
        """Leave nothing on the machine, when no run is left."""
        Group(tuple(self._parents.values())).remove()

    def _open(self) -> bool:
        """Make our folders; remove what a cluster that was killed left in them."""
        try:
            for kind, parent in self._parents.items():
                if kind == "unified":
                    (parent.parent / "cgroup.subtree_control").write_text("+memory +cpu")
                parent.mkdir(exist_ok=True)
                if kind == "unified":
                    (parent / "cgroup.subtree_control").write_text("+memory +cpu")
                for left in parent.iterdir():
                    if left.is_dir():
                        Group((left,)).remove()
        except OSError:
            return False
        return True


def _mount(kind: str, target: Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    if target.is_mount():
        return True
    what = ("-t", "cgroup2") if kind == "unified" else ("-t", "cgroup", "-o", kind)
    return subprocess.run(["mount", *what, "none", target], capture_output=True, check=False).returncode == 0  # noqa: S603, S607 (the system's own)


def _settings(kind: str, limits: Limits) -> dict[str, str]:
    """Files and values, in the order in which they must be written."""
    memory, cpu = limits.memory, limits.cpu
    found: dict[str, str] = {}
    if kind == "unified":
        if memory is not None:
            found |= {"memory.max": str(memory), "memory.swap.max": "0"}
        if cpu is not None:
            found |= {"cpu.max": f"{max(1000, int(cpu * _PERIOD))} {_PERIOD}"}
    if kind == "memory" and memory is not None:
        found |= {"memory.limit_in_bytes": str(memory)}
    if kind == "cpu" and cpu is not None:
        found |= {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(max(1000, int(cpu * _PERIOD)))}
    return found


def _killed(file: Path) -> bool:
    try:
        counts = dict(line.split() for line in file.read_text().splitlines())
    except OSError:
        return False
    return int(counts.get("oom_kill", "0")) > 0
