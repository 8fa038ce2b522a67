"""The keeper of a node between the simulated API server and a provider that does as the test says."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from skysail.base import clock
from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.provider import (
    Container,
    Ended,
    Features,
    Output,
    Pending,
    ProjectedFiles,
    RunId,
    Running,
    RuntimeListing,
    State,
)
from skysail.cloud.provider import Pod as SandboxPod
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import CONFIG_MAP, EVENT, POD, SECRET, SERVICE
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Unreachable
from skysail.kube.client.transport import Reply, Request
from skysail.kube.events import Broadcaster
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet, KubeletDependencies
from skysail.node.log_store import LogStore
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class FakeProvider:
    """Keeps the contract; runs end when the test says so."""

    name = "scripted"
    features = Features(volumes=True, multi_container=True)

    def __init__(self) -> None:
        self.runs: dict[RunId, State] = {}
        self.places: dict[str, SandboxPod] = {}
        self.files: dict[str, bytes] = {}
        self.is_complete = True
        self.ends_at_once = False
        self.started_at: list[float] = []
        self.starts: list[RunId] = []
        self.containers: list[Container] = []
        self.refusals: list[Exception] = []
        self.loses_answer = False
        self.begins_later = False
        self._changed: asyncio.Queue[RunId] = asyncio.Queue()

    async def create_sandbox(self, pod: SandboxPod) -> str:
        self.places[pod.uid] = pod
        for volume in pod.volumes:
            if isinstance(volume.source, ProjectedFiles):
                self.files |= {file.path: file.content for file in volume.source.files}
        return "10.244.0.2"

    async def start(self, run: RunId, container: Container) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        if run.pod not in self.places:
            raise Gone("no place")
        self.starts.append(run)
        self.containers.append(container)
        self.started_at.append(_now())
        self.runs.setdefault(run, Pending("Starting") if self.begins_later else Running(_now()))
        if self.ends_at_once:
            self.end(run, 1)
        if self.loses_answer:
            self._changed.put_nowait(run)
            raise ProviderError("no answer")

    async def stop(self, run: RunId, grace: float) -> None:
        self.end(run, 143)

    async def remove_sandbox(self, pod: str) -> None:
        self.places.pop(pod, None)
        self.runs = {run: state for run, state in self.runs.items() if run.pod != pod}

    async def list(self) -> RuntimeListing:
        return RuntimeListing(
            runs=dict(self.runs), pods=dict.fromkeys(self.places, "10.244.0.2"), complete=self.is_complete
        )

    async def changes(self) -> AsyncIterator[RunId]:
        while True:
            yield await self._changed.get()

    async def state(self, run: RunId) -> State | None:
        return self.runs.get(run)

    async def output(self, run: RunId) -> AsyncIterator[Output]:
        yield Output("stdout", _now(), b"said\n")

    async def update(self, pod: str, volume: str, files) -> None:
        self.files = {file.path: file.content for file in files}

    def begin(self, run: RunId) -> None:
        self.runs[run] = Running(_now())
        self._changed.put_nowait(run)

    def end(self, run: RunId, code: int) -> None:
        state = self.runs[run]
        assert isinstance(state, Running)
        self.runs[run] = Ended(code=code, reason="Error" if code else "Completed", started=state.started, ended=_now())
        self._changed.put_nowait(run)


def _now() -> float:
    return 1_800_000_000.0 + asyncio.get_running_loop().time()


class Counting(ApiModel):
    """Counts what is written about pods. `is_away` for writers only."""

    writes = 0
    is_away = False

    async def send(self, request: Request) -> Reply:
        if self.is_away and request.is_mutating:
            raise Unreachable("away")
        self.writes += request.is_mutating and "/pods/" in request.path
        return await super().send(request)


class Harness:
    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.user = Client(ApiModel(self.world))
        self.server = Counting(self.world)
        self.provider = FakeProvider()
        self.logs = LogStore(folder)
        # By how much the wall clock of the node is wrong.
        self.jump = 0.0

    @asynccontextmanager
    async def keeper(self, *, is_virtual: bool = False):
        client = Client(self.server)
        broadcaster = Broadcaster(client, instance="test", now=clock.now)
        node_info = NodeInfo(name="local", address="10.244.0.1", allocatable={}, is_virtual=is_virtual)
        steady = asyncio.get_running_loop().time
        around = KubeletDependencies(broadcaster, lambda: _now() + self.jump, steady, random.Random(1))
        kubelet = Kubelet(client, self.provider, node_info, self.logs, deps=around)
        tasks = [asyncio.create_task(work.run()) for work in (kubelet, broadcaster)]
        await asyncio.sleep(1)
        yield kubelet
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def create(
        self, restart: str = "Never", volumes: list | None = None, owner: str = "", tolerations: tuple[dict, ...] = ()
    ) -> RunId:
        spec = {
            "tolerations": list(tolerations),
            "nodeName": "local",
            "restartPolicy": restart,
            "containers": [{"name": "main", "image": "x"}],
            "volumes": volumes or [],
        }
        owners = (
            [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}] if owner else []
        )
        metadata = {"name": "a", "namespace": "default", "ownerReferences": owners}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = await self.user.create(POD, manifest, Object)
        await asyncio.sleep(1)
        return RunId(made.metadata.uid, "main", 0)

    @property
    def status(self) -> dict:
        return self.world.objects[POD][("default", "a")]["status"]

    @property
    def container(self) -> dict:
        return self.status["containerStatuses"][0]


def test_a_pod_runs_to_its_end_in_two_writes(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create()
            assert harness.status["phase"] == "Running"
            harness.provider.end(run, 0)
            await asyncio.sleep(1)
            assert harness.status["phase"] == "Succeeded"
            assert harness.provider.starts == [run]
            assert harness.provider.places == {}
            assert harness.logs.end(run, 10, 100) == b"said\n"
            assert harness.server.writes == 2

    virtual_time.run(play())


def test_what_a_pod_printed_goes_also_where_nobody_saw_the_pod_go(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create()
        before = RunId("gone-before", "main", 0)
        writer = harness.logs.writer(before)
        writer.write(Output("stdout", 0.0, b"said\n"))
        writer.close()
        async with harness.keeper():
            assert [harness.logs.numbers(each.pod, "main") for each in (run, before)] == [[0], []]

    virtual_time.run(play())


def test_a_start_without_an_answer_is_followed_all_the_same(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        harness.provider.loses_answer = True
        async with harness.keeper() as keeper:
            run = await harness.create()
            await asyncio.sleep(60)
            assert (harness.provider.starts, harness.logs.end(run, 10, 100)) == ([run], b"said\n")
            assert (harness.status["phase"], keeper.pod_states[run.pod].waiting) == ("Running", {})

    virtual_time.run(play())


def test_kubelet_cloud_start_pending_writes_status_only_when_it_lasts(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        harness.provider.begins_later = True
        async with harness.keeper():
            run = await harness.create()
            assert harness.server.writes == 0
            harness.provider.begin(run)
            await asyncio.sleep(0.1)
            assert (harness.server.writes, harness.status["phase"]) == (1, "Running")
        slow = Harness(tmp_path / "slow")
        slow.provider.begins_later = True
        async with slow.keeper():
            await slow.create()
            await asyncio.sleep(5)
            assert (slow.server.writes, slow.container["state"]["waiting"]["reason"]) == (1, "Starting")

    virtual_time.run(play())


def test_a_crash_loop_is_paced_by_the_clock(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            harness.provider.ends_at_once = True
            await harness.create(restart="Always")
            await asyncio.sleep(120)
            waits = [round(later - earlier) for earlier, later in itertools.pairwise(harness.provider.started_at)]
            assert waits == [0, 10, 20, 40]

    virtual_time.run(play())


def test_a_run_that_vanishes_is_told_lost_and_started_again(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create(restart="Always")
            del harness.provider.runs[run]
            await asyncio.sleep(60)
            assert harness.container["restartCount"] == 1
            assert harness.container["lastState"]["terminated"]["reason"] == "Lost"

    virtual_time.run(play())


def test_an_incomplete_listing_never_means_that_something_is_gone(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create(restart="Always")
            harness.provider.is_complete = False
            del harness.provider.runs[run]
            await asyncio.sleep(300)
            assert "running" in harness.container["state"]
            assert harness.container["restartCount"] == 0

    virtual_time.run(play())


def test_a_keeper_that_starts_anew_takes_over_what_runs(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create(restart="Always")
        async with harness.keeper():
            await asyncio.sleep(60)
            assert harness.provider.starts == [run]
            assert harness.container["restartCount"] == 0
            harness.provider.end(run, 3)
            await asyncio.sleep(1)
            assert harness.container["lastState"]["terminated"]["exitCode"] == 3

    virtual_time.run(play())


def test_a_keeper_that_finds_nothing_left_tells_the_loss(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            await harness.create(restart="Never")
        harness.provider = FakeProvider()
        async with harness.keeper():
            await asyncio.sleep(1)
            assert harness.status["phase"] == "Failed"
            assert harness.container["state"]["terminated"]["reason"] == "Lost"
            assert harness.provider.starts == []

    virtual_time.run(play())


def test_nothing_is_forgotten_before_the_end_was_told(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            run = await harness.create()
            harness.server.is_away = True
            harness.provider.end(run, 0)
            await asyncio.sleep(30)
            assert (harness.status["phase"], list(harness.provider.runs)) == ("Running", [run])
            harness.server.is_away = False
            await asyncio.sleep(300)
            assert (harness.status["phase"], harness.provider.runs, harness.provider.places) == ("Succeeded", {}, {})

    virtual_time.run(play())


def test_a_run_that_a_lost_node_began_and_did_not_tell_is_lost_too(tmp_path):
    """Its provider remembers; the status does not, and its number is not given again."""

    async def play() -> None:
        harness = Harness(tmp_path)
        run = await harness.create(restart="Always")
        harness.provider.runs[run] = Ended(code=137, reason="Lost", started=_now(), ended=_now())
        async with harness.keeper():
            await asyncio.sleep(1)
            assert harness.provider.starts == [RunId(run.pod, "main", 1)]
            assert harness.container["lastState"]["terminated"]["reason"] == "Lost"

    virtual_time.run(play())


def test_places_and_runs_that_nobody_wants_are_released(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        harness.provider.places["stranger"] = SandboxPod(uid="stranger", namespace="n", name="x", hostname="x")
        harness.provider.runs[RunId("another", "main", 0)] = Ended(code=0, reason="Completed", ended=_now())
        async with harness.keeper():
            await asyncio.sleep(60)
            assert (harness.provider.places, harness.provider.runs) == ({}, {})

    virtual_time.run(play())


def test_files_follow_their_config_map(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "default"},
            "data": {"key": "old"},
        }
        await harness.user.create(CONFIG_MAP, manifest, Object)
        async with harness.keeper():
            await harness.create(volumes=[{"name": "v", "configMap": {"name": "c"}}])
            assert harness.provider.files == {"key": b"old"}
            await harness.user.merge_patch(CONFIG_MAP, "default", "c", {"data": {"key": "new"}}, Object)
            await asyncio.sleep(70)
            assert harness.provider.files == {"key": b"new"}

    virtual_time.run(play())


def test_a_provider_that_fails_is_asked_again(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        harness.provider.refusals = [ProviderError("The provider has a bad day.")]
        async with harness.keeper():
            await harness.create()
            assert harness.container["state"]["waiting"]["message"] == "The provider has a bad day."
            await asyncio.sleep(10)
            assert harness.status["phase"] == "Running"

    virtual_time.run(play())


def test_a_mistake_of_ours_holds_one_container_and_ends_nothing(tmp_path, caplog):
    async def play() -> None:
        harness = Harness(tmp_path)
        harness.provider.refusals = [ZeroDivisionError()]
        async with harness.keeper():
            await harness.create()
            assert harness.container["state"]["waiting"]["reason"] == "CreateContainerError"
            await asyncio.sleep(10)
            assert harness.status["phase"] == "Running"

    virtual_time.run(play())
    assert "failed" in caplog.text


def test_a_pod_that_was_removed_by_force_leaves_nothing(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper() as keeper:
            run = await harness.create()
            pod = await harness.user.get(POD, "default", "a", Object)
            await harness.user.delete(POD, pod, Object, {"gracePeriodSeconds": 0})
            await asyncio.sleep(1)
            assert (harness.provider.places, harness.provider.runs, keeper.pod_states) == ({}, {}, {})
            assert harness.logs.numbers(run.pod, "main") == []

    virtual_time.run(play())


def test_a_daemon_on_a_virtual_node_is_shown_and_not_run(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper(is_virtual=True) as keeper:
            await harness.create(restart="Always", volumes=[{"name": "v", "nfs": {}}], owner="DaemonSet")
            pod = harness.world.objects[POD][("default", "a")]
            assert pod["metadata"]["annotations"] == {"skysail.dev/placeholder": "true"}
            assert (harness.status["phase"], harness.container["ready"]) == ("Running", True)
            assert harness.status.get("podIP") is None
            assert (harness.provider.starts, harness.provider.places) == ([], {})
            writes = harness.server.writes
            await asyncio.sleep(300)
            assert harness.server.writes == writes == 2
            await harness.user.delete(POD, await harness.user.get(POD, "default", "a", Object), Object)
            await asyncio.sleep(1)
            assert (("default", "a") in harness.world.objects[POD], keeper.pod_states) == (False, {})

    virtual_time.run(play())


def test_a_daemon_that_is_shown_stays_so_over_a_restart(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        for _ in range(2):
            async with harness.keeper(is_virtual=True):
                if not harness.world.objects.get(POD):
                    await harness.create(restart="Always", owner="DaemonSet")
                await asyncio.sleep(60)
                assert (harness.status["phase"], harness.container["restartCount"]) == ("Running", 0)
                assert "running" in harness.container["state"]
        assert harness.server.writes == 2

    virtual_time.run(play())


@pytest.mark.parametrize(("is_virtual", "links"), [(False, {"DB_SERVICE_HOST"}), (True, set())])
def test_kubelet_virtual_node_passes_no_service_links(tmp_path, is_virtual, links):
    async def play() -> None:
        harness = Harness(tmp_path)
        for name in ("db", "kubernetes"):
            spec = {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}
            metadata = {"name": name, "namespace": "default"}
            await harness.user.create(SERVICE, {"kind": "Service", "metadata": metadata, "spec": spec}, Object)
        async with harness.keeper(is_virtual=is_virtual):
            await harness.create()
            names = {name for name, _ in harness.provider.containers[0].env}
            hosts = {name for name in names if name.endswith("_SERVICE_HOST")}
            assert hosts == {"KUBERNETES_SERVICE_HOST"} | links

    virtual_time.run(play())


@pytest.mark.parametrize(("owner", "is_virtual"), [("DaemonSet", False), ("ReplicaSet", True), ("", True)])
def test_everything_else_is_run(tmp_path, owner, is_virtual):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper(is_virtual=is_virtual):
            run = await harness.create(owner=owner)
            assert harness.provider.starts == [run]

    virtual_time.run(play())


async def _create_annotated(harness: Harness, annotations: dict[str, str], **spec: object) -> str:
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": "local", "containers": [{"name": "main", "image": "team/app"}], **spec},
    }
    made = await harness.user.create(POD, manifest, Object)
    await asyncio.sleep(1)
    return made.metadata.uid


def _events(harness: Harness, reason: str) -> list[str]:
    return [event["note"] for event in harness.world.objects[EVENT].values() if event["reason"] == reason]


@pytest.mark.parametrize("is_virtual", [True, False])
def test_kubelet_container_mode_replaces_the_container_at_a_cloud_only(tmp_path, is_virtual):
    async def play() -> None:
        harness = Harness(tmp_path)
        annotations = {
            "modal-operator.io/use-modal": "true",
            "modal-operator.io/command": "python -c print('Hello from Modal!')",
            "modal-operator.io/image": "python:3.11-slim",
            "modal-operator.io/env-A": "x",
        }
        async with harness.keeper(is_virtual=is_virtual) as kubelet:
            uid = await _create_annotated(harness, annotations)
            (started,) = harness.provider.containers
            assert (started.command == ("python", "-c", "print('Hello from Modal!')")) == is_virtual
            assert (started.image == "python:3.11-slim") == is_virtual
            assert (("A", "x") in started.env) == is_virtual
            assert kubelet.requirements(uid).image == started.image

    virtual_time.run(play())


def test_kubelet_malformed_annotation_warns_once_per_pod(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper(is_virtual=True):
            await _create_annotated(harness, {"modal-operator.io/timeout": "soon"})
            patch = {"metadata": {"labels": {"a": "b"}}}
            await harness.user.merge_patch(POD, "default", "a", patch, Object)
            await asyncio.sleep(60)
            (note,) = _events(harness, "InvalidAnnotation")
            assert note == (
                "metadata.annotations[modal-operator.io/timeout]: 'soon' is no whole number from 1 to 999999999; "
                "the default 300 is used."
            )
            assert len(harness.provider.starts) == 1

    virtual_time.run(play())


def test_kubelet_contradictory_annotations_start_nothing_until_they_are_corrected(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper(is_virtual=True):
            annotations = {"modal-operator.io/offload": "true", "runpod.io/offload": "true"}
            await _create_annotated(harness, annotations)
            await asyncio.sleep(60)
            assert harness.provider.starts == []
            (note,) = _events(harness, "Unsupported")
            assert "runpod.io/offload" in note
            patch = {"metadata": {"annotations": {"runpod.io/offload": None}}}
            await harness.user.merge_patch(POD, "default", "a", patch, Object)
            await asyncio.sleep(60)
            assert len(harness.provider.starts) == 1

    virtual_time.run(play())


def test_kubelet_pull_secret_of_the_registry_becomes_credentials(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        config = b'{"auths": {"docker.io": {"username": "u", "password": "canary"}}}'
        secret = {
            "metadata": {"name": "regcred", "namespace": "default"},
            "data": {".dockerconfigjson": base64.b64encode(config).decode()},
        }
        await harness.user.create(SECRET, {"apiVersion": "v1", "kind": "Secret", **secret}, Object)
        async with harness.keeper(is_virtual=True) as kubelet:
            secrets = [{"name": "regcred"}, {"name": "missing"}]
            uid = await _create_annotated(harness, {}, imagePullSecrets=secrets)
            found = kubelet.requirements(uid)
            assert (found.registry_credentials, found.uses_secrets) == (
                RegistryCredentials("docker.io", "u", "canary"),
                True,
            )
            assert _events(harness, "PullSecretsIgnored") == ["Pull secret missing does not exist."]
            assert "canary" not in str(harness.world.objects[POD]) + str(harness.world.objects[EVENT])

    virtual_time.run(play())


def test_kubelet_service_account_volume_is_dropped_silently_at_a_cloud(tmp_path):
    async def play() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper(is_virtual=True):
            projected = {
                "sources": [{"serviceAccountToken": {"path": "token"}}, {"clusterTrustBundle": {"path": "ca"}}]
            }
            volume = {"name": "kube-api-access-x", "projected": projected}
            mount = {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
            container = {"name": "main", "image": "x", "volumeMounts": [mount]}
            await _create_annotated(harness, {}, volumes=[volume], containers=[container])
            (started,) = harness.provider.containers
            assert started.mounts == ()
            assert [place.volumes for place in harness.provider.places.values()] == [()]
            assert _events(harness, "Unsupported") + _events(harness, "FieldsIgnored") == []

    virtual_time.run(play())


@pytest.mark.parametrize("is_virtual", [True, False])
def test_a_pod_at_a_cloud_stays_while_nobody_hears_of_its_node(tmp_path, is_virtual):
    async def play() -> None:
        harness = Harness(tmp_path)
        unheard = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        async with harness.keeper(is_virtual=is_virtual):
            run = await harness.create(tolerations=({**unheard, "tolerationSeconds": 300},))
            (kept,) = harness.world.objects[POD][("default", "a")]["spec"]["tolerations"]
            assert kept == (unheard if is_virtual else {**unheard, "tolerationSeconds": 300})
            assert harness.provider.starts == [run]

    virtual_time.run(play())
