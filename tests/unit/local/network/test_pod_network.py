from __future__ import annotations

import pytest

from skysail.cloud.errors import NoCapacity, OutcomeUnknown
from skysail.cloud.provider import Pod
from skysail.local.network.pod_network import InstanceNetwork, IpPool, PodNetwork


def test_an_address_that_is_given_back_is_not_the_next_one():
    ip_pool = IpPool()
    first = ip_pool.allocate()
    ip_pool.release(first)
    assert (first, ip_pool.allocate()) == ("10.244.0.2", "10.244.0.3")


def test_every_address_is_given_once_and_then_there_is_none():
    ip_pool = IpPool("10.0.0.0/29", ("10.0.0.1", "10.0.0.6"))
    taken = [ip_pool.allocate() for _ in range(4)]
    assert taken == ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
    with pytest.raises(NoCapacity, match="delete some pods"):
        ip_pool.allocate()
    ip_pool.release("10.0.0.4")
    assert ip_pool.allocate() == "10.0.0.4"


async def test_a_pod_is_attached_only_when_its_policies_are_in_force(monkeypatch):
    asked, answers = [], iter([OutcomeUnknown("no rules yet"), OutcomeUnknown("no rules yet"), None])

    async def admit(uid: str, namespace: str) -> None:
        asked.append((uid, namespace))
        if error := next(answers):
            raise error

    pods = PodNetwork(admit=admit)
    monkeypatch.setattr(pods, "_connect", lambda _: None)
    pods._is_open.set()
    pod = Pod(uid="u", namespace="team", name="p", hostname="p")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="no rules yet"):
            await pods.attach(pod)
    assert (await pods.attach(pod)).address == "10.244.0.2"
    assert asked == [("u", "team")] * 3


async def test_an_instance_of_a_simulated_cloud_waits_for_no_policies(monkeypatch):
    async def admit(uid: str, namespace: str) -> None:
        raise OutcomeUnknown(f"{namespace} has no pod {uid}")

    pods = PodNetwork(admit=admit)
    monkeypatch.setattr(pods, "_connect", lambda _: None)
    pods._is_open.set()
    pod = Pod(uid="u", namespace="team", name="p", hostname="p")
    assert (await InstanceNetwork(pods).attach(pod)).address == "10.244.0.2"
