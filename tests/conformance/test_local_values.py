"""Values that a tenant chooses, on the provider `local`: none becomes an option of bubblewrap or a path outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.cloud.errors import ProviderError, Rejected
from skysail.cloud.provider import EmptyDir, File, Mount, ProjectedFiles, Volume
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import ProviderHarness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

INJECTED = "x\0--ro-bind\0/\0/host"
_LOOK = "ls /host 2>/dev/null; true"


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[ProviderHarness]:
    async with local_provider(tmp_path) as provider:
        yield ProviderHarness(provider, image="busybox:1.36", python_image="python:3")


@pytest.mark.parametrize(
    "wishes",
    [
        {"env": (("A", INJECTED),)},
        {"env": ((INJECTED, "a"),)},
        {"env": (("", "a"),)},
        {"env": (("A=B", "a"),)},
        {"args": (INJECTED,)},
        {"args": ("x",) * 9000},
        {"env": tuple((f"A{number}", "x") for number in range(3100))},
        {"working_dir": f"/{INJECTED}"},
        {"mounts": (Mount(volume="v", path=f"/{INJECTED}"),)},
        {"mounts": (Mount(volume="v", path="/v", sub_path=INJECTED),)},
        {"message_path": f"/{INJECTED}"},
    ],
)
async def test_a_value_that_cannot_be_passed_is_refused_with_a_sentence(talk, wishes):
    uid = await talk.pod(Volume("v", EmptyDir()))
    with pytest.raises(Rejected) as caught:
        await talk.start(_LOOK, pod=uid, **wishes)
    assert caught.value.reason == "CreateContainerConfigError"
    assert "\0" not in str(caught.value)
    assert (await talk.provider.list()).runs == {}


async def test_a_host_name_with_a_nul_is_refused(talk):
    uid = str(uuid.uuid4())
    await talk.provider.create_sandbox(msgspec.structs.replace(talk.describe(uid), hostname=INJECTED))
    with pytest.raises(Rejected, match="NUL"):
        await talk.start(_LOOK, pod=uid)


async def test_a_file_of_a_volume_with_a_nul_is_refused(talk):
    with pytest.raises(ProviderError, match="is not a path inside a volume"):
        await talk.pod(Volume("v", ProjectedFiles((File("a\0b", b""),))))


@pytest.mark.parametrize("word", ["--ro-bind", "--", "-", "a\nb", "\x01\x1b[31m", "$(id)", "`id`", "%s", "ä☃"])
async def test_what_looks_like_an_option_arrives_as_it_is(talk, word):
    code, said = await talk.result('printf %s "$A|$0|$1"', env=(("A", word),), args=(word, word))
    assert (code, said) == (0, f"{word}|{word}|{word}")


@pytest.mark.parametrize(
    "path", ["/../oldroot{0}/made", "/../../oldroot{0}/made", "/a/../../oldroot{0}/made", "../newroot{0}/made"]
)
@pytest.mark.parametrize("field", ["mount", "working_dir", "message_path"])
async def test_a_path_with_dots_makes_nothing_on_the_machine(talk, tmp_path, path, field):
    target = path.format(tmp_path)
    uid = await talk.pod(Volume("v", EmptyDir()))
    wishes = {"mounts": (Mount(volume="v", path=target),)} if field == "mount" else {field: target}
    await talk.result("true", pod=uid, **wishes)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("link", ["/oldroot{0}", "../../../../oldroot{0}", "/{0}"])
@pytest.mark.parametrize("field", ["mount", "working_dir", "message_path"])
async def test_a_link_in_a_volume_leads_no_mount_point_to_the_machine(talk, tmp_path, link, field):
    uid = await talk.pod(Volume("v", EmptyDir()), Volume("w", EmptyDir()))
    mounts = (Mount(volume="v", path="/v"),)
    assert (await talk.result(f"ln -s {link.format(tmp_path)} /v/out", pod=uid, mounts=mounts))[0] == 0
    wishes: dict = {"mounts": mounts, field: "/v/out/made"}
    if field == "mount":
        wishes = {"mounts": (*mounts, Mount(volume="w", path="/v/out/made"))}
    try:
        await talk.result("true", pod=uid, number=1, **wishes)
    except Rejected as refused:
        said = str(refused)
    else:
        said = "leads out of the volume"
    assert not (tmp_path / "made").exists()
    assert "leads out of the volume" in said


async def test_mounts_inside_of_volumes_and_working_directories_still_work(talk):
    uid = await talk.pod(Volume("v", EmptyDir()), Volume("w", EmptyDir()))
    mounts = (Mount(volume="v", path="/v"), Mount(volume="w", path="/v/deep/w"))
    code, said = await talk.result("pwd; touch here; ls /v/deep", pod=uid, mounts=mounts, working_dir="/v/some/where")
    assert (code, said) == (0, "/v/some/where\nw\n")
    assert await talk.result("ln -s some /v/link", pod=uid, number=1, mounts=mounts) == (0, "")
    code, said = await talk.result("ls", pod=uid, number=2, mounts=mounts, working_dir="/v/link/where")
    assert (code, said) == (0, "here\n")


_LOADER = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "GCONV_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "BASH_ENV",
    "LD_DEBUG",
)


@pytest.mark.parametrize("terminal", [False, True])
async def test_the_environment_of_a_pod_reaches_no_process_outside(talk, terminal):
    env = (*((name, f"/marked/{name}") for name in _LOADER if name != "LD_DEBUG"), ("PATH", "/marked:/usr/bin:/bin"))
    run = await talk.start("echo up; sleep 1000", env=env, tty=terminal)
    await talk.hear(run, "up")
    session = await talk.provider.exec(run, ("sleep", "1000"), stdin=False, tty=terminal)
    try:
        outside = [environ for inside, environ in _descendants(os.getpid()) if not inside]
        assert outside
        assert not [environ for environ in outside if b"marked" in environ]
        assert [environ for inside, environ in _descendants(os.getpid()) if inside and b"marked" in environ]
    finally:
        await session.kill()
        await session.close()


async def test_the_loader_is_told_by_the_pod_only_in_its_own_program(talk):
    run = await talk.start("exec true", env=(("LD_DEBUG", "libs"),))
    await talk.end(run)
    lines = (await talk.said(run, "stderr")).splitlines()
    assert len({line.split(":")[0].strip() for line in lines if ":" in line}) == 1


@pytest.mark.parametrize("command", [("a\0b",), ("sh", "-c", "\0"), ("\0",)])
async def test_exec_with_a_nul_is_refused_with_a_sentence(talk, command):
    run = await talk.start("echo up; sleep 1000")
    await talk.hear(run, "up")
    with pytest.raises(Rejected, match=r"^A NUL byte .* file\.$"):
        await talk.provider.exec(run, command, stdin=False, tty=False)


async def test_exec_without_a_command_is_refused(talk):
    run = await talk.start("echo up; sleep 1000")
    await talk.hear(run, "up")
    with pytest.raises(Rejected, match="the command is empty"):
        await talk.provider.exec(run, (), stdin=False, tty=False)


def _descendants(pid: int) -> Iterator[tuple[bool, bytes]]:
    """Yield for each process below this one whether it is in a container, and its environment at start.

    A process may end meanwhile: a cluster of other tests can be among the descendants.
    """
    ours = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 (no path object needed)
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                namespace = os.stat(f"/proc/{child}/ns/pid").st_ino  # noqa: PTH116 (as above)
                yield namespace != ours, Path(f"/proc/{child}/environ").read_bytes()
            yield from _descendants(int(child))


async def test_many_bad_starts_leave_no_descriptors(talk):
    uid = await talk.pod()

    async def start() -> None:
        with pytest.raises(Rejected):
            await talk.start(_LOOK, pod=uid, env=(("A", INJECTED),))
        await asyncio.sleep(0)

    await start()  # the pod keeps the descriptor of its user namespace from its first start on
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names are wanted)
    for _ in range(20):
        await start()
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 (as above)
