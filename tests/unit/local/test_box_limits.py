from __future__ import annotations

import pytest

from skysail.cloud.provider import Limits
from skysail.local.bubblewrap.cgroups import Group, Groups

FILES = {
    "unified": ("memory.max", "cpu.max"),
    "memory": ("memory.limit_in_bytes",),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
}


class Trees:
    """Folders that look like control groups: the kernel puts the files into a new folder."""

    def __init__(self, root, *kinds: str) -> None:
        self.root = root
        self.groups = Groups({kind: root / kind for kind in kinds}, "ours")
        for kind in kinds:
            folder = root / kind / "ours" / "run"
            folder.mkdir(parents=True)
            for file in FILES[kind]:
                (folder / file).touch()

    def content(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.root.rglob("*") if path.is_file() and path.read_text()}


def test_the_first_generation_has_a_tree_for_each_kind(tmp_path):
    trees = Trees(tmp_path, "memory", "cpu")
    group = trees.groups.make("run", Limits(memory=1000, cpu=1.5))
    assert trees.content() == {
        "memory.limit_in_bytes": "1000",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
    }
    assert group.joined_by == tuple(
        str(tmp_path / kind / "ours" / "run" / "cgroup.procs") for kind in ("memory", "cpu")
    )


def test_the_second_generation_has_one_tree(tmp_path):
    trees = Trees(tmp_path, "unified")
    trees.groups.make("run", Limits(memory=1000, cpu=0.001))
    assert trees.content() == {"memory.max": "1000", "cpu.max": "1000 100000"}


def test_without_limits_there_is_nothing_to_join(tmp_path):
    assert Trees(tmp_path, "memory", "cpu").groups.make("run", Limits()).joined_by == ()


def test_without_rights_limits_are_not_enforced():
    groups = Groups({}, "ours")
    assert not groups.are_enforced
    assert groups.make("run", Limits(memory=1000)).joined_by == ()


@pytest.mark.parametrize("file", ["memory.events", "memory.oom_control"])
def test_a_kill_for_memory_is_told_by_either_generation(tmp_path, file):
    group = Group((tmp_path,))
    assert not group.ran_out_of_memory()
    (tmp_path / file).write_text("under_oom 0\noom_kill 0\n")
    assert not group.ran_out_of_memory()
    (tmp_path / file).write_text("under_oom 0\noom_kill 1\n")
    assert group.ran_out_of_memory()


def test_a_group_that_is_gone_can_be_removed(tmp_path):
    Group((tmp_path / "gone",)).remove()
