"""What lies in a volume is bound, and never where a link leads that somebody put there meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from skysail.cloud.provider import EmptyDir, HostPath, Mount, Volume
from skysail.local import files
from skysail.local.bubblewrap.container import BwrapContainer, ContainerSpec
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot
from skysail.local.storage.volumes import VolumePaths, Volumes

TOOLS = HostTools.find(os.environ["PATH"])


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    """One of the pod's own, and a folder of the machine in which another pod may write."""
    (tmp_path / "open" / "part").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    volume_paths = VolumePaths(
        folder=tmp_path / "volumes", memory=tmp_path / "memory", disks=tmp_path / "disks", allowed=(tmp_path / "open",)
    )
    made = Volumes("uid", volume_paths)
    made.make([Volume("own", EmptyDir()), Volume("machine", HostPath(str(tmp_path / "open" / "part")))])
    return made


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208 (names are wanted)


async def said(bind_mount: BindMount, *argv: str, tools: HostTools = TOOLS) -> tuple[int, str]:
    """The exit code, and what the program says or why there is none."""
    container_root = ContainerRoot(hostname="h", env=(("PATH", "/usr/bin:/bin"),), binds=(bind_mount,))
    container = await BwrapContainer.start(ContainerSpec(root=container_root, argv=argv), tools, time.time)
    exit_result = await container.finish()
    return exit_result.code, exit_result.failure or container.output.last_line()


PARTS = [Mount(volume="own", path="/v", sub_path="a/b"), Mount(volume="machine", path="/v")]


@pytest.mark.parametrize("mount", PARTS, ids=["part", "folder"])
async def test_a_part_of_a_volume_is_seen_and_written_to(volumes, mount):
    before = descriptors()
    bind = volumes.bind(mount)
    assert await said(bind, "sh", "-c", "echo x > /v/file; cat /v/file") == (0, "x")
    assert (Path(bind.source) / "file").read_text() == "x\n"
    assert descriptors() == before


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("mount", PARTS, ids=["part", "folder"])
async def test_a_link_that_comes_between_the_look_and_the_start_is_not_followed(volumes, mount, depth, tmp_path):
    before = descriptors()
    bind = volumes.bind(mount)
    way = Path(bind.source)
    swapped = (way, way.parent)[depth]
    swapped.rename(tmp_path / "away")
    swapped.symlink_to(tmp_path / "secret")
    (tmp_path / "secret" / way.name).mkdir(exist_ok=True)
    with pytest.raises(OSError, match=r"link|Not a directory"):
        await said(bind, "cat", "/v/file")
    assert descriptors() == before


def test_no_folder_is_made_behind_a_link(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    with pytest.raises(OSError, match=r"link|Not a directory"):
        files.open_nofollow(tmp_path / "in" / "link" / "new", can_make=True)
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_bubblewrap_that_is_too_old_is_told_with_the_fix(volumes, tmp_path):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho 'bwrap: Unknown option --bind-fd' >&2; exit 1\n")
    old.chmod(0o755)
    tools = msgspec.structs.replace(TOOLS, bwrap=str(old))
    _, why = await said(volumes.bind(PARTS[0]), "true", tools=tools)
    assert "update it" in why


@pytest.mark.parametrize(
    ("argv", "code", "printed", "failure"),
    [
        (("no-such-program",), 128, b"", '"no-such-program" cannot be started: executable file not found in $PATH'),
        (("sh", "-c", "echo 'bwrap: mine' >&2"), 0, b"bwrap: mine\n", ""),
        (("sh", "-c", "echo 'bwrap: a' >&2; sleep 0.2; echo b >&2; exit 3"), 3, b"bwrap: a\nb\n", ""),
    ],
)
async def test_the_log_has_only_what_the_program_printed(argv, code, printed, failure):
    container_root = ContainerRoot(hostname="h", env=(("PATH", "/usr/bin:/bin"),))
    container = await BwrapContainer.start(ContainerSpec(root=container_root, argv=argv), TOOLS, time.time)
    exit_result = await container.finish()
    output = b"".join([piece.data async for piece in container.output.replay()])
    assert (exit_result.code, output, exit_result.failure) == (code, printed, failure)
