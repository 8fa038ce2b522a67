from __future__ import annotations

import asyncio
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skysail.cloud.provider import File, Mount, PersistentDisk, ProjectedFiles, SecurityContext, Volume
from skysail.local.bubblewrap import (
    device_nodes,
    isolation,
    masked_paths,
    mounts,
    rootfs,
    sandbox_check,
    seccomp_filter,
    user_namespace,
)
from skysail.local.bubblewrap.container import BwrapContainer, ContainerSpec
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.id_ranges import FIRST
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot
from skysail.local.errors import StartFailed
from tests.conformance.local import default_isolation, local_provider
from tests.conformance.provider_harness import ProviderHarness, outcome

TOOLS = HostTools.find(os.environ["PATH"])
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives ids to pods")


@pytest.fixture(params=["one id", pytest.param("ranges", marks=AS_ROOT)])
def found(request) -> Isolation:
    default_isolation()  # protects the device nodes, in mounts of our own
    return default_isolation() if request.param == "ranges" else Isolation(TOOLS)


async def test_a_sandbox_of_ours_is_verified(found):
    await sandbox_check.verify(found, TOOLS)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda patch: patch.setattr(masked_paths, "READ_ONLY", ()), "/proc/sys/"),
        (lambda patch: patch.setattr(masked_paths, "HIDDEN", ()), "can be read"),
        (lambda patch: patch.setattr(seccomp_filter, "descriptor", lambda: None), "system calls are not filtered"),
    ],
    ids=["settings", "masks", "filter"],
)
async def test_a_sandbox_that_does_not_hold_keeps_the_node_from_starting(found, monkeypatch, change, named):
    script = sandbox_check._script("")
    monkeypatch.setattr(sandbox_check, "_script", lambda outside: script)
    change(monkeypatch)
    with pytest.raises(StartFailed, match=named):
        await sandbox_check.verify(found, TOOLS)


@AS_ROOT
async def test_device_nodes_cannot_be_changed_by_a_pod_that_owns_them(tmp_path, monkeypatch):
    """As in a container without ids for pods. On a node of our own."""
    default_isolation()
    os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    mine = str(tmp_path / "null")
    container_root = ContainerRoot(hostname="h", env=(("PATH", "/usr/bin:/bin"),))
    for is_protected in (False, True):
        if is_protected:
            device_nodes.protect([mine])
            device_nodes.protect([mine])
        monkeypatch.setattr(rootfs, "arguments", with_node(mine))
        spec = ContainerSpec(
            root=container_root, argv=("sh", "-c", "echo x > /node && chmod 600 /node"), max_processes=99
        )
        container = await BwrapContainer.start(spec, TOOLS, time.time)
        assert ((await container.finish()).code == 0) is not is_protected
        assert ((tmp_path / "null").stat().st_mode & 0o777) == 0o600
    mounts.detach(tmp_path / "null")


def with_node(node: str):
    arguments = rootfs.arguments
    return lambda room, host: [*arguments(room, host), "--dev-bind", node, "/node"]


@AS_ROOT
@pytest.mark.parametrize("missing", ["ids", "namespace", "mounts"])
def test_a_machine_that_does_not_allow_it_has_one_id_for_all(monkeypatch, tmp_path, missing):
    def forbidden(*_args, **_options):
        raise PermissionError("not allowed")

    default_isolation()  # in mounts of our own
    if missing == "ids":
        monkeypatch.setattr(isolation, "are_mapped", lambda: False)
    if missing == "namespace":
        monkeypatch.setattr(user_namespace, "create", forbidden)
    if missing == "mounts":
        monkeypatch.setattr(mounts, "mount_tmpfs", forbidden)
    found = Isolation.detect(TOOLS, tmp_path / "mounts", tmp_path / "disks")
    if (tmp_path / "mounts").is_mount():
        mounts.detach(tmp_path / "mounts")
    assert not found.has_ranges
    assert found.allocate() is None


def has_overlay(folder: Path) -> bool:
    """Mount one at `home` in this folder, if the kernel can."""
    for name in ("lower", "upper", "work", "home"):
        (folder / name).mkdir()
    layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    return (
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", folder / "home"], check=False).returncode == 0
    )


@AS_ROOT
async def test_pods_share_one_range_where_the_file_system_of_pvcs_cannot_map_ids(tmp_path):
    """An overlay, as the root of most containers is."""
    default_isolation()
    if not has_overlay(tmp_path):
        pytest.skip("this kernel has no overlay")
    try:
        found = Isolation.detect(TOOLS, tmp_path / "mounts", tmp_path / "home" / "disks")
        assert found.has_ranges
        assert found.shares_ids
        async with local_provider(tmp_path / "home", isolation=default_isolation()) as provider:
            provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
            uid = await provider_harness.pod(
                Volume("data", PersistentDisk("pvc")), Volume("s", ProjectedFiles((File("key", b"secret\n", 0o400),)))
            )
            mounts_of = (Mount(volume="data", path="/data"), Mount(volume="s", path="/s"))
            script = "cat /s/key; touch /data/x ~/x /tmp/x; stat -c %u /data/x"
            assert await provider_harness.result(script, pod=uid, mounts=mounts_of) == (0, "secret\n0\n")
    finally:
        for folder in ("mounts", "home"):
            mounts.detach(tmp_path / folder)


@AS_ROOT
def test_a_limit_of_the_machine_that_is_lower_is_kept(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 50))
    words = []

    class Refused(Exception):
        pass

    def popen(argv, **_options):
        words.extend(argv)
        raise Refused

    monkeypatch.setattr(subprocess, "Popen", popen)
    for most, limit in ((4096, "--nproc=50:50"), (20, "--nproc=20:20")):
        words.clear()
        with pytest.raises(Refused):
            user_namespace.create(TOOLS, owner=FIRST, first=FIRST, max_processes=most)
        assert limit in words


@AS_ROOT
def test_mounts_that_a_process_left_behind_are_removed_by_the_next(tmp_path):
    default_isolation()
    folder = tmp_path / "mounts"
    first = Isolation.detect(TOOLS, folder, tmp_path / "disks")
    ids = first.allocate()
    container_root = ContainerRoot(hostname="h", env=(), binds=(BindMount(str(tmp_path / "disks"), "/data"),))
    _, staged = ids.staging.stage(container_root, ids.namespace(0))
    assert (staged / "0").is_mount()
    first.release(ids)
    Isolation.detect(TOOLS, folder, tmp_path / "disks")
    assert folder.is_mount()
    assert list(folder.iterdir()) == []
    assert str(staged) not in Path("/proc/self/mountinfo").read_text()
    mounts.detach(folder)


@AS_ROOT
def test_a_start_that_fails_leaves_no_mount(tmp_path):
    ids = default_isolation().allocate()
    container_root = ContainerRoot(
        hostname="h", env=(), binds=(BindMount(str(tmp_path), "/a"), BindMount(str(tmp_path / "none"), "/b"))
    )
    before = Path("/proc/self/mountinfo").read_text()
    with pytest.raises(FileNotFoundError):
        ids.staging.stage(container_root, ids.namespace(0))
    assert Path("/proc/self/mountinfo").read_text() == before
    default_isolation().release(ids)


async def test_a_container_that_is_stopped_while_it_starts_ends(tmp_path):
    async with local_provider(tmp_path, isolation=Isolation(TOOLS, max_processes=50)) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        starts = [asyncio.create_task(provider_harness.start("sleep 1000")) for _ in range(5)]
        await asyncio.sleep(0)
        await provider.close()
        await asyncio.gather(*starts, return_exceptions=True)


@AS_ROOT
async def test_files_below_private_folders_are_reached(tmp_path):
    """The home, the cache of environments and volumes may lie below folders that only root may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    async with local_provider(private) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        run = await provider_harness.start("sleep 1000", rights=SecurityContext(user=1000))
        look = ("sh", "-c", "cat /etc/hostname && touch ~/x && echo ok")
        assert (await outcome(await provider.exec(run, look, stdin=False, tty=False)))[:2] == (0, "pod\nok\n")


async def test_a_start_that_is_cancelled_when_the_program_runs_leaves_no_program(monkeypatch):
    is_running = asyncio.Event()

    async def stuck(*_args: object) -> None:
        is_running.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "to_thread", stuck)
    boxes = []
    init = BwrapContainer.__init__
    monkeypatch.setattr(BwrapContainer, "__init__", lambda box, *args: (init(box, *args), boxes.append(box))[0])
    container_root = ContainerRoot(hostname="h", env=(("PATH", "/usr/bin:/bin"),))
    start = asyncio.create_task(
        BwrapContainer.start(ContainerSpec(root=container_root, argv=("sleep", "1000")), TOOLS, time.time)
    )
    await is_running.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert boxes[0].has_ended


@pytest.mark.parametrize("program", [sys.executable, TOOLS.bwrap])
def test_program_that_a_container_can_name_by_its_proc_is_read_only(found, program):
    assert os.statvfs(Path(program).resolve()).f_flag & os.ST_RDONLY


async def test_exec_of_a_script_for_the_interpreter_of_the_node_finds_it_on_a_read_only_mount(found, tmp_path):
    script = r'#!/proc/self/exe\nimport os; print(os.statvfs("/proc/self/exe").f_flag & os.ST_RDONLY)\n'
    async with local_provider(tmp_path, isolation=found) as provider:
        talk = ProviderHarness(provider, image="busybox", python_image="python:3")
        run = await talk.start(f"printf '{script}' > /tmp/x; chmod +x /tmp/x; echo up; sleep 10000")
        await talk.hear(run, "up")
        assert await outcome(await provider.exec(run, ("/tmp/x",), stdin=False, tty=False)) == (0, "1\n", "")
