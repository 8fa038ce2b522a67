"""Hostile pods on the provider `local`, as in a cluster: run inside its namespaces by `test_sandbox`."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.provider import Container, EmptyDir, Mount, RunId, Running, SecurityContext, Volume
from skysail.local.addresses import MOUNT_FOLDER, RUN_FOLDER
from skysail.local.bubblewrap import sandbox_check
from skysail.local.bubblewrap.cgroups import Bounds, CgroupManager
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.id_ranges import FIRST, are_mapped
from skysail.local.bubblewrap.isolation import Isolation
from skysail.local.images.environments import open_loaded_images
from skysail.local.network.pod_network import PodNetwork
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import ProviderHarness, outcome
from tests.security import sandbox_attempts
from tests.support import image_files, registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROGRAM = Path(sandbox_attempts.__file__).read_text()
MAX_PROCESSES = 120
MIN_INPUTS = 10
TABLES = [table.__name__ for table in sandbox_attempts.TABLES]
# Those that depend on the root. What a container writes to the root of an image is on the disk, not in memory.
FILE_TABLES = ("kernel_settings", "masked_files", "device_nodes", "system_calls", "host_ids")
# In the root of an image these files are the image's, and what is changed is a copy of the container.
OF_THE_IMAGE = frozenset({"a file of the machine's root", "a program of the machine's root"})
# Everything that a pod may be: root, another user, and root without any capability.
WHO = {
    "root": SecurityContext(),
    "user": SecurityContext(user=1000, group=1000),
    "nothing": SecurityContext(drop=frozenset({"ALL"})),
}


@pytest.fixture
def isolation(tmp_path: Path) -> Isolation:
    tools = HostTools.find(os.environ["PATH"])
    return Isolation.detect(tools, Path(MOUNT_FOLDER), tmp_path / "disks", max_processes=MAX_PROCESSES)


@pytest.fixture
async def talk(tmp_path: Path, isolation: Isolation) -> AsyncIterator[ProviderHarness]:
    network = PodNetwork()
    await network.open()
    async with local_provider(tmp_path, network=network, isolation=isolation) as provider:
        yield ProviderHarness(provider, image="busybox", python_image="python:3")
    await network.close()


def container(table: str, security: SecurityContext) -> Container:
    return Container(name="main", image="busybox", command=command(table), rights=security)


def command(table: str) -> tuple[str, ...]:
    return ("/usr/bin/python3", "-c", PROGRAM, table, str(MAX_PROCESSES))


def judge(area: str, printed: str, its_own: frozenset[str] = frozenset()) -> None:
    """Print each attempt for `test_sandbox`, and fail where one succeeded. Attempts in `its_own` are allowed."""
    rows = [row for row in map(json.loads, printed.splitlines()) if row[0] not in its_own]
    for name, why in rows:
        print(json.dumps(["attempt", area, name, why is not None]))  # noqa: T201 (read by test_sandbox)
    assert [name for name, why in rows if why is None] == []
    assert len(rows) >= MIN_INPUTS


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("table", TABLES)
async def test_a_hostile_program_does_not_get_out(talk: ProviderHarness, table: str, who: str):
    before = machine()
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(run, container(table, WHO[who]))
    end = await talk.end(run)
    assert end.code == 0, await talk.said(run, "stderr")
    judge(f"{table}: program as {who}", await talk.said(run))
    assert machine() == before


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("table", TABLES)
async def test_a_hostile_command_beside_the_program_does_not_get_out(talk: ProviderHarness, table: str, who: str):
    before = machine()
    run = await talk.start("sleep 10000", rights=WHO[who])
    code, printed, errors = await outcome(await talk.provider.exec(run, command(table), stdin=False, tty=False))
    assert code == 0, errors
    judge(f"{table}: exec as {who}", printed)
    assert machine() == before
    assert isinstance(await talk.provider.state(run), Running)


@pytest.mark.parametrize("user", [0, 1, 2, 33, 100, 1000, 1234, 65532, 65534, 65535])
async def test_a_user_of_a_pod_has_no_id_of_a_user_of_the_machine(
    talk: ProviderHarness, isolation: Isolation, user: int
):
    run = await talk.start("sleep 10000", rights=SecurityContext(user=user))
    box = talk.provider._known(run).running
    ids = host_ids(box.program())
    if isolation.has_ranges:
        assert min(ids) >= FIRST
    else:
        assert ids == {0}, "the one id of the cluster's user namespace, which is no root of the machine"
        assert os.getuid() == 0
        assert not are_mapped()


async def test_an_unconfined_container_may_make_calls_that_are_filtered_otherwise(talk: ProviderHarness):
    confined, free = SecurityContext(), SecurityContext(is_unconfined=True)
    assert (await talk.result("unshare --user true", rights=confined))[0] != 0
    assert await talk.result("unshare --user true", rights=free) == (0, "")
    run = await talk.start("sleep 10000", rights=free)
    grep = ("grep", "Seccomp:", "/proc/self/status")
    code, said, _ = await outcome(await talk.provider.exec(run, grep, stdin=False, tty=False))
    assert (code, said.split()) == (0, ["Seccomp:", "0"])


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of the machine, in a folder that everybody may write: hostile links of an image lead there."""
    folder = tmp_path / "canary"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("canary")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def loaded(tmp_path: Path, canary: Path) -> str:
    """An image with its own root, and links in it that lead out where a sandbox would follow them on the machine."""
    links = [
        *(
            (f"links/{number}", target)
            for number, target in enumerate((canary, f"/oldroot{canary}", "../" * 30 + str(canary)))
        ),
        ("etc/resolv.conf", f"/oldroot{canary}/resolv"),
        ("etc/hosts", f"{'../' * 30}{canary}/file"),
        ("var/tmp", f"/oldroot{canary}/tmp"),
        ("run", f"/newroot/..{canary}/run"),
        ("tmp", f"/oldroot{canary}/tmp"),
    ]
    hostile = image_files.layer_of(*((image_files.entry(name, b"2", link=str(link)), b"") for name, link in links))
    shell = registry.layer({**image_files.programs(), "etc/passwd": b"app:x:1000:1000::/home:/bin/sh\n"})
    image = registry.image({"Cmd": ["/bin/sh"]}, image_files.python_layer(), shell, hostile)
    folder = image_files.write_layout(tmp_path / "layout", image, "hostile:1")
    open_loaded_images(tmp_path / "home").load(folder, (), lambda _: None)
    return "hostile:1"


@pytest.mark.parametrize("who", ["root", "user"])
async def test_a_hostile_program_in_an_image_root_does_not_get_out(
    talk: ProviderHarness, loaded: str, canary: Path, who: str
):
    before = machine()
    pod = await talk.pod()
    for number, table in enumerate(FILE_TABLES):
        run = RunId(pod, "main", number)
        await talk.provider.start(
            run,
            Container(name="main", image=loaded, command=command(table), rights=WHO[who], working_dir="/links/1/new"),
        )
        end = await talk.end(run)
        assert end.code == 0, await talk.said(run, "stderr")
        judge(f"{table}: image root as {who}", await talk.said(run), its_own=OF_THE_IMAGE)
    assert machine() == before
    assert contents(canary) == {"file": "canary"}


async def test_volumes_at_links_of_an_image_root_stay_in_the_container(
    talk: ProviderHarness, loaded: str, canary: Path
):
    volume = Volume("data", EmptyDir())
    for number in range(3):
        run = RunId(await talk.pod(volume), "main", 0)
        mounts = (Mount(volume="data", path=f"/links/{number}/deep/data"),)
        script = f"echo x > /links/{number}/deep/data/file && cat /links/{number}/deep/data/file /etc/hosts"
        container = Container(name="main", image=loaded, command=("/bin/sh", "-c", script), mounts=mounts)
        await talk.provider.start(run, container)
        assert (await talk.end(run)).code == 0, await talk.said(run, "stderr")
        assert "localhost" in await talk.said(run)
    assert contents(canary) == {"file": "canary"}


async def test_an_image_root_is_shared_and_never_changed(talk: ProviderHarness, loaded: str, tmp_path: Path):
    (root,) = (tmp_path / "home" / "loaded-images").glob("*/root")
    before = {str(path): path.lstat().st_mtime_ns for path in root.rglob("*")}
    writer = RunId(await talk.pod(), "main", 0)
    change = "echo changed > /etc/passwd; echo new > /etc/new; : > /usr/bin/env; cat /etc/passwd /etc/new; sleep 10000"
    await talk.provider.start(writer, Container(name="main", image=loaded, command=("/bin/sh", "-c", change)))
    await talk.hear(writer, "new")
    reader = RunId(await talk.pod(), "main", 0)
    look = "cat /etc/passwd; ls /etc; /usr/bin/env"
    await talk.provider.start(reader, Container(name="main", image=loaded, command=("/bin/sh", "-c", look)))
    assert (await talk.end(reader)).code == 0
    seen = await talk.said(reader)
    assert "app:x:1000" in seen
    assert "new" not in seen.split()
    assert {str(path): path.lstat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.fixture
async def bounded(tmp_path: Path, isolation: Isolation) -> AsyncIterator[ProviderHarness]:
    cgroups = CgroupManager.mount(Path(RUN_FOLDER) / "groups", f"skysail-test-{uuid.uuid4()}")
    cgroups.bound_all(Bounds(memory=400 << 20, processes=250))
    if not cgroups.are_bounded:
        pytest.skip("only root bounds all pods together")
    async with local_provider(tmp_path, cgroups, isolation=isolation) as provider:
        yield ProviderHarness(provider, image="busybox", python_image="python:3")
    assert "skysail-test" not in own_groups()


async def test_the_memory_of_all_pods_together_is_bounded(bounded: ProviderHarness):
    """Pods without a limit of their own: the kernel ends one of them, and never the agent."""
    fill = "import time; held = [bytearray(1 << 20) for _ in range(300)]; print('full', flush=True); time.sleep(10000)"
    runs = [RunId(await bounded.pod(), "main", 0) for _ in range(4)]
    for run in runs:
        await bounded.provider.start(
            run, Container(name="main", image="busybox", command=("/usr/bin/python3", "-c", fill))
        )
    ends = await asyncio.wait([asyncio.create_task(bounded.end(run)) for run in runs], return_when="FIRST_COMPLETED")
    assert {task.result().reason for task in ends[0]} == {"OOMKilled"}
    for task in ends[1]:
        task.cancel()


async def test_the_processes_of_all_pods_together_are_bounded(bounded: ProviderHarness):
    script = "i=0; while [ $i -lt 100 ]; do sleep 10000 & i=$((i+1)); done; echo all; wait"
    for _ in range(2):
        await bounded.hear(await bounded.start(script), "all")
    code, said = await bounded.result(script)
    assert (code == 0, said) == (False, "")


async def test_the_sandbox_is_verified(isolation: Isolation):
    await sandbox_check.verify(isolation, HostTools.find(os.environ["PATH"]))


def own_groups() -> str:
    return Path("/proc/self/cgroup").read_text()


def host_ids(pid: int) -> set[int]:
    seen = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {int(one) for line in seen if line.startswith(("Uid:", "Gid:")) for one in line.split()[1:]}


def machine() -> dict[str, object]:
    """What a hostile pod could change outside."""
    nodes = [Path("/dev", name).stat() for name in ("null", "zero", "full", "random", "urandom", "tty")]
    return {
        "core_pattern": Path("/proc/sys/kernel/core_pattern").read_text(),
        "hostname": os.uname().nodename,
        "nodes": [(one.st_mode, one.st_uid, one.st_gid) for one in nodes],
        "passwd": oct(Path("/etc/passwd").stat().st_mode),
    }
