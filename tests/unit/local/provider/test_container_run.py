"""A run ends, and a pod can be removed, whatever fails on the way."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time

import pytest
from msgspec.structs import replace

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.provider import Container, RunId
from skysail.local.bubblewrap.container import BwrapContainer, ContainerSpec, ExecProcess, _command_line
from skysail.local.bubblewrap.host_tools import HostTools
from skysail.local.bubblewrap.process import StdStreams
from skysail.local.bubblewrap.rootfs import ContainerRoot
from tests.conformance.local import OwnNetwork, default_isolation, local_provider
from tests.conformance.provider_harness import ProviderHarness


@pytest.fixture
async def talk(tmp_path):
    async with local_provider(tmp_path) as provider:
        yield ProviderHarness(provider, image="busybox", python_image="python:3")


class DefectiveNetwork(OwnNetwork):
    """Fails a number of times to take a network away."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def detach(self, uid: str) -> None:
        if self.failures:
            self.failures -= 1
            raise OutcomeUnknown("The pod network could not be changed.")


async def test_run_without_its_message_file_ends_with_its_exit_code(talk, tmp_path):
    run = await talk.start("read word; exit 3", stdin=True)
    shutil.rmtree(tmp_path / "runs" / run.pod / "main.0")
    session = await talk.provider.attach(run, stdin=True)
    await session.write(b"go\n")
    end = await talk.end(run)
    assert (end.code, end.reason, end.message) == (3, "Error", "")


async def test_run_whose_end_cannot_be_observed_ends(talk, monkeypatch):
    run = await talk.start("sleep 10000")

    async def fail(self) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(BwrapContainer, "finish", fail)
    with contextlib.suppress(RuntimeError):
        await talk.provider._known(run)._lifecycle
    end = await talk.end(run)
    assert (end.code, end.reason) == (137, "Error")
    monkeypatch.undo()
    await talk.provider.remove_sandbox(run.pod)


async def test_pod_whose_removal_fails_is_listed_until_it_is_removed(tmp_path):
    async with local_provider(tmp_path, network=DefectiveNetwork(1)) as provider:
        talk = ProviderHarness(provider, image="busybox", python_image="python:3")
        run = await talk.start("sleep 10000")
        with pytest.raises(OutcomeUnknown):
            await provider.remove_sandbox(run.pod)
        assert list((await provider.list()).pods) == [run.pod]
        await provider.remove_sandbox(run.pod)
        listing = await provider.list()
        assert (listing.pods, listing.runs) == ({}, {})
        assert list((tmp_path / "runs").iterdir()) == []


async def test_pod_that_cannot_be_made_gives_its_ids_back_even_if_its_removal_fails(tmp_path, monkeypatch):
    network, isolation = DefectiveNetwork(1), default_isolation()
    released, release = [], isolation.release
    monkeypatch.setattr(isolation, "release", lambda ids: (released.append(ids), release(ids)))

    async def attach(pod) -> None:
        raise OutcomeUnknown("The pod network could not be changed.")

    network.attach = attach
    async with local_provider(tmp_path, network=network, isolation=isolation) as provider:
        with pytest.raises(OutcomeUnknown):
            await ProviderHarness(provider, image="busybox", python_image="python:3").pod()
    assert len(released) == 1


async def test_command_with_a_terminal_that_looks_like_an_option_is_no_option_of_a_helper(talk):
    run = RunId(await talk.pod(), "main", 0)
    await talk.provider.start(run, Container(name="main", image="busybox", command=("--fork", "true"), tty=True))
    assert (await talk.end(run)).code != 0


async def test_exec_killed_before_its_command_has_a_group_ends():
    wires = StdStreams(stdin=True, terminal=False)
    command = ExecProcess(("/bin/sh", "-c", "echo up; cat; true"), wires, (), time.time)
    async for _ in command.output.replay():
        break
    command.kill()
    await wires.sink.finish()
    assert await command.wait() == 137


def test_group_path_with_characters_of_the_shell_is_a_path(tmp_path):
    group = tmp_path / 'a"; touch $(echo b)'
    group.touch()
    tools = replace(HostTools.find(), bwrap="/bin/echo")
    spec = ContainerSpec(
        root=ContainerRoot(hostname="h", env=()), argv=("true",), groups=(str(group), str(group)), identity=None
    )
    argv = _command_line(spec, tools, arguments=3, status=4, gate=[])
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "--args 3 --json-status-fd 4 -- true\n")
    assert group.read_text() == "0\n"
    assert [path.name for path in tmp_path.iterdir()] == [group.name]


def test_group_that_cannot_be_joined_starts_nothing(tmp_path):
    tools = replace(HostTools.find(), bwrap="/bin/echo")
    spec = ContainerSpec(
        root=ContainerRoot(hostname="h", env=()), argv=("true",), groups=(str(tmp_path / "none" / "x"),), identity=None
    )
    done = subprocess.run(
        _command_line(spec, tools, arguments=3, status=4, gate=[]), capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0, done.stdout) == (False, "")
