"""Limits of memory, CPU and processes by cgroups, if we are root of the machine; otherwise there are none.

The node agent joins a cgroup of its own, and pods without limits stay in it, because joining a cgroup takes 10 ms. The
parent cgroup limits all pods together, so that pods without limits cannot exhaust the machine.

Uses cgroup v2 if it has the memory controller, else v1.
"""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import msgspec

from skysail.cloud.provider import ResourceLimits

_PERIOD = 100_000  # microseconds; the CPU quota is relative to this
_SHARED = "shared"  # cgroup of the agent and of pods without limits
_TREES = (("unified",), ("memory", "cpu", "pids"))
# Reserved for the control plane and the rest of the machine.
_MIN_RESERVE = 512 << 20
_RESERVED_SHARE = 10
_OWN_GROUPS = Path("/proc/self/cgroup")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all pods together."""

    memory: int
    processes: int

    @classmethod
    def of_this_machine(cls, proc: Path = Path("/proc")) -> Bounds:
        """Reserve a tenth of the machine's memory and half of its processes."""
        first = (proc / "meminfo").read_text().split("\n", 1)[0]
        total = int(first.split()[1]) * 1024
        kernel = proc / "sys" / "kernel"
        processes = min(int((kernel / name).read_text()) for name in ("pid_max", "threads-max"))
        return cls(memory=total - max(_MIN_RESERVE, total // _RESERVED_SHARE), processes=processes // 2)


class Cgroup(msgspec.Struct, frozen=True):
    """Cgroups of one container, one per hierarchy. A process joins them by writing to each of `procs_files`."""

    folders: tuple[Path, ...]

    @property
    def procs_files(self) -> tuple[str, ...]:
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def ran_out_of_memory(self) -> bool:
        return any(
            _kills(folder / name) > 0 for folder in self.folders for name in ("memory.events", "memory.oom_control")
        )

    def remove(self) -> bool:
        """Remove the cgroups. Returns whether none is left.

        A cgroup cannot be removed while a process in it is still exiting. Idempotent.
        """
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


NO_GROUP = Cgroup(())


class CgroupManager:
    """All cgroups of one cluster, below one folder in each hierarchy of the machine."""

    def __init__(self, trees: dict[str, Path], name: str, *, max_processes: int | None = None) -> None:
        self._parents = {kind: tree / name for kind, tree in trees.items()}
        self._max_processes = max_processes
        self._origins: dict[str, Path] = {}
        self.are_enforced = bool(trees)
        self.are_bounded = False

    @classmethod
    def mount(cls, folder: Path, name: str, *, max_processes: int | None = None) -> CgroupManager:
        """Mount the hierarchies below `folder`, because the new /sys of a local cluster has none.

        If that is not allowed, the manager enforces no limits.
        """
        for kinds in _TREES:
            trees = {kind: folder / kind for kind in kinds if _mount(kind, folder / kind)}
            cgroups = cls(trees, name, max_processes=max_processes)
            if trees and cgroups._open():
                return cgroups
        return cls({}, name)

    def make(self, name: str, limits: ResourceLimits) -> Cgroup:
        """Create a cgroup with these limits. Without limits there is nothing to join."""
        made: list[Path] = []
        for kind, parent in self._parents.items():
            settings = _settings(kind, limits, self._max_processes)
            if not settings:
                continue
            folder = parent / name
            folder.mkdir(exist_ok=True)
            made.append(folder)
            _apply(folder, settings)
        return Cgroup(tuple(made))

    def bound_all(self, bounds: Bounds) -> None:
        """Limit all pods together, and join the cgroup in which pods without limits start.

        If the kernel does not allow it, `are_bounded` stays False.
        """
        if not self._parents:
            return
        try:
            for kind, parent in self._parents.items():
                settings = _settings(kind, ResourceLimits(memory=bounds.memory), bounds.processes)
                if not settings:
                    continue
                _apply(parent, settings)
                shared = parent / _SHARED
                shared.mkdir(exist_ok=True)
                self._origins[kind] = parent.parent / _own_path(kind).lstrip("/")
                (shared / "cgroup.procs").write_text("0")
        except OSError:
            self._leave_shared()
        else:
            self.are_bounded = True

    def out_of_memory_kills(self) -> int:
        """Return the number of OOM kills in the shared cgroup."""
        files = ("memory.events", "memory.oom_control")
        return sum(_kills(parent / _SHARED / name) for parent in self._parents.values() for name in files)

    def close(self) -> None:
        """Remove all cgroups from the machine. Call it when no container is left."""
        self._leave_shared()
        for parent in self._parents.values():
            Cgroup((parent / _SHARED,)).remove()
            Cgroup((parent,)).remove()

    def _leave_shared(self) -> None:
        for origin in self._origins.values():
            with contextlib.suppress(OSError):
                (origin / "cgroup.procs").write_text("0")
        self._origins.clear()

    def _open(self) -> bool:
        """Create our folders, and remove the cgroups that a killed cluster left in them."""
        try:
            for kind, parent in self._parents.items():
                if kind == "unified":
                    _delegate(parent.parent)
                parent.mkdir(exist_ok=True)
                if kind == "unified":
                    _delegate(parent)
                for left in parent.iterdir():
                    if left.is_dir():
                        Cgroup((left,)).remove()
        except OSError:
            return False
        return True


def _delegate(folder: Path) -> None:
    """Enable the controllers for the cgroups in this folder. Raises OSError if memory or CPU cannot be limited."""
    (folder / "cgroup.subtree_control").write_text("+memory +cpu")
    with contextlib.suppress(OSError):  # without this controller, RLIMIT_NPROC still limits each pod
        (folder / "cgroup.subtree_control").write_text("+pids")


def _apply(folder: Path, settings: dict[str, str]) -> None:
    for file, value in settings.items():
        if (folder / file).exists():  # a kernel without swap lacks the file of that limit
            (folder / file).write_text(value)


def _own_path(kind: str) -> str:
    """Return the path of this process's cgroup in one hierarchy."""
    rows = (line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines())
    desired = "" if kind == "unified" else kind
    return next((path for _, kinds, path in rows if desired in kinds.split(",")), "/")


def _mount(kind: str, target: Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    if target.is_mount():
        return True
    what = ("-t", "cgroup2") if kind == "unified" else ("-t", "cgroup", "-o", kind)
    return subprocess.run(["mount", *what, "none", target], capture_output=True, check=False).returncode == 0  # noqa: S603, S607 (the system's own)


def _settings(kind: str, limits: ResourceLimits, processes: int | None) -> dict[str, str]:
    """Return files and values, in the order in which they must be written.

    A container without limits of memory and CPU joins no cgroup, so it needs no limit of processes in one.
    """
    memory, cpu = limits.memory, limits.cpu
    if memory is None and cpu is None:
        return {}
    pids_limit = {"pids.max": str(processes)} if processes is not None else {}
    if kind == "pids":
        return pids_limit
    found: dict[str, str] = {}
    if kind == "unified":
        if memory is not None:
            found |= {"memory.max": str(memory), "memory.swap.max": "0"}
        if cpu is not None:
            found |= {"cpu.max": f"{max(1000, int(cpu * _PERIOD))} {_PERIOD}"}
        found |= pids_limit
    if kind == "memory" and memory is not None:
        found |= {"memory.limit_in_bytes": str(memory)}
    if kind == "cpu" and cpu is not None:
        found |= {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(max(1000, int(cpu * _PERIOD)))}
    return found


def _kills(file: Path) -> int:
    try:
        counts = dict(line.split() for line in file.read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", "0"))
