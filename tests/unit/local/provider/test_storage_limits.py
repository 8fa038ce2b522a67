"""Limits of ephemeral storage on real containers: of a container, of a pod, of its volumes, and of the whole disk."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.cloud.provider import EVICTED, EmptyDir, Mount, ResourceLimits, Volume
from skysail.local.provider import provider as local
from skysail.local.provider.disk_monitor import DiskMonitor
from skysail.local.storage import disk_usage
from skysail.local.storage.disk_usage import Disk
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import ProviderHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MI = 2**20
V = (Mount(volume="v", path="/v"),)


@pytest.fixture
async def talk(tmp_path, monkeypatch) -> AsyncIterator[ProviderHarness]:
    monkeypatch.setattr(local, "_POLL_SECONDS", 0.05)
    async with local_provider(tmp_path) as provider:
        provider._deps = msgspec.structs.replace(provider._deps, logs=tmp_path / "logs")
        yield ProviderHarness(provider, image="busybox", python_image="python:3")


async def place(provider_harness: ProviderHarness, limit: int | None, *volumes: Volume) -> str:
    uid = str(uuid.uuid4())
    described = msgspec.structs.replace(provider_harness.describe(uid, *volumes), ephemeral_storage=limit)
    await provider_harness.provider.create_sandbox(described)
    return uid


def fill(path: str, mebibytes: int) -> str:
    return f"head -c {mebibytes * MI} /dev/zero > {path}; sleep 1000"


@pytest.mark.parametrize("path", ["/tmp/x", "/root/x", "/tmp/deep/x"])
async def test_a_container_above_its_limit_is_evicted(talk, path):
    uid = await place(talk, 3 * MI)
    run = await talk.start(f"mkdir -p /tmp/deep; {fill(path, 2)}", pod=uid, limits=ResourceLimits(ephemeral_storage=MI))
    end = await talk.end(run)
    assert (end.code, end.reason) == (137, EVICTED)
    assert end.message == 'Container main exceeded its local ephemeral storage limit "1Mi".'


async def test_a_file_that_is_deleted_and_open_counts(talk):
    uid = await place(talk, MI)
    script = f"exec 3> /tmp/x; rm /tmp/x; head -c {2 * MI} /dev/zero >&3; sleep 1000"
    end = await talk.end(await talk.start(script, pod=uid, limits=ResourceLimits(ephemeral_storage=MI)))
    assert end.reason == EVICTED


async def test_a_log_counts(talk, tmp_path):
    uid = await place(talk, MI)
    (tmp_path / "logs" / uid / "main" / "0").mkdir(parents=True)
    (tmp_path / "logs" / uid / "main" / "0" / "0").write_bytes(b"x" * 2 * MI)
    end = await talk.end(await talk.start("sleep 1000", pod=uid, limits=ResourceLimits(ephemeral_storage=MI)))
    assert end.reason == EVICTED


async def test_a_pod_above_the_sum_of_its_limits_is_evicted_with_all_containers(talk):
    uid = await place(talk, 2 * MI, Volume("v", EmptyDir()))
    limits = ResourceLimits(ephemeral_storage=MI)
    quiet = await talk.start("sleep 1000", pod=uid, name="quiet", limits=limits)
    loud = await talk.start(fill("/v/x", 3), pod=uid, name="loud", limits=limits, mounts=V)
    for run in (quiet, loud):
        end = await talk.end(run)
        assert end.reason == EVICTED
        assert end.message == "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi."


async def test_a_volume_above_its_limit_is_told_as_a_kubelet_does(talk):
    uid = await place(talk, None, Volume("v", EmptyDir(size_limit=MI)))
    end = await talk.end(await talk.start(fill("/v/x", 2), pod=uid, mounts=V))
    assert (end.reason, end.message) == (EVICTED, 'Usage of EmptyDir volume "v" exceeds the limit "1Mi".')


async def test_who_keeps_to_the_limits_stays(talk):
    uid = await place(talk, 2 * MI, Volume("v", EmptyDir(size_limit=MI)), Volume("m", EmptyDir(in_memory=True)))
    mounts = (*V, Mount(volume="m", path="/m"))
    script = f"head -c {MI // 2} /dev/zero > /tmp/x; head -c {4 * MI} /dev/zero > /m/x; echo up; sleep 1000"
    run = await talk.start(script, pod=uid, mounts=mounts, limits=ResourceLimits(ephemeral_storage=2 * MI))
    await talk.hear(run, "up")
    place_ = talk.provider._sandbox(uid)
    assert local.storage_limits.excess(place_.pod, place_.volumes, await talk.provider._files(uid)) == ""
    assert await talk.is_running(run)


async def test_nothing_runs_again_in_an_evicted_pod(talk, tmp_path):
    uid = await place(talk, None, Volume("v", EmptyDir()))
    run = await talk.start("touch /v/x; echo up; sleep 1000", pod=uid, mounts=V)
    await talk.hear(run, "up")
    await talk.provider.evict(uid, "Because.")
    assert not list((tmp_path / "volumes").rglob("x"))
    again = await talk.start("true", pod=uid, number=1, mounts=V)
    end = await talk.end(again)
    assert (end.reason, end.message) == (EVICTED, "Because.")
    assert uid not in await talk.provider.disk_usage()


async def test_a_disk_that_fills_loses_the_pod_that_fills_it(talk, tmp_path):
    """A disk of 200 MiB: 20 of them are the reserve."""

    def look(folder: Path) -> Disk:
        used = disk_usage.folders(folder).bytes
        return Disk(size=200 * MI, available=max(200 * MI - used, 0), max_files=0, available_files=0)

    monitor = DiskMonitor(tmp_path, measure=look)
    monitor.register(talk.provider)
    good = await talk.start(f"head -c {20 * MI} /dev/zero > /tmp/x; echo up; sleep 1000")
    await talk.hear(good, "up")
    await monitor.check()
    assert not monitor.has_pressure
    uid = await talk.pod(Volume("v", EmptyDir()))
    bad = await talk.start(f"head -c {165 * MI} /dev/zero > /v/x; echo full; sleep 1000", pod=uid, mounts=V)
    await talk.hear(bad, "full")
    await monitor.check()
    end = await talk.end(bad)
    assert end.reason == EVICTED
    assert end.message.startswith("The node was low on resource: ephemeral-storage. Threshold quantity: 20Mi, avail")
    assert (await talk.is_running(good), monitor.has_pressure) == (True, True)
    assert look(tmp_path).available > 100 * MI
