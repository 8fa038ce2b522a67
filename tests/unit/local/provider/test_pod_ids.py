"""Users, groups and files of pods that have host ids of their own."""

from __future__ import annotations

import os

import pytest

from skysail.cloud.errors import Rejected
from skysail.cloud.provider import (
    EmptyDir,
    File,
    HostPath,
    Mount,
    PersistentDisk,
    Pod,
    ProjectedFiles,
    RunId,
    SecurityContext,
    Volume,
)
from skysail.local.bubblewrap.id_ranges import FIRST
from skysail.local.bubblewrap.staging import Staging
from tests.conformance.local import default_isolation, local_provider
from tests.conformance.provider_harness import ProviderHarness, outcome

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives ids to pods")
DATA = Mount(volume="data", path="/data")


@pytest.fixture(params=["mapped", "shifted"])
async def talk(request, tmp_path, monkeypatch):
    """On a file system that maps ids, and on one that does not, where files are given to the pod's host ids."""
    isolation = default_isolation()
    if request.param == "shifted":
        monkeypatch.setattr(Staging, "can_map", lambda *_: False)
        monkeypatch.setattr(isolation, "shares_ids", True)
    async with local_provider(tmp_path) as provider:
        yield ProviderHarness(provider, image="busybox", python_image="python:3")


async def pod(talk, *volumes, uid="pod", **wishes) -> str:
    await talk.provider.create_sandbox(
        Pod(uid=uid, namespace="default", name=uid, hostname=uid, volumes=volumes, **wishes)
    )
    return uid


async def result(talk, uid, script, *mounts, name="main", user=0, group=None):
    security = SecurityContext(user=user, group=group)
    return await talk.result(script, pod=uid, name=name, mounts=mounts or (DATA,), rights=security)


async def test_a_pvc_holds_the_files_of_several_pods_and_users(talk):
    """As on any cluster: the ids on the PVC are the ids that the pods see."""
    a = await pod(talk, Volume("data", PersistentDisk("pvc-1")), uid="a")
    b = await pod(talk, Volume("data", PersistentDisk("pvc-1")), uid="b")
    script = "cd /data; echo a > shared; chown 1000:2000 shared; mkdir own; echo a > own/root; chmod 755 own"
    assert await result(talk, a, script) == (0, "")
    script = "cd /data; echo b >> shared; cat shared; rm -f own/root 2>/dev/null || echo kept; stat -c %u:%g shared own"
    assert await result(talk, b, script, user=1000) == (0, "a\nb\nkept\n1000:2000\n0:0\n")
    assert await result(talk, a, "cat /data/shared; echo c > /data/own/root", name="again") == (0, "a\nb\n")


async def test_a_user_writes_to_a_new_pvc_and_to_an_empty_dir(talk):
    uid = await pod(
        talk,
        Volume("data", PersistentDisk("pvc-2")),
        Volume("scratch", EmptyDir()),
        Volume("m", EmptyDir(in_memory=True)),
    )
    mounts = (DATA, Mount(volume="scratch", path="/s"), Mount(volume="m", path="/m"))
    script = "touch /data/x /s/x /m/x /tmp/x ~/x /x && stat -c %u:%g /data/x /s/x /m/x ~/x"
    assert await result(talk, uid, script, *mounts, user=1000, group=7) == (0, "1000:7\n" * 4)


async def test_containers_of_a_pod_with_different_users_share_an_empty_dir(talk):
    uid = await pod(talk, Volume("data", EmptyDir()))
    assert await result(talk, uid, "echo from init > /data/x; chown 33 /data/x", name="init") == (0, "")
    assert await result(talk, uid, "cat /data/x; echo more >> /data/x && stat -c %u /data/x", user=33) == (
        0,
        "from init\n33\n",
    )


async def test_root_of_a_pod_becomes_other_users_and_gives_files_away(talk):
    uid = await pod(talk, Volume("data", EmptyDir()))
    script = (
        "cd /data; touch a; chown 5:6 a; stat -c %u:%g a; chown 70000 a 2>/dev/null || echo no; "
        "setpriv --reuid 1000 --regid 2000 --groups 3000 sh -c 'id -u; id -g; id -G; touch b; stat -c %u:%g b'"
    )
    assert await result(talk, uid, script) == (0, "5:6\nno\n1000\n2000\n2000 3000\n1000:2000\n")


@pytest.mark.parametrize(
    "source", [PersistentDisk("pvc-3"), EmptyDir(), EmptyDir(in_memory=True)], ids=["pvc", "disk", "memory"]
)
async def test_the_group_of_a_pods_volumes_lets_every_user_write(talk, source):
    uid = await pod(talk, Volume("data", source), fs_group=2000, groups=frozenset({3000}))
    script = "id -G; touch /data/x; mkdir /data/d; stat -c %g /data /data/x /data/d; stat -c %A /data"
    code, said = await result(talk, uid, script, user=1000, group=7)
    groups, *owners, mode = said.splitlines()
    assert code == 0
    assert sorted(groups.split(), key=int) == ["7", "2000", "3000"]
    assert owners == ["2000"] * 3
    assert mode[5:7] == "ws"


async def test_the_group_is_given_to_files_that_are_there_and_no_link_is_followed(talk, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o600)
    a = await pod(talk, Volume("data", PersistentDisk("pvc-4")), uid="a")
    script = f"cd /data; mkdir -m 700 d; echo x > d/f; chmod 600 d/f; ln -s {outside} link; ln -s {tmp_path} d/link"
    assert await result(talk, a, script) == (0, "")
    b = await pod(talk, Volume("data", PersistentDisk("pvc-4")), uid="b", fs_group=2000)
    assert await result(talk, b, "cat /data/d/f; stat -c %g:%a /data/d/f", user=1000) == (0, "x\n2000:660\n")
    found = outside.stat()
    assert (found.st_gid, found.st_mode & 0o777) == (0, 0o600)


async def test_a_pvc_that_has_the_group_already_is_left_alone_where_the_policy_says_so(talk):
    uid = await pod(talk, Volume("data", PersistentDisk("pvc-5")), uid="a", fs_group=2000)
    assert await result(talk, uid, "touch /data/x; chgrp 0 /data/x") == (0, "")
    uid = await pod(talk, Volume("data", PersistentDisk("pvc-5")), uid="b", fs_group=2000, keeps_matching_groups=True)
    assert await result(talk, uid, "stat -c %g /data/x") == (0, "0\n")
    uid = await pod(talk, Volume("data", PersistentDisk("pvc-5")), uid="c", fs_group=2000)
    assert await result(talk, uid, "stat -c %g /data/x") == (0, "2000\n")


@pytest.mark.parametrize(
    ("user", "fs_group", "can_read"), [(0, None, True), (1000, None, False), (1000, 2000, True), (0, 2000, True)]
)
async def test_a_secret_file_of_mode_0400_is_for_root_and_the_pods_group(talk, user, fs_group, can_read):
    content = ProjectedFiles((File("key", b"secret\n", 0o400), File("deep/key", b"secret\n", 0o400)))
    uid = await pod(talk, Volume("data", content), fs_group=fs_group)
    wanted = (0, "secret\nsecret\n") if can_read else (1, "")
    script = "cat /data/key /data/deep/key 2>/dev/null"
    assert await result(talk, uid, script, user=user) == wanted
    await talk.provider.update(uid, "data", (File("key", b"next\n", 0o400),))
    again = await result(talk, uid, "cat /data/key 2>/dev/null", user=user, name="again")
    assert again == ((0, "next\n") if can_read else (1, ""))


async def test_a_file_of_a_volume_is_mounted_alone(talk):
    uid = await pod(
        talk, Volume("data", ProjectedFiles((File("a", b"a\n"), File("b", b"b\n")))), Volume("s", EmptyDir())
    )
    mounts = (
        Mount(volume="data", path="/etc/conf/a", sub_path="a"),
        Mount(volume="s", path="/part", sub_path="x/y"),
    )
    for user in (1000, 0):
        said = await result(
            talk, uid, "cat /etc/conf/*; touch /part/f$$ && echo ok", *mounts, user=user, name=f"u{user}"
        )
        assert said == (0, "a\nok\n")


async def test_output_is_opened_again_by_its_name(talk):
    uid = await pod(talk)
    script = "echo one > /dev/stdout; echo two > /dev/stderr; echo three > /proc/self/fd/1"
    run = RunId(uid, "main", 0)
    await talk.provider.start(run, talk.shell(script, rights=SecurityContext(user=1000)))
    await talk.end(run)
    assert (await talk.said(run), await talk.said(run, "stderr")) == ("one\nthree\n", "two\n")


@pytest.mark.parametrize("tty", [False, True])
async def test_a_command_beside_the_program_has_its_ids_and_groups(talk, tty):
    uid = await pod(talk, fs_group=2000, groups=frozenset({3000}))
    run = RunId(uid, "main", 0)
    await talk.provider.start(run, talk.shell("sleep 10000", rights=SecurityContext(user=1000, group=7)))
    look = ("sh", "-c", "id -u; id -g; id -G; echo x > /dev/stdout; grep -c '^Seccomp:.2$' /proc/self/status")
    code, said, _ = await outcome(await talk.provider.exec(run, look, stdin=tty, tty=tty))
    assert (code, said.split()) == (0, ["1000", "7", "7", "2000", "3000", "x", "1"])


async def test_the_folders_of_the_machine_stay_as_they_are(talk, tmp_path):
    (tmp_path / "allowed").mkdir(mode=0o755)
    (tmp_path / "allowed" / "x").write_text("x\n")
    uid = await pod(talk, Volume("data", HostPath(str(tmp_path / "allowed"))), fs_group=2000)
    assert await result(talk, uid, "cat /data/x") == (0, "x\n")
    assert (tmp_path / "allowed" / "x").stat().st_uid == 0
    assert (tmp_path / "allowed" / "x").stat().st_gid == 0


@pytest.mark.parametrize(
    ("rights", "wishes"),
    [
        (SecurityContext(user=65536), {}),
        (SecurityContext(group=70000), {}),
        (SecurityContext(), {"fs_group": 65536}),
        (SecurityContext(), {"groups": frozenset({70000})}),
    ],
    ids=["user", "group", "fsGroup", "supplementalGroups"],
)
async def test_an_id_that_the_pod_does_not_have_is_refused_with_the_fix(talk, rights, wishes):
    uid = await pod(talk, **wishes)
    with pytest.raises(Rejected, match=r"from 0 to 65535.*change runAsUser") as rejected:
        await talk.provider.start(RunId(uid, "main", 0), talk.shell("true", rights=rights))
    assert rejected.value.reason == "CreateContainerConfigError"


async def test_pods_have_different_host_ids_and_give_them_back(tmp_path):
    before = {*default_isolation()._ranges._used}  # of pods that other tests left with their provider
    async with local_provider(tmp_path) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        seen = [(await provider_harness.result("cat /proc/self/uid_map"))[1].split() for _ in range(3)]
    assert len({first for _, first, _ in seen}) == 3
    assert all(inside == "0" and int(first) >= FIRST and size == "65536" for inside, first, size in seen)
    assert default_isolation()._ranges._used <= before
