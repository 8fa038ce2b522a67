from __future__ import annotations

import asyncio
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, ProviderError, Rejected
from skysail.cloud.provider import (
    Container,
    File,
    HostPath,
    Mount,
    Pod,
    ProjectedFiles,
    ResourceLimits,
    RunId,
    SecurityContext,
    Volume,
)
from skysail.local.bubblewrap.cgroups import CgroupManager
from skysail.local.images.rules import CopiedDir, Rule, Rules
from skysail.local.provider.process_usage import by_namespace
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import ProviderHarness, hear, outcome
from tests.conformance.test_local import settle


@pytest.fixture
async def talk(tmp_path):
    async with local_provider(tmp_path) as provider:
        yield ProviderHarness(provider, image="busybox", python_image="python:3")


async def test_a_box_does_not_show_the_machine(talk, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    script = f"ls /etc/shadow /home /srv {secret} 2>/dev/null; ls -A /root; touch /usr/x 2>/dev/null || echo read-only"
    assert await talk.result(script) == (0, "read-only\n")


async def test_a_box_sees_no_process_but_its_own(talk):
    assert await talk.result("echo /proc/[0-9]*; echo $$") == (0, "/proc/1 /proc/2\n2\n")


async def test_a_box_has_no_right_over_the_machine(talk):
    for script in ("mkdir -p /mnt; mount -t tmpfs none /mnt", "mknod /x b 8 0", "date -s 2000-01-01", "chroot / true"):
        code, _ = await talk.result(script)
        assert (script, code == 0) == (script, script == "chroot / true")


async def test_another_user_is_shown_and_can_write(talk):
    code, said = await talk.result(
        "id -u; touch /tmp/x /x && grep CapEff /proc/self/status", rights=SecurityContext(user=1234)
    )
    assert (code, said.split()) == (0, ["1234", "CapEff:", "0000000000000000"])
    run = await talk.start("sleep 1000", rights=SecurityContext(user=1234))
    assert await outcome(await talk.provider.exec(run, ("id", "-u"), stdin=False, tty=False)) == (0, "1234\n", "")


async def test_a_pod_has_the_files_of_names(talk, tmp_path):
    uid = "uid-1"
    pod = Pod(
        uid=uid,
        namespace="team",
        name="job-0",
        hostname="job-0",
        subdomain="job",
        hosts=(("10.0.0.9", ("nine", "neuf")),),
    )
    await talk.provider.create_sandbox(pod)
    code, said = await talk.result("cat /etc/hosts /etc/resolv.conf", pod=uid)
    assert code == 0
    assert said.splitlines() == [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "127.0.0.1\tjob-0.job.team.svc.cluster.local\tjob-0",
        "10.0.0.9\tnine\tneuf",
        "nameserver 10.244.0.1",
        "search team.svc.cluster.local svc.cluster.local cluster.local",
        "options ndots:5",
    ]


async def test_a_folder_of_the_machine_is_seen_where_it_is_open(talk, tmp_path):
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "x").write_text("from outside\n")
    uid = await talk.pod(Volume("f", HostPath(str(tmp_path / "allowed"))))
    assert await talk.result("cat /f/x", pod=uid, mounts=(Mount(volume="f", path="/f"),)) == (0, "from outside\n")


async def test_a_pod_whose_volume_cannot_be_leaves_nothing(talk, tmp_path):
    with pytest.raises(Rejected):
        await talk.pod(Volume("f", HostPath("/etc")))
    assert (await talk.provider.list()).pods == {}
    assert list((tmp_path / "runs").iterdir()) == []


async def test_files_that_exclude_each_other_are_told_and_the_old_ones_stay(talk):
    clash = (File("a/b", b"1"), File("a", b"2"))
    with pytest.raises(ProviderError, match="The pod sandbox cannot be created: Is a directory"):
        await talk.pod(Volume("v", ProjectedFiles(clash)))
    uid = await talk.pod(Volume("v", ProjectedFiles((File("a/b", b"old"),))))
    with pytest.raises(ProviderError, match="The files of volume v cannot be written: Is a directory"):
        await talk.provider.update(uid, "v", clash)
    assert await talk.result("cat /v/a/b", pod=uid, mounts=(Mount(volume="v", path="/v"),)) == (0, "old")


async def test_of_the_runs_before_the_last_two_nothing_is_kept(talk):
    uid = await talk.pod()
    beside = await talk.start("true", pod=uid, name="other")
    runs = []
    for number in range(4):
        runs.append(await talk.start(f"echo {number}", pod=uid, number=number))
        await talk.end(runs[-1])
    assert sorted((await talk.provider.list()).runs) == [*runs[2:], beside]
    assert await talk.said(runs[2]) == "2\n"
    with pytest.raises(Gone):
        await talk.said(runs[1])


async def test_one_that_still_runs_is_kept_however_old(talk):
    uid = await talk.pod()
    old = await talk.start("sleep 1000", pod=uid)
    await talk.start("sleep 1000", pod=uid, number=5)
    await talk.provider.stop(old, 0)
    assert (await talk.end(old)).code == 137


async def test_a_start_that_failed_by_mistake_can_be_tried_again(talk, tmp_path):
    rules, run = tmp_path / "home" / "images.json", RunId(await talk.pod(), "main", 0)
    rules.parent.mkdir(exist_ok=True)
    rules.write_text("{")
    with pytest.raises(msgspec.DecodeError):
        await talk.provider.start(run, talk.shell("exit 37"))
    rules.unlink()
    await talk.provider.start(run, talk.shell("exit 37"))
    assert (await talk.end(run)).code == 37


async def test_an_image_without_command_or_entry_point_is_refused(talk, tmp_path):
    Rules(tmp_path / "home" / "images.json").add(Rule(pattern="bare", packages=None))
    run = RunId(await talk.pod(), "main", 0)
    with pytest.raises(Rejected, match="skysail image add bare --cmd") as rejected:
        await talk.provider.start(run, Container(name="main", image="bare"))
    assert rejected.value.reason == "EntrypointUnknown"


async def test_args_of_an_image_without_entry_point_are_the_command(talk, tmp_path):
    Rules(tmp_path / "home" / "images.json").add(Rule(pattern="bare", packages=None))
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(run, Container(name="main", image="bare", args=("echo", "ahoy")))
    assert await talk.said(run) == "ahoy\n"


async def test_several_folders_are_copied_one_inside_the_other_too(talk, tmp_path):
    for name in ("code", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(f"{name}\n")
    copied = (CopiedDir(f"{tmp_path}/data", "/workspace/data"), CopiedDir(f"{tmp_path}/code", "/workspace"))
    Rules(tmp_path / "home" / "images.json").add(Rule(pattern="app", packages=None, copied=copied))
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(
        run, Container(name="main", image="app", args=("cat", "/workspace/x", "/workspace/data/x"))
    )
    assert await talk.said(run) == "code\ndata\n"


@pytest.mark.parametrize(("once", "is_over"), [(True, True), (False, False)])
async def test_attach_ends_with_its_input_and_closes_stdin_only_with_stdin_once(talk, once, is_over):
    run = RunId(await talk.pod(), "main", 0)
    shell = msgspec.structs.replace(talk.shell("cat; echo closed"), stdin=True, stdin_once=once)
    await talk.provider.start(run, shell)
    session = await talk.provider.attach(run, stdin=True)
    await session.write(b"ahoy\n")
    await session.close_stdin()
    said = b"".join([piece.data async for piece in session.output()])
    assert said == (b"ahoy\nclosed\n" if is_over else b"ahoy\n")
    assert await session.wait() == 0
    await session.close()
    if not is_over:
        second = await talk.provider.attach(run, stdin=True)
        await second.write(b"again\n")
        assert "again" in await hear(second.output(), "again")


async def test_the_command_to_make_an_image_known_can_be_pasted_whatever_its_name_is(talk):
    image = "x'; touch /tmp/mine; 'y"
    with pytest.raises(Rejected) as rejected:
        await talk.provider.start(RunId(await talk.pod(), "main", 0), Container(name="main", image=image))
    command = str(rejected.value).rpartition(": ")[2].split("`")[1]
    assert shlex.split(command) == ["skysail", "image", "add", image, "--with", "PACKAGE,PACKAGE"]


async def test_an_entry_point_runs_with_the_containers_arguments_in_a_copy_of_its_folder(talk, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "x").write_text("copied\n")
    rule = Rule(pattern="app", packages=None, entrypoint=("sh", "-c"), copied=(CopiedDir(str(code), "/workspace"),))
    Rules(tmp_path / "home" / "images.json").add(rule)
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(run, Container(name="main", image="app", args=("pwd; cat x; echo changed > x",)))
    assert await talk.said(run) == "/workspace\ncopied\n"
    assert (code / "x").read_text() == "copied\n"


async def test_python_in_a_box_is_that_of_the_environment(talk):
    run = RunId(await talk.pod(), "main", 0)
    script = "import sys, ssl, sqlite3; print(sys.prefix)"
    await talk.provider.start(run, Container(name="main", image=talk.python_image, args=("python3", "-c", script)))
    said = await talk.said(run)
    assert (await talk.end(run)).code == 0
    assert "environments" in said


async def test_the_machines_python_programs_are_not_taken_behind_the_environments_back(talk, tmp_path, monkeypatch):
    (tmp_path / "torchrun").write_text("#!/usr/bin/python3\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setattr("skysail.local.images.environments._SYSTEM_PATH", f"{tmp_path}:/usr/bin:/bin")
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(run, Container(name="main", image=talk.python_image, command=("torchrun", "x.py")))
    end = await talk.end(run)
    assert (end.code, end.reason) == (128, "StartError")
    assert "skysail image add python:3 --with" in end.message


async def test_steps_of_an_image_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told: list[tuple[RunId, str, str]] = []
    async with local_provider(tmp_path, record=lambda *event: told.append(event)) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        run = RunId(await provider_harness.pod(), "main", 0)
        await provider.start(run, Container(name="main", image="python:3", command=("python3", "-V")))
        assert (await provider_harness.end(run)).code == 0
    assert [(of, reason) for of, reason, _ in told] == [(run, "Pulling"), (run, "Pulled")]
    assert "building the environment for python:*" in told[0][2]


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups belong to root")
async def test_who_takes_more_memory_than_allowed_is_killed_and_it_is_said(tmp_path):
    cgroups = CgroupManager.mount(tmp_path / "groups", f"skysail-test-{os.getpid()}")
    try:
        async with local_provider(tmp_path, cgroups) as provider:
            provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
            limits = ResourceLimits(memory=30_000_000, cpu=1.0)
            end = await provider_harness.end(await provider_harness.start("exec tail /dev/zero", limits=limits))
            assert (end.code, end.reason) == (137, "OOMKilled")
            run = await provider_harness.start("kill -KILL $$", limits=limits)
            assert (await provider_harness.end(run)).reason == "Error"
            beside = await provider_harness.start("sleep 1000", limits=limits)
            session = await provider_harness.provider.exec(beside, ("cat", "/proc/self/cgroup"), stdin=False, tty=False)
            assert f"{beside.pod}.main.0" in (await outcome(session))[1]
        assert _groups(tmp_path / "groups") == []
    finally:
        await asyncio.to_thread(_unmount, tmp_path / "groups")
    assert cgroups.are_enforced


def _groups(folder: Path) -> list[Path]:
    return list(folder.glob(f"*/skysail-test-{os.getpid()}"))


def _unmount(folder: Path) -> None:
    for tree in folder.iterdir():
        subprocess.run(["umount", tree], check=False, capture_output=True)


PROCESS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import ProviderHarness

async def main():
    async with local_provider(Path({folder!r})) as provider:
        harness = ProviderHarness(provider, "busybox", "python:3")
        run = await harness.start("(setsid sleep {seconds} &); echo up; exec sleep {seconds}")
        await harness.hear(run, "up")
        session = await provider.exec(run, ("sleep", "{seconds}"), stdin=False, tty=True)
        print("up", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_programs_die_with_the_process_that_started_them(tmp_path):
    seconds = str(10**6 + secrets.randbelow(10**6))  # by which they are told from those of others on this machine
    script = PROCESS.format(root=str(Path(__file__).parents[3]), folder=str(tmp_path), seconds=seconds)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout.readline() == "up\n"
        ours = _sleepers(seconds)
        assert len(ours) >= 3
        descriptors = [os.pidfd_open(pid) for pid in ours]
        agent.send_signal(signal.SIGKILL)
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 600)[0]
        os.close(descriptor)


async def test_the_next_process_knows_what_was_run_and_does_not_run_it_again(tmp_path):
    async with local_provider(tmp_path) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        pod = await provider_harness.pod()
        over, cut = RunId(pod, "over", 0), RunId(pod, "cut", 0)
        await provider.start(over, Container(name="over", image="busybox", command=("sh", "-c", "exit 37")))
        assert (await provider_harness.end(over)).code == 37
        await provider.start(cut, Container(name="cut", image="busybox", command=("sleep", "1000")))
        with pytest.raises(Rejected):
            await provider.start(RunId(pod, "none", 0), Container(name="none", image="nobody/knows:this"))
    async with local_provider(tmp_path) as provider:
        runtime_listing = await provider.list()
        assert {run: state.reason for run, state in runtime_listing.runs.items()} == {over: "Error", cut: "Lost"}
        await provider.create_sandbox(Pod(uid=pod, namespace="n", name="p", hostname="p"))
        for run in (over, cut):
            await provider.start(run, Container(name=run.container, image="busybox", command=("true",)))
        assert [(await provider.state(run)).code for run in (over, cut)] == [37, 137]
        await provider.remove_sandbox(pod)
        assert (await provider.list()).runs == {}
    assert list((tmp_path / "journal").iterdir()) == []


def _sleepers(seconds: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and seconds.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def test_a_follower_is_told_each_run_once_however_late_it_looks():
    change_feed = ChangeFeed()
    follower = change_feed.subscribe()
    one, two = RunId("p", "c", 1), RunId("p", "c", 2)
    for run in (one, two, one):
        change_feed.publish(run)
    assert [await anext(follower), await anext(follower)] == [one, two]
    waiting = asyncio.create_task(anext(follower))
    await asyncio.sleep(0)
    change_feed.publish(two)
    assert await waiting == two


def test_usage_is_summed_by_namespace_and_survives_odd_names(tmp_path):
    for pid, namespace, name in ((7, 1, "a) (b"), (8, 1, "b"), (9, 2, "c")):
        folder = tmp_path / str(pid)
        (folder / "ns").mkdir(parents=True)
        (tmp_path / f"namespace-{namespace}").touch()
        (folder / "ns" / "pid").symlink_to(tmp_path / f"namespace-{namespace}")
        fields = ["S", *(["0"] * 10), "10", "20", "30", "40", *(["0"] * 6), "5", "0"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "status").write_text("VmRSS:\t 900 kB\nRssAnon:\t 4 kB\nRssFile:\t 895 kB\nRssShmem:\t 1 kB\n")
    (tmp_path / "10").mkdir()  # ended while we looked
    used = by_namespace(tmp_path)
    tick = os.sysconf("SC_CLK_TCK")
    assert sorted((usage.cpu_seconds, usage.memory) for usage in used.values()) == [
        (100 / tick, 5 * 1024),
        (200 / tick, 10 * 1024),
    ]


async def test_a_session_of_a_slow_reader_does_not_lose_anything(talk):
    run = await talk.start("sleep 1000")
    session = await talk.provider.exec(run, ("sh", "-c", "seq 1 1500000; echo over"), stdin=False, tty=False)
    output = session.output()
    first = await anext(output)
    rest = await hear(output, "over")
    assert (first.data.decode() + rest).split() == [*map(str, range(1, 1500001)), "over"]


async def test_that_limits_are_not_enforced_is_said_once(tmp_path):
    told: list[str] = []
    async with local_provider(tmp_path, record=lambda run, reason, note: told.append(f"{reason}: {note}")) as provider:
        provider_harness = ProviderHarness(provider, image="busybox", python_image="python:3")
        await provider_harness.end(await provider_harness.start("true"))
        assert told == []
        for _ in range(2):
            await provider_harness.end(await provider_harness.start("true", limits=ResourceLimits(memory=30_000_000)))
    why = "Limits of memory and CPU are not enforced on this node: start Skysail as root to enforce them."
    assert told == [f"LimitsIgnored: {why}"]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_command_too_long_for_the_kernel_has_ended_and_is_not_tried_again(talk):
    pod = await talk.pod()
    await talk.end(await talk.start("true", pod=pod))  # the pod keeps a descriptor of its user namespace
    before = descriptors()
    end = await talk.end(await talk.start(f": {'x' * 300_000}", pod=pod, number=1))
    assert (end.code, end.reason) == (128, "StartError")
    assert end.message.startswith('"sh" cannot be started: its command and arguments are too long for the kernel')
    await settle(before)  # the folder of the run is removed in a thread
    assert descriptors() <= before, "the collector may have closed what another test left"


@pytest.mark.parametrize(
    ("image", "is_told"), [("python:2.7-slim", True), ("python:2", True), ("python:3", False), ("python:latest", False)]
)
async def test_which_python_runs_is_said_where_the_image_names_another(tmp_path, image, is_told):
    told = []
    async with local_provider(tmp_path, record=lambda _, reason, note: told.append((str(reason), note))) as provider:
        pod = await ProviderHarness(provider, image=image, python_image=image).pod()
        await provider.start(RunId(pod, "main", 0), Container(name="main", image=image, command=("true",)))
    ours = ".".join(map(str, sys.version_info[:3]))
    words = [note for reason, note in told if reason == "PythonVersionMismatch"]
    assert [f"Image {image} runs in Python {ours} on this machine" in note for note in words] == [True] * is_told
