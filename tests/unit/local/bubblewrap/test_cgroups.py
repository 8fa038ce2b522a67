from __future__ import annotations

import pytest

from skysail.cloud.provider import ResourceLimits
from skysail.local.bubblewrap import cgroups
from skysail.local.bubblewrap.cgroups import Bounds, Cgroup, CgroupManager

FILES = {
    "unified": ("memory.max", "cpu.max", "pids.max"),
    "memory": ("memory.limit_in_bytes",),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
    "pids": ("pids.max",),
}


class Trees:
    """Folders that look like control groups: the kernel puts the files into a new folder."""

    def __init__(self, root, *kinds: str, max_processes: int | None = None) -> None:
        self.root = root
        self.groups = CgroupManager({kind: root / kind for kind in kinds}, "ours", max_processes=max_processes)
        for kind in kinds:
            for folder in (root / kind / "ours", root / kind / "ours" / "run"):
                folder.mkdir(parents=True)
                for file in FILES[kind]:
                    (folder / file).touch()

    def content(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.root.rglob("*") if path.is_file() and path.read_text()}


def test_the_first_generation_has_a_tree_for_each_kind(tmp_path):
    trees = Trees(tmp_path, "memory", "cpu")
    cgroup = trees.groups.make("run", ResourceLimits(memory=1000, cpu=1.5))
    assert trees.content() == {
        "memory.limit_in_bytes": "1000",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
    }
    assert cgroup.procs_files == tuple(
        str(tmp_path / kind / "ours" / "run" / "cgroup.procs") for kind in ("memory", "cpu")
    )


def test_the_second_generation_has_one_tree(tmp_path):
    trees = Trees(tmp_path, "unified")
    trees.groups.make("run", ResourceLimits(memory=1000, cpu=0.001))
    assert trees.content() == {"memory.max": "1000", "cpu.max": "1000 100000"}


def test_without_limits_there_is_nothing_to_join(tmp_path):
    assert Trees(tmp_path, "memory", "cpu").groups.make("run", ResourceLimits()).procs_files == ()


def test_without_rights_limits_are_not_enforced():
    cgroups = CgroupManager({}, "ours")
    assert not cgroups.are_enforced
    assert cgroups.make("run", ResourceLimits(memory=1000)).procs_files == ()


@pytest.mark.parametrize("file", ["memory.events", "memory.oom_control"])
def test_a_kill_for_memory_is_told_by_either_generation(tmp_path, file):
    cgroup = Cgroup((tmp_path,))
    assert not cgroup.ran_out_of_memory()
    (tmp_path / file).write_text("under_oom 0\noom_kill 0\n")
    assert not cgroup.ran_out_of_memory()
    (tmp_path / file).write_text("under_oom 0\noom_kill 1\n")
    assert cgroup.ran_out_of_memory()


def test_a_group_that_is_gone_can_be_removed(tmp_path):
    Cgroup((tmp_path / "gone",)).remove()


@pytest.mark.parametrize("kinds", [("unified",), ("memory", "cpu", "pids")])
def test_processes_are_limited_where_a_container_joins_groups_anyway(tmp_path, kinds):
    trees = Trees(tmp_path, *kinds, max_processes=77)
    assert trees.groups.make("run", ResourceLimits()).procs_files == ()
    cgroup = trees.groups.make("run", ResourceLimits(memory=1000))
    assert trees.content()["pids.max"] == "77"
    assert len(cgroup.folders) == len({"unified", "memory", "pids"} & set(kinds))


@pytest.mark.parametrize("kinds", [("unified",), ("memory", "cpu", "pids")])
def test_all_pods_together_are_bounded_and_the_agent_leaves_in_the_end(tmp_path, kinds, monkeypatch):
    own = tmp_path / "cgroup"
    own.write_text("3:memory:/session/1\n2:pids:/\n1:cpu,cpuacct:/\n0::/user.slice\n")
    monkeypatch.setattr(cgroups, "_OWN_GROUPS", own)
    trees = Trees(tmp_path / "trees", *kinds)
    origins = {"unified": "user.slice", "memory": "session/1", "pids": ""}
    for kind in kinds:
        (tmp_path / "trees" / kind / origins.get(kind, "")).mkdir(parents=True, exist_ok=True)
    trees.groups.bound_all(Bounds(memory=5000, processes=99))
    assert trees.groups.are_bounded
    assert trees.content() == {
        **({"memory.max": "5000"} if kinds == ("unified",) else {"memory.limit_in_bytes": "5000"}),
        "pids.max": "99",
        "cgroup.procs": "0",
    }
    assert not (tmp_path / "trees" / "cpu" / "ours" / "shared").exists()
    trees.groups.close()
    for kind, origin in origins.items():
        if kind in kinds:
            assert (tmp_path / "trees" / kind / origin / "cgroup.procs").read_text() == "0"


def test_a_kernel_that_does_not_allow_a_bound_is_told(tmp_path):
    cgroups = CgroupManager({"memory": tmp_path / "none"}, "ours")
    cgroups.bound_all(Bounds(memory=1, processes=1))
    assert not cgroups.are_bounded
    CgroupManager({}, "ours").bound_all(Bounds(memory=1, processes=1))


def test_kills_of_pods_without_a_limit_are_counted(tmp_path):
    trees = Trees(tmp_path, "memory")
    assert trees.groups.out_of_memory_kills() == 0
    (tmp_path / "memory" / "ours" / "shared").mkdir()
    (tmp_path / "memory" / "ours" / "shared" / "memory.oom_control").write_text("under_oom 0\noom_kill 3\n")
    assert trees.groups.out_of_memory_kills() == 3


def test_the_bound_leaves_a_part_of_the_machine_to_everything_else(tmp_path):
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    (tmp_path / "sys/kernel/pid_max").write_text("4194304\n")
    (tmp_path / "sys/kernel/threads-max").write_text("60000\n")
    assert Bounds.of_this_machine(tmp_path) == Bounds(memory=14_745_600_000, processes=30000)
