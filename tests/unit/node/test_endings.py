"""How runs end under a keeper, and that nothing else ends with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.cloud.errors import Gone
from skysail.cloud.provider import Container, Features, Output, RunId
from skysail.cloud.provider import Pod as SandboxPod
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, EVENT, POD
from skysail.kube.client.transport import Reply, Request
from skysail.node.sync.unsupported_fields import NO_EPHEMERAL_CONTAINERS
from tests.support import virtual_time
from tests.unit.node.test_kubelet import Counting, FakeProvider, Harness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WAITS = {"exec": {"command": ["wait"]}}
FAILS = {"exec": {"command": ["fail"]}}


class Talk:
    """A command that ends at once, or waits until it is killed."""

    def __init__(self, provider: RecordingProvider, word: str) -> None:
        self._provider = provider
        self._word = word

    async def output(self) -> AsyncIterator[Output]:
        if self._word == "wait":
            await asyncio.Event().wait()
        for nothing in ():
            yield nothing

    async def wait(self) -> int:
        return 1 if self._word == "fail" else 0

    async def kill(self) -> None:
        self._provider.calls.append(f"kill {self._word}")

    async def close(self) -> None:
        return


class RecordingProvider(FakeProvider):
    """Writes down what is asked of it. `troubles` are raised by what the machine itself may fail at, one by one."""

    features = Features(exec=True, volumes=True, multi_container=True)

    def __init__(self, *troubles: Exception) -> None:
        super().__init__()
        self.troubles = list(troubles)
        self.calls: list[str] = []
        self.is_stuck = False

    async def start(self, run: RunId, container: Container) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        await super().start(run, container)

    async def stop(self, run: RunId, grace: float) -> None:
        if run not in self.runs:
            raise Gone("no run")
        self.calls.append(f"stop {grace:g}")
        await super().stop(run, grace)

    async def remove_sandbox(self, pod: str) -> None:
        self._meet_trouble()
        self.calls.append("release")
        await super().remove_sandbox(pod)

    async def update(self, pod: str, volume: str, files) -> None:
        self._meet_trouble()
        await super().update(pod, volume, files)

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Talk:
        self.calls.append(f"exec {command[0]}")
        return Talk(self, command[0])

    def _meet_trouble(self) -> None:
        if self.troubles:
            raise self.troubles.pop(0)


class Remembering(Counting):
    """Writes down each phase that is written, and each removal."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.words: list[str] = []

    async def send(self, request: Request) -> Reply:
        if request.method == "DELETE":
            self.words.append("removed")
        elif request.path.endswith("/pods/a/status"):
            self.words.append(msgspec.json.decode(request.body)["status"]["phase"])
        return await super().send(request)


class Shore(Harness):
    def __init__(self, folder: Path, *troubles: Exception) -> None:
        super().__init__(folder)
        self.provider = RecordingProvider(*troubles)
        self.server = Remembering(self.world)

    async def run(self, restart: str = "Always", grace: int = 30, **fields) -> RunId:
        main = {"name": "main", "image": "x", **fields}
        spec = {
            "nodeName": "local",
            "restartPolicy": restart,
            "containers": [main],
            "terminationGracePeriodSeconds": grace,
        }
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}, "spec": spec}
        made = await self.user.create(POD, manifest, Object)
        await asyncio.sleep(1)
        return RunId(made.metadata.uid, "main", 0)

    async def delete(self) -> None:
        await self.user.delete(POD, await self.user.get(POD, "default", "a", Object), Object)

    def told(self, reason: str) -> list[str]:
        return [row["note"] for row in self.world.objects.get(EVENT, {}).values() if row["reason"] == reason]


def test_files_that_cannot_be_written_end_no_other_pod(tmp_path, caplog):
    async def play() -> None:
        site = Shore(tmp_path, OSError("The disk is full."))
        metadata = {"name": "c", "namespace": "default"}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "old"}}
        await site.user.create(CONFIG_MAP, manifest, Object)
        async with site.keeper():
            run = await site.create(volumes=[{"name": "v", "configMap": {"name": "c"}}])
            await site.user.merge_patch(CONFIG_MAP, "default", "c", {"data": {"key": "new"}}, Object)
            await asyncio.sleep(140)
            assert (site.provider.files, site.provider.troubles) == ({"key": b"new"}, [])
            site.provider.end(run, 0)
            await asyncio.sleep(1)
            assert site.status["phase"] == "Succeeded"

    virtual_time.run(play())
    assert "failed" in caplog.text


def test_a_place_that_cannot_be_taken_away_ends_no_other_pod(tmp_path, caplog):
    async def play() -> None:
        site = Shore(tmp_path, OSError("The link is busy."))
        site.provider.places["stranger"] = SandboxPod(uid="stranger", namespace="n", name="x", hostname="x")
        async with site.keeper():
            await asyncio.sleep(70)
            assert (site.provider.places, site.provider.troubles) == ({}, [])

    virtual_time.run(play())
    assert "failed" in caplog.text


def test_the_last_word_is_written_before_a_pod_goes_that_was_still_starting(tmp_path):
    async def play() -> None:
        site = Shore(tmp_path)
        site.provider.is_stuck = True
        async with site.keeper() as keeper:
            run = await site.run()
            book = keeper.pod_states[run.pod]
            site.server.words.clear()
            await site.delete()
            await asyncio.sleep(1)
            assert site.server.words == ["Failed", "removed"]
            assert (book.stops, book.starting, keeper.pod_states) == ({}, {}, {})

    virtual_time.run(play())


def test_a_pod_deleted_during_its_first_hook_has_its_last_one_and_its_grace(tmp_path):
    async def play() -> None:
        site = Shore(tmp_path)
        async with site.keeper():
            await site.run(lifecycle={"postStart": WAITS, "preStop": {"exec": {"command": ["last"]}}})
            await site.delete()
            await asyncio.sleep(1)
            assert site.provider.calls[:5] == ["exec wait", "kill wait", "exec last", "stop 30", "release"]
            assert site.server.words[-2:] == ["Failed", "removed"]

    virtual_time.run(play())


@pytest.mark.parametrize(("grace", "left"), [(10, 2), (0, 0)])
def test_a_hook_that_takes_all_the_time_leaves_a_moment_to_its_program(tmp_path, grace, left):
    async def play() -> None:
        site = Shore(tmp_path)
        async with site.keeper():
            await site.run(
                lifecycle={"preStop": WAITS},
                livenessProbe={**FAILS, "failureThreshold": 1, "terminationGracePeriodSeconds": grace},
            )
            await asyncio.sleep(15)
            assert [call for call in site.provider.calls if call.startswith("stop")][:1] == [f"stop {left}"]

    virtual_time.run(play())


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"livenessProbe": {**FAILS, "failureThreshold": 1}}, "main: Liveness probe failed: exit code 1"),
        ({"lifecycle": {"postStart": FAILS}}, "main: Stopped, because its postStart hook failed."),
    ],
)
def test_that_a_container_is_ended_for_its_health_or_its_hook_is_told(tmp_path, fields, note):
    async def play() -> None:
        site = Shore(tmp_path)
        async with site.keeper():
            await site.run(**fields)
            await asyncio.sleep(5)
            assert site.told("Killing") == [note]

    virtual_time.run(play())


def test_each_pause_of_a_crash_loop_is_told_once(tmp_path):
    async def play() -> None:
        site = Shore(tmp_path)
        site.provider.ends_at_once = True
        async with site.keeper():
            await site.run()
            await asyncio.sleep(60)
            assert site.told("BackOff") == [
                f"back-off {pause}s restarting failed container=main pod=default/a" for pause in (10, 20, 40)
            ]

    virtual_time.run(play())


def test_why_a_container_is_not_ready_is_told_until_it_has_ended(tmp_path):
    async def play() -> None:
        site = Shore(tmp_path)
        async with site.keeper():
            run = await site.run(readinessProbe={**FAILS, "failureThreshold": 100})
            await asyncio.sleep(5)
            assert site.told("Unhealthy") == ["main: Readiness probe failed: exit code 1"]
            assert site.container["ready"] is False
            site.provider.end(run, 0)

    virtual_time.run(play())


def test_a_container_that_is_added_later_is_told_at_once_to_be_left_out(tmp_path):
    async def play() -> None:
        site = Shore(tmp_path)
        async with site.keeper():
            await site.run()
            assert site.told("FieldsIgnored") == []
            added = {"name": "debugger", "image": "busybox", "stdin": True, "tty": True}
            await site.user.merge_patch(POD, "default", "a", {"spec": {"ephemeralContainers": [added]}}, Object)
            await asyncio.sleep(5)
            assert site.told("FieldsIgnored") == [f"spec.ephemeralContainers: {NO_EPHEMERAL_CONTAINERS}."]
            (shown,) = site.status["ephemeralContainerStatuses"]
            end = {"exitCode": 128, "reason": "Unsupported", "message": f"{NO_EPHEMERAL_CONTAINERS}."}
            assert (shown["name"], shown["state"]) == ("debugger", {"terminated": end})
            writes = site.server.writes
            await asyncio.sleep(60)
            assert site.server.writes == writes

    virtual_time.run(play())
