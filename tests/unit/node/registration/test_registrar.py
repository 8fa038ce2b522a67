"""The Node and its Lease, kept on the simulated API server."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from skysail.kube.api.objects import Object
from skysail.kube.api.resources import LEASE, NAMESPACE, NODE
from skysail.kube.client.client import Client
from skysail.node.registration import registrar as registrar_module
from skysail.node.registration.registrar import CloudHealth, NodeDescription, NodeObject, NodeRegistrar
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

ME = NodeDescription(
    name="local",
    address="10.244.0.1",
    port=10250,
    provider_id="skysail://local/local",
    kubelet_version="v1.36.3",
    capacity={"cpu": "64"},
)
START = datetime(2026, 11, 15, tzinfo=UTC)


class Harness:
    def __init__(self) -> None:
        self.world = World()
        self.user = Client(ApiModel(self.world))

    @property
    def node(self) -> dict:
        return self.world.objects[NODE][("", "local")]

    @property
    def ready(self) -> str:
        return self.condition("Ready")["status"]

    def condition(self, name: str) -> dict:
        return next((row for row in self.node["status"]["conditions"] if row["type"] == name), {})

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time())

    @asynccontextmanager
    async def registered(self, cloud=None, *, is_first=True, has_disk_pressure=lambda: False):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
        if is_first:
            await self.user.create(NAMESPACE, namespace, Object)
        registrar = NodeRegistrar(
            Client(ApiModel(self.world)),
            ME,
            now=self.now,
            rng=random.Random(1),
            cloud=cloud,
            has_disk_pressure=has_disk_pressure,
        )
        task = asyncio.create_task(registrar.run())
        await registrar.registered.wait()
        yield
        task.cancel()
        await asyncio.wait([task])


def test_only_an_internal_address_is_ever_published():
    assert {row["type"] for row in registrar_module.status(ME, "")["addresses"]} == {"InternalIP"}


def test_the_system_and_the_kernel_of_the_machine_are_published():
    described = msgspec.structs.replace(ME, os_image="Debian GNU/Linux 12 (bookworm)", kernel_version="6.18.44")
    info = registrar_module.status(described, "")["nodeInfo"]
    assert (info["osImage"], info["kernelVersion"]) == ("Debian GNU/Linux 12 (bookworm)", "6.18.44")


def test_features_are_sorted_because_the_server_refuses_others():
    features = registrar_module.status(ME, "")["declaredFeatures"]
    assert features == sorted(features)


def test_a_node_that_is_not_there_is_made_with_its_lease():
    async def play() -> None:
        harness = Harness()
        async with harness.registered():
            await asyncio.sleep(1)
            assert harness.node["spec"]["providerID"] == "skysail://local/local"
            assert harness.ready == "True"
            lease = harness.world.objects[LEASE][("kube-node-lease", "local")]
            assert lease["metadata"]["ownerReferences"][0]["uid"] == harness.node["metadata"]["uid"]

    virtual_time.run(play())


def test_a_node_that_was_given_up_is_ready_again():
    async def play() -> None:
        harness = Harness()
        async with harness.registered():
            seen = await harness.user.get(NODE, "", "local", NodeObject)
            unknown = [{"type": "Ready", "status": "Unknown"}]
            await harness.user.patch_status(NODE, seen, {"conditions": unknown}, Object)
            await asyncio.sleep(1)
            assert harness.ready == "True"

    virtual_time.run(play())


def test_a_node_that_was_deleted_comes_back():
    async def play() -> None:
        harness = Harness()
        async with harness.registered():
            before = await harness.user.get(NODE, "", "local", Object)
            await harness.user.delete(NODE, before, Object)
            await asyncio.sleep(1)
            assert harness.node["metadata"]["uid"] != before.metadata.uid

    virtual_time.run(play())


def test_a_quiet_node_is_not_written():
    async def play() -> None:
        harness = Harness()
        async with harness.registered():
            await asyncio.sleep(1)
            before = harness.node["metadata"]["resourceVersion"]
            await asyncio.sleep(300)
            assert harness.node["metadata"]["resourceVersion"] == before

    virtual_time.run(play())


def test_a_cloud_that_is_down_shows_and_the_node_stays_ready():
    async def play() -> None:
        harness, outage = Harness(), [""]
        async with harness.registered(lambda: CloudHealth(outage[0])):
            assert harness.condition("CloudReachable")["status"] == "True"
            ready_since = harness.condition("Ready")["lastTransitionTime"]
            outage[0] = "modal does not list its instances: it is down."
            await asyncio.sleep(60)
            told = harness.condition("CloudReachable")
            assert (told["status"], told["reason"], told["message"]) == ("False", "CloudUnreachable", outage[0])
            assert told["lastTransitionTime"] > ready_since
            assert (harness.ready, harness.condition("Ready")["lastTransitionTime"]) == ("True", ready_since)
            written = harness.node["metadata"]["resourceVersion"]
            await asyncio.sleep(300)
            assert harness.node["metadata"]["resourceVersion"] == written
            outage[0] = ""
            await asyncio.sleep(60)
            assert harness.condition("CloudReachable")["status"] == "True"

    virtual_time.run(play())


def test_what_runs_at_a_cloud_without_a_claim_shows_also_while_it_cannot_be_asked():
    async def play() -> None:
        harness, reach = Harness(), [CloudHealth()]
        async with harness.registered(lambda: reach[0]):
            assert harness.condition("NoOrphanedInstances")["status"] == "True"
            reach[0] = CloudHealth(orphans="1 instance runs there without a claim.")
            await asyncio.sleep(60)
            reach[0] = CloudHealth(outage="modal is down.")
            await asyncio.sleep(60)
            told = harness.condition("NoOrphanedInstances")
            assert (told["status"], told["reason"], told["message"]) == (
                "False",
                "OrphanedInstances",
                "1 instance runs there without a claim.",
            )
            reach[0] = CloudHealth()
            await asyncio.sleep(60)
            assert harness.condition("NoOrphanedInstances")["status"] == "True"

    virtual_time.run(play())


@pytest.mark.parametrize("told", ["", "modal is down."])
def test_what_was_told_of_a_cloud_stands_until_it_has_answered_a_new_process(told):
    async def play() -> None:
        harness = Harness()
        async with harness.registered(lambda: CloudHealth(told)):
            pass
        before = harness.node["metadata"]["resourceVersion"]
        async with harness.registered(lambda: None, is_first=False):
            await asyncio.sleep(300)
            assert harness.node["metadata"]["resourceVersion"] == before

    virtual_time.run(play())


def test_a_cloud_that_was_never_asked_is_not_known_to_be_reachable():
    async def play() -> None:
        harness = Harness()
        async with harness.registered(lambda: None):
            assert harness.condition("CloudReachable")["status"] == "Unknown"

    virtual_time.run(play())


def test_a_node_that_stands_for_no_cloud_says_nothing_of_one():
    async def play() -> None:
        harness = Harness()
        async with harness.registered():
            assert harness.condition("CloudReachable") == {}

    virtual_time.run(play())


@pytest.mark.parametrize(
    "wrong", [{"address": "10.0.0.9"}, {"port": 10251}, {"capacity": {"cpu": "1"}}, {"runtime": "modal://account"}]
)
def test_what_others_rely_on_is_compared(wrong):
    shown = msgspec.convert({"metadata": {"name": "local"}, "status": registrar_module.status(ME, "")}, NodeObject)
    assert registrar_module.is_current(shown, ME)
    assert not registrar_module.is_current(shown, msgspec.structs.replace(ME, **wrong))


def test_a_virtual_node_can_be_told_from_a_machine():
    labels = registrar_module.manifest(msgspec.structs.replace(ME, is_virtual=True))["metadata"]["labels"]
    assert labels["type"] == "virtual-kubelet"
    assert labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
    assert "type" not in registrar_module.manifest(ME)["metadata"]["labels"]


@pytest.mark.parametrize(
    ("taints", "labels", "is_right"),
    [
        ([{"key": "cloud", "value": "x", "effect": "NoSchedule"}], {}, True),
        ([{"key": "cloud", "value": "x", "effect": "NoSchedule"}, {"key": "cordon", "effect": "NoSchedule"}], {}, True),
        ([], {}, False),
        (
            [{"key": "cloud", "value": "y", "effect": "NoSchedule"}, {"key": "cordon", "effect": "NoSchedule"}],
            {},
            False,
        ),
        ([{"key": "cloud", "value": "x", "effect": "NoSchedule"}], {"type": "other"}, False),
    ],
)
def test_what_somebody_took_from_a_node_is_put_back_and_what_they_added_stays(taints, labels, is_right):
    described = msgspec.structs.replace(
        ME, is_virtual=True, taints=({"key": "cloud", "value": "x", "effect": "NoSchedule"},)
    )
    wanted = registrar_module.manifest(described)
    metadata = {**wanted["metadata"], "labels": {**wanted["metadata"]["labels"], **labels}, "uid": "u"}
    node = msgspec.convert({"metadata": metadata, "spec": {"taints": taints}}, NodeObject)
    patch = registrar_module.label_patch(node, described)
    assert (patch == {}) == is_right
    if "spec" in patch:
        keys = [(taint["key"], taint.get("value")) for taint in patch["spec"]["taints"]]
        assert keys == [*[("cordon", None)] * (len(taints) - 1 if taints else 0), ("cloud", "x")]
    if labels:
        assert patch["metadata"]["labels"] == {"type": "virtual-kubelet"}


def test_a_node_whose_label_was_taken_gets_it_back():
    async def test() -> None:
        harness = Harness()
        async with harness.registered():
            patch = {"metadata": {"labels": {"kubernetes.io/hostname": "another"}}}
            await harness.user.merge_patch(NODE, "", "local", patch, NodeObject)
            await asyncio.sleep(5)
            assert harness.node["metadata"]["labels"]["kubernetes.io/hostname"] == "local"

    virtual_time.run(test())


def test_disk_pressure_is_a_condition_for_as_long_as_it_lasts():
    async def play() -> None:
        harness, pressed = Harness(), True
        async with harness.registered(has_disk_pressure=lambda: pressed):
            shown = harness.condition("DiskPressure")
            assert (shown["status"], shown["reason"], harness.ready) == ("True", "KubeletHasDiskPressure", "True")
            pressed = False
            await asyncio.sleep(5)
            assert harness.condition("DiskPressure")["status"] == "False"

    virtual_time.run(play())
