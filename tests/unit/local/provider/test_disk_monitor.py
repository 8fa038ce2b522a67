"""Pods are evicted before the disk is full: the largest first, and only as many as need be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.local.provider.disk_monitor import DiskMonitor, PodDisk, choose, delay, shortage_of
from skysail.local.storage.disk_usage import Disk, DiskUsage
from tests.support import virtual_time

GI, MI = 2**30, 2**20


def disk(available: int, *, size: int = 100 * GI, files: int = 10**6, available_files: int = 10**6) -> Disk:
    return Disk(size=size, available=available, max_files=files, available_files=available_files)


class Pods:
    """Pods on a disk of their own: an evicted one frees what it has that is not persistent."""

    def __init__(self, size: int, **pods: PodDisk) -> None:
        self.size = size
        self.pods = pods
        self.kept = 0
        self.evicted: dict[str, str] = {}
        self.looks = 0

    def look(self, _: Path) -> Disk:
        self.looks += 1
        used = sum(pod.ephemeral.bytes + pod.persistent.bytes for pod in self.pods.values())
        return disk(self.size - used - self.kept, size=self.size)

    async def disk_usage(self) -> dict[str, PodDisk]:
        return dict(self.pods)

    async def evict(self, pod: str, message: str) -> None:
        self.evicted[pod] = message
        self.kept += self.pods.pop(pod).persistent.bytes


def used(size: int, persistent: int = 0) -> PodDisk:
    return PodDisk(DiskUsage(size, 1), DiskUsage(persistent, 1))


def monitor(*pods: Pods, now=lambda: 0.0) -> DiskMonitor:
    found = DiskMonitor(Path("/"), measure=pods[0].look, now=now)
    for one in pods:
        found.register(one)
    return found


@pytest.mark.parametrize(
    ("found", "is_short"),
    [
        (disk(2 * GI), False),
        (disk(GI - 1), True),
        (disk(0), True),
        (disk(50 * MI, size=400 * MI), False),
        (disk(39 * MI, size=400 * MI), True),
        (disk(50 * GI, available_files=9_999), True),
        (disk(50 * GI, files=0, available_files=0), False),
    ],
)
def test_a_part_of_the_disk_stays_free(found, is_short):
    assert bool(shortage_of(found)) is is_short


def test_the_message_is_a_kubelets():
    assert shortage_of(disk(512 * MI)) == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi."
    )
    assert shortage_of(disk(50 * GI, available_files=7)).startswith("The node was low on resource: inodes. Threshold")


@given(st.integers(0, 10**13))
def test_no_disk_is_filled_between_two_looks(available):
    found = disk(available, size=10**14)
    above = max(available - GI, 0)
    assert 0.1 <= delay(found) <= 5.0
    assert delay(found) == 0.1 or delay(found) * 4 * GI <= above


async def test_the_largest_pod_goes_and_the_others_stay():
    pods = Pods(10 * GI, small=used(GI), large=used(7 * GI), other=used(GI + 100 * MI))
    found = monitor(pods)
    assert not found.has_pressure
    await found.check()
    assert list(pods.evicted) == ["large"]
    assert pods.evicted["large"].endswith(" The pod was using 7Gi.")
    assert found.has_pressure


async def test_pods_go_until_enough_is_free_over_all_providers():
    other = Pods(0, b=used(2 * GI))
    pods = Pods(10 * GI, a=used(3 * GI), c=used(GI))
    pods.kept = 7 * GI - 200 * MI
    await monitor(pods, other).check()
    assert list(pods.evicted) == ["a"]
    assert other.evicted == {}
    pods.kept = 9 * GI + 500 * MI
    await monitor(pods, other).check()
    assert (list(pods.evicted), list(other.evicted)) == (["a", "c"], ["b"])


async def test_a_pod_that_frees_nothing_stays():
    pods = Pods(10 * GI, a=used(MI), b=used(0))
    pods.kept = 10 * GI - 5 * MI
    found = monitor(pods)
    await found.check()
    assert pods.evicted == {}
    assert found.has_pressure


async def test_a_pod_that_fills_its_pvc_is_ended_after_those_that_free_something():
    pods = Pods(10 * GI, a=used(0, 9 * GI), b=used(20 * MI), c=used(MI))
    pods.kept = 900 * MI
    await monitor(pods).check()
    assert list(pods.evicted) == ["b", "a"]


def test_files_count_where_the_disk_lacks_them():
    full = disk(50 * GI, available_files=5)
    many, large = PodDisk(DiskUsage(MI, 500_000)), PodDisk(DiskUsage(5 * GI, 3))
    pods = Pods(0)
    assert choose([(pods, "many", many), (pods, "large", large)], full) == (pods, "many", many)
    assert choose([(pods, "many", many), (pods, "large", large)], disk(0)) == (pods, "large", large)
    assert choose([], full) is None


def test_pressure_lasts_for_a_while_after_there_is_room_again():
    async def play() -> None:
        pods = Pods(10 * GI, a=used(9 * GI + 500 * MI))
        found = monitor(pods, now=asyncio.get_running_loop().time)
        task = asyncio.create_task(found.run())
        await asyncio.sleep(1)
        assert (list(pods.evicted), found.has_pressure) == (["a"], True)
        await asyncio.sleep(50)
        assert found.has_pressure
        await asyncio.sleep(20)
        assert not found.has_pressure
        task.cancel()

    virtual_time.run(play())


def test_one_mistake_does_not_end_the_watch():
    async def play() -> None:
        pods = Pods(10 * GI, a=used(9 * GI + 500 * MI))
        asked = 0

        async def broken() -> dict[str, PodDisk]:
            nonlocal asked
            asked += 1
            raise RuntimeError("broken")

        pods.disk_usage = broken  # type: ignore[method-assign]
        task = asyncio.create_task(monitor(pods).run())
        await asyncio.sleep(1)
        assert asked > 1
        task.cancel()

    virtual_time.run(play())
