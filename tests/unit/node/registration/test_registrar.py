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
from skysail.node.registration import registrar as register
from skysail.node.registration.registrar import CloudState, Description, NodeObject, Registrar
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time

ME = Description(
    name="local",
    address="10.244.0.1",
    port=10250,
    provider_id="skysail://local/local",
    kubelet_version="v1.36.3",
    capacity={"cpu": "64"},
)
START = datetime(2026, 11, 15, tzinfo=UTC)


class Site:
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
        registrar = Registrar(
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
    assert {row["type"] for row in register.status(ME, "")["addresses"]} == {"InternalIP"}


def test_features_are_sorted_because_the_server_refuses_others():
    features = register.status(ME, "")["declaredFeatures"]
    assert features == sorted(features)


def test_a_node_that_is_not_there_is_made_with_its_lease():
    async def play() -> None:
        site = Site()
        async with site.registered():
            await asyncio.sleep(1)
            assert site.node["spec"]["providerID"] == "skysail://local/local"
            assert site.ready == "True"
            lease = site.world.objects[LEASE][("kube-node-lease", "local")]
            assert lease["metadata"]["ownerReferences"][0]["uid"] == site.node["metadata"]["uid"]

    virtual_time.run(play())


def test_a_node_that_was_given_up_is_ready_again():
    async def play() -> None:
        site = Site()
        async with site.registered():
            seen = await site.user.get(NODE, "", "local", NodeObject)
            unknown = [{"type": "Ready", "status": "Unknown"}]
            await site.user.patch_status(NODE, seen, {"conditions": unknown}, Object)
            await asyncio.sleep(1)
            assert site.ready == "True"

    virtual_time.run(play())


def test_a_node_that_was_deleted_comes_back():
    async def play() -> None:
        site = Site()
        async with site.registered():
            before = await site.user.get(NODE, "", "local", Object)
            await site.user.delete(NODE, before, Object)
            await asyncio.sleep(1)
            assert site.node["metadata"]["uid"] != before.metadata.uid

    virtual_time.run(play())


def test_a_quiet_node_is_not_written():
    async def play() -> None:
        site = Site()
        async with site.registered():
            await asyncio.sleep(1)
            before = site.node["metadata"]["resourceVersion"]
            await asyncio.sleep(300)
            assert site.node["metadata"]["resourceVersion"] == before

    virtual_time.run(play())


def test_a_cloud_that_is_down_shows_and_the_node_stays_ready():
    async def play() -> None:
        site, outage = Site(), [""]
        async with site.registered(lambda: CloudState(outage[0])):
            assert site.condition("CloudReachable")["status"] == "True"
            ready_since = site.condition("Ready")["lastTransitionTime"]
            outage[0] = "modal does not list its instances: it is down."
            await asyncio.sleep(60)
            told = site.condition("CloudReachable")
            assert (told["status"], told["reason"], told["message"]) == ("False", "CloudUnreachable", outage[0])
            assert told["lastTransitionTime"] > ready_since
            assert (site.ready, site.condition("Ready")["lastTransitionTime"]) == ("True", ready_since)
            written = site.node["metadata"]["resourceVersion"]
            await asyncio.sleep(300)
            assert site.node["metadata"]["resourceVersion"] == written
            outage[0] = ""
            await asyncio.sleep(60)
            assert site.condition("CloudReachable")["status"] == "True"

    virtual_time.run(play())


def test_what_runs_at_a_cloud_without_a_claim_shows_also_while_it_cannot_be_asked():
    async def play() -> None:
        site, reach = Site(), [CloudState()]
        async with site.registered(lambda: reach[0]):
            assert site.condition("InstancesClaimed")["status"] == "True"
            reach[0] = CloudState(strays="1 instance runs there without a claim.")
            await asyncio.sleep(60)
            reach[0] = CloudState(outage="modal is down.")
            await asyncio.sleep(60)
            told = site.condition("InstancesClaimed")
            assert (told["status"], told["reason"], told["message"]) == (
                "False",
                "StrayInstances",
                "1 instance runs there without a claim.",
            )
            reach[0] = CloudState()
            await asyncio.sleep(60)
            assert site.condition("InstancesClaimed")["status"] == "True"

    virtual_time.run(play())


@pytest.mark.parametrize("told", ["", "modal is down."])
def test_what_was_told_of_a_cloud_stands_until_it_has_answered_a_new_process(told):
    async def play() -> None:
        site = Site()
        async with site.registered(lambda: CloudState(told)):
            pass
        before = site.node["metadata"]["resourceVersion"]
        async with site.registered(lambda: None, is_first=False):
            await asyncio.sleep(300)
            assert site.node["metadata"]["resourceVersion"] == before

    virtual_time.run(play())


def test_a_cloud_that_was_never_asked_is_not_known_to_be_reachable():
    async def play() -> None:
        site = Site()
        async with site.registered(lambda: None):
            assert site.condition("CloudReachable")["status"] == "Unknown"

    virtual_time.run(play())


def test_a_node_that_stands_for_no_cloud_says_nothing_of_one():
    async def play() -> None:
        site = Site()
        async with site.registered():
            assert site.condition("CloudReachable") == {}

    virtual_time.run(play())


@pytest.mark.parametrize(
    "wrong", [{"address": "10.0.0.9"}, {"port": 10251}, {"capacity": {"cpu": "1"}}, {"runtime": "modal://account"}]
)
def test_what_others_rely_on_is_compared(wrong):
    shown = msgspec.convert({"metadata": {"name": "local"}, "status": register.status(ME, "")}, NodeObject)
    assert register.is_right(shown, ME)
    assert not register.is_right(shown, msgspec.structs.replace(ME, **wrong))


def test_a_virtual_node_can_be_told_from_a_machine():
    labels = register.manifest(msgspec.structs.replace(ME, is_virtual=True))["metadata"]["labels"]
    assert labels["type"] == "virtual-kubelet"
    assert labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "true"
    assert "type" not in register.manifest(ME)["metadata"]["labels"]


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
    wanted = register.manifest(described)
    metadata = {**wanted["metadata"], "labels": {**wanted["metadata"]["labels"], **labels}, "uid": "u"}
    node = msgspec.convert({"metadata": metadata, "spec": {"taints": taints}}, NodeObject)
    patch = register.correction(node, described)
    assert (patch == {}) == is_right
    if "spec" in patch:
        keys = [(taint["key"], taint.get("value")) for taint in patch["spec"]["taints"]]
        assert keys == [*[("cordon", None)] * (len(taints) - 1 if taints else 0), ("cloud", "x")]
    if labels:
        assert patch["metadata"]["labels"] == {"type": "virtual-kubelet"}


def test_a_node_whose_label_was_taken_gets_it_back():
    async def story() -> None:
        site = Site()
        async with site.registered():
            patch = {"metadata": {"labels": {"kubernetes.io/hostname": "another"}}}
            await site.user.merge_patch(NODE, "", "local", patch, NodeObject)
            await asyncio.sleep(5)
            assert site.node["metadata"]["labels"]["kubernetes.io/hostname"] == "local"

    virtual_time.run(story())


def test_disk_pressure_is_a_condition_for_as_long_as_it_lasts():
    async def play() -> None:
        site, pressed = Site(), True
        async with site.registered(has_disk_pressure=lambda: pressed):
            shown = site.condition("DiskPressure")
            assert (shown["status"], shown["reason"], site.ready) == ("True", "KubeletHasDiskPressure", "True")
            pressed = False
            await asyncio.sleep(5)
            assert site.condition("DiskPressure")["status"] == "False"

    virtual_time.run(play())
