"""Runs that were accepted and have not begun, as every run at a cloud is at first."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.base import clock
from skysail.base.names import Condition as Conditions
from skysail.base.names import Finalizer, Reason
from skysail.base.timestamps import timestamp
from skysail.claims.provider import ClaimProvider
from skysail.claims.reconciler import INDEXES
from skysail.claims.tracking.launch_specs import LaunchSpecs
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance, CloudInstanceStatus, Exit
from skysail.cloud.provider import Pending, RunId
from skysail.kube.api.fields import Condition
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import EVENT, JOB, POD
from skysail.kube.cache.cache import Cache
from skysail.kube.cache.reflector import Reflector
from skysail.kube.client.client import Client
from skysail.kube.events import Broadcaster
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet, KubeletDependencies
from skysail.node.log_store import LogStore
from skysail.node.sync.planner import Start, Stop, plan
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import ScriptedCloud
from tests.unit.node.pods import NOW, ended, pod, run, snapshot, written

if TYPE_CHECKING:
    from pathlib import Path

WAITING = Pending("NoCapacity", "None left.")
FORGOTTEN = Pending("ContainerCreating", needs_restart_spec=True)
DELETED = {"deletionTimestamp": "2026-11-15T12:00:05Z", "deletionGracePeriodSeconds": 5}


def container(status: dict) -> dict:
    return status["containerStatuses"][0]


def test_a_pod_shows_what_its_run_waits_for():
    made = plan(snapshot(pod(), {run(): WAITING}))
    shown = container(made.status)
    assert (made.steps, made.status["phase"]) == ((), "Pending")
    assert shown["state"] == {"waiting": {"reason": "NoCapacity", "message": "None left."}}
    assert (shown["restartCount"], shown["containerID"], shown["started"], shown["ready"]) == (0, None, False, False)


def test_a_restart_that_waits_is_not_mistaken_for_an_end():
    """Whoever reads the status later knows how the run before ended, and not that this one did."""
    of = pod(restartPolicy="Always")
    runs = {run("main", 0): ended(3), run("main", 1): WAITING}
    made = plan(snapshot(of, runs))
    shown = container(made.status)
    assert made.steps == ()
    assert (shown["restartCount"], shown["lastState"]["terminated"]["exitCode"]) == (0, 3)
    later = snapshot(written(of, made.status), {run("main", 1): WAITING})
    assert plan(later).steps == ()
    assert container(plan(later).status)["lastState"] == shown["lastState"]


def test_what_the_provider_forgot_is_started_again_under_its_number():
    of = pod(restartPolicy="Always")
    assert plan(snapshot(of, {run(): FORGOTTEN})).steps == (Start("main", 0),)
    assert plan(snapshot(of, {run("main", 0): ended(3), run("main", 1): FORGOTTEN})).steps == (Start("main", 1),)
    assert plan(snapshot(of, {run(): FORGOTTEN}, starting=frozenset({run()}))).steps == ()


def test_what_nobody_wants_any_more_is_not_started_again():
    of = pod(metadata=DELETED)
    assert plan(snapshot(of, {run(): FORGOTTEN})).steps == (Stop(run(), 5.0, "The pod is being deleted."),)


def test_a_pod_ends_only_when_its_waiting_run_has_ended():
    of = pod(metadata=DELETED, restartPolicy="Never")
    waiting = plan(snapshot(of, {run(): WAITING}))
    assert waiting.steps == (Stop(run(), 5.0, "The pod is being deleted."),)
    assert waiting.status["phase"] == "Pending"
    asked = plan(snapshot(of, {run(): WAITING}, stops={run(): NOW + 5}, now=NOW + 600))
    assert (asked.steps, asked.status["phase"]) == ((), "Pending")
    assert plan(snapshot(of, {run(): ended(137)})).status["phase"] == "Failed"


def test_a_deadline_ends_what_waits_too():
    of = pod(activeDeadlineSeconds=60, status={"startTime": "2026-11-15T11:00:00Z"})
    assert [type(step) for step in plan(snapshot(of, {run(): WAITING})).steps] == [Stop]


# A node over claims; the test itself is the launch protocol.


class Harness:
    def __init__(self, folder: Path) -> None:
        self.world = World([CLOUD_INSTANCE.resource])
        self.client = Client(ApiModel(self.world))
        self.logs = LogStore(folder)
        self.cloud = ScriptedCloud()

    @asynccontextmanager
    async def keeper(self):
        """A process: its caches, launch specs and books go with it."""
        claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance, INDEXES)
        self.launch_specs = LaunchSpecs(lambda _: None)
        provider = ClaimProvider(self.client, self.cloud, claims, self.launch_specs, cluster="c", wake=lambda _: None)
        rng = random.Random(1)
        broadcaster = Broadcaster(self.client, instance="test", now=clock.now)
        around = KubeletDependencies(broadcaster, _now, asyncio.get_running_loop().time, rng)
        kubelet = Kubelet(
            self.client, provider, NodeInfo(name="cloud", address="10.0.0.1", allocatable={}), self.logs, deps=around
        )
        tasks = [
            asyncio.create_task(Reflector(self.client, claims, rng=rng).run()),
            asyncio.create_task(kubelet.run()),
            asyncio.create_task(broadcaster.run()),
        ]
        await asyncio.sleep(2)
        yield kubelet
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def create(self, restart: str = "Never", metadata: dict | None = None, **fields) -> str:
        main = {"name": "main", "image": "x", **fields}
        spec = {"nodeName": "cloud", "restartPolicy": restart, "containers": [main]}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
        manifest["metadata"] = {"name": "a", "namespace": "default", **(metadata or {})}
        made = await self.client.create(POD, manifest, Object)
        await asyncio.sleep(1)
        return made.metadata.uid

    async def say(self, name: str, state: str, **status) -> None:
        """What the launch protocol writes."""
        now = timestamp(_wall())
        if state == "Terminated":
            status = {"end_time": now, "usd_total": 0.0, **status}
        else:
            status = {"instance_id": "i-1", **status}
        manifest = {
            **msgspec.json.decode(msgspec.json.encode(self.world.objects[CLOUD_INSTANCE.resource]["", name])),
            "status": msgspec.to_builtins(CloudInstanceStatus(state=state, **status)),
        }
        await self.client.replace(CLOUD_INSTANCE.resource, manifest, CloudInstance, subresource="status")
        await asyncio.sleep(1)

    async def delete_pod(self) -> None:
        await self.client.delete(POD, await self.client.get(POD, "default", "a", Object), Object)
        await asyncio.sleep(1)

    @property
    def events(self) -> list[dict]:
        return list(self.world.objects[EVENT].values())

    @property
    def claims(self) -> dict[str, dict]:
        return {name: row for (_, name), row in self.world.objects[CLOUD_INSTANCE.resource].items()}

    @property
    def pod(self) -> dict | None:
        return self.world.objects[POD].get(("default", "a"))

    @property
    def shown(self) -> dict:
        return self.pod["status"]["containerStatuses"][0]


def _now() -> float:
    return 1_800_000_000.0 + asyncio.get_running_loop().time()


def _wall() -> datetime:
    return datetime.fromtimestamp(_now(), UTC)


def told(reason: str, message: str) -> tuple[Condition, ...]:
    return (Condition(Conditions.LAUNCHED, "False", timestamp(_wall()), reason, message),)


def test_the_reason_reaches_the_pod_and_goes_when_it_runs(tmp_path):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create()
            await site.say(f"{uid}-0", "Claimed", instance_id="", conditions=told("NoCapacity", "None left."))
            assert site.shown["state"]["waiting"] == {"reason": "NoCapacity", "message": "None left."}
            assert site.pod["status"]["phase"] == "Pending"
            await site.say(f"{uid}-0", "Running", ready_time=timestamp(_wall()))
            assert "running" in site.shown["state"]
            assert site.pod["status"]["phase"] == "Running"

    virtual_time.run(play())


def test_a_deleted_pod_stays_until_the_end_of_its_waiting_claim_is_confirmed(tmp_path):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create(lifecycle={"preStop": {"sleep": {"seconds": 20}}})
            await site.delete_pod()
            assert "deletionTimestamp" in site.claims[f"{uid}-0"]["metadata"]
            await asyncio.sleep(300)
            assert site.pod["metadata"]["deletionTimestamp"]
            await site.say(f"{uid}-0", "Terminated")
            assert site.pod is None

    virtual_time.run(play())


def test_hooks_and_probes_begin_with_the_run_and_once(tmp_path):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create(
                lifecycle={"postStart": {"exec": {"command": ["hello"]}}},
                readinessProbe={"exec": {"command": ["ready"]}, "periodSeconds": 1000},
            )
            await asyncio.sleep(100)
            assert site.cloud.talks == []
            assert site.shown["ready"] is False
            await site.say(f"{uid}-0", "Running", ready_time=timestamp(_wall()))
            await asyncio.sleep(100)
            assert sorted(site.cloud.talks) == ["i-1: hello", "i-1: ready"]
            assert site.shown["ready"] is True

    virtual_time.run(play())


def test_a_process_that_starts_anew_orders_again_what_was_not_launched(tmp_path):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create()
        async with site.keeper():
            assert site.launch_specs.get(f"{uid}-0").container.image == "x"
            assert list(site.claims) == [f"{uid}-0"]
            await site.say(f"{uid}-0", "Running", ready_time=timestamp(_wall()))
            await site.say(f"{uid}-0", "Terminated", instance_id="i-1", exit=Exit(code=37, reason="Error"))
            assert site.shown["state"]["terminated"]["exitCode"] == 37
            assert site.logs.end(_run(uid), 10, 100) == b"of i-1"

    virtual_time.run(play())


def _run(uid: str, number: int = 0):
    return msgspec.structs.replace(run("main", number), pod=uid)


@pytest.mark.parametrize("has_begun", [True, False])
def test_pending_claim_deleted_by_hand_ends_run_and_restart_gets_new_claim(tmp_path, has_begun):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create(restart="Always")
            if has_begun:
                await site.say(f"{uid}-0", "Running", instance_id="i-1", ready_time=timestamp(_wall()))
            await site.say(f"{uid}-0", "Terminated", instance_id="i-1" if has_begun else "")
            await asyncio.sleep(30)
            assert sorted(site.claims) == [f"{uid}-0", f"{uid}-1"]
            assert site.shown["lastState"]["terminated"]["exitCode"] == (137 if has_begun else 128)

    virtual_time.run(play())


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_claim_that_vanished_with_its_finalizer_is_a_lost_run(tmp_path, has_begun):
    async def play() -> None:
        site = Harness(tmp_path)
        async with site.keeper():
            uid = await site.create(restart="Always")
            if has_begun:
                await site.say(f"{uid}-0", "Running", ready_time=timestamp(_wall()))
            assert site.claims[f"{uid}-0"]["metadata"]["finalizers"] == [Finalizer.CLAIM]
            patch = {"metadata": {"finalizers": []}}
            gone = await site.client.merge_patch(CLOUD_INSTANCE.resource, "", f"{uid}-0", patch, Object)
            await site.client.delete(CLOUD_INSTANCE.resource, gone, Object)
            await asyncio.sleep(120)
            assert list(site.claims) == [f"{uid}-1"]
            assert site.shown["lastState"]["terminated"]["reason"] == "Lost"

    virtual_time.run(play())


def refused(reason: str, message: str) -> tuple[Condition, ...]:
    return (Condition(Conditions.LAUNCHED, "False", "2026-11-15T12:00:00Z", reason, message),)


def test_pod_without_capacity_gets_one_event_that_lists_the_refusals(tmp_path):
    async def test() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            uid = await harness.create()
            for _ in range(3):
                told = refused(Reason.NO_CAPACITY, "No candidate of cloud can be had now: T4: none free.")
                await harness.say(f"{uid}-0", "Claimed", instance_id="", conditions=told)
            await asyncio.sleep(30)
            notes = [event["note"] for event in harness.events if event["reason"] == "NoCapacity"]
            assert notes == ["No candidate of cloud can be had now: T4: none free."]
            assert harness.shown["state"]["waiting"]["reason"] == "NoCapacity"

    virtual_time.run(test())


def test_pod_whose_instance_was_too_dear_stays_pending_and_gets_the_output_of_the_next_one(tmp_path):
    async def test() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            uid = await harness.create()
            name = f"{uid}-0"
            dear = refused(Reason.PRICE_ABOVE_CAP, "Instance i-1 costs 9 USD/h.")
            await harness.say(name, "Terminating", usd_per_hour=9.0, conditions=dear)
            assert harness.shown["state"]["waiting"]["reason"] == "PriceAboveCap"
            harness.launch_specs.forget(name)
            await harness.say(name, "Claimed", instance_id="", candidate=1)
            assert harness.launch_specs.get(name) is not None
            now = timestamp(_wall())
            await harness.say(name, "Running", instance_id="i-2", candidate=1, start_time=now, ready_time=now)
            assert harness.pod["status"]["phase"] == "Running"
            await harness.say(name, "Terminated", instance_id="i-2", ready_time=now, exit=Exit(code=0))
            assert harness.pod["status"]["phase"] == "Succeeded"
            assert harness.logs.end(RunId(uid, "main", 0), 9, 999) == b"of i-2"
            assert list(harness.claims) == [name]

    virtual_time.run(test())


def test_pod_of_a_job_without_capacity_anywhere_at_its_cloud_fails_as_disrupted(tmp_path):
    async def test() -> None:
        harness = Harness(tmp_path)
        async with harness.keeper():
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "default"}}
            made = await harness.client.create(JOB, job, Object)
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": made.metadata.uid, "controller": True}
            uid = await harness.create("OnFailure", metadata={"ownerReferences": [owner]})
            ended = Condition(Conditions.TERMINATED, "True", "2026-11-15T12:00:00Z", "NoCapacity", "None free.")
            await harness.say(f"{uid}-0", "Terminated", conditions=(ended,))
            status = harness.pod["status"]
            rows = {row["type"]: row.get("reason") for row in status["conditions"]}
            assert (status["phase"], status["reason"], rows["DisruptionTarget"]) == (
                "Failed",
                "NoCapacity",
                "NoCapacity",
            )
            assert list(harness.claims) == [f"{uid}-0"]
            (note,) = [event["note"] for event in harness.events if event["reason"] == "NoCapacity"]
            assert note.startswith("None free. The Job loses one retry: only a Job with restartPolicy Never")

    virtual_time.run(test())
