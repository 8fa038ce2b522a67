"""Ports of the bridge: unique, kept, and not reused too soon."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skysail.claims.bridging.bridge_ports import FIRST_PORT, LAST_PORT, NAME, REST, BridgePorts
from skysail.claims.bridging.targets import Target, with_ports
from skysail.claims.types import CLOUD_INSTANCE, BridgePort, CloudInstance
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.world import World
from tests.support import virtual_time
from tests.unit.claims.samples import NOW, claim, spec


class Harness:
    def __init__(self, client: Client | None = None, seed: int = 1) -> None:
        self.now = NOW
        self.client: Any = client
        self.claims: Cache[CloudInstance] = Cache(CLOUD_INSTANCE.resource, CloudInstance)
        self.ports = BridgePorts(
            self.client, "skysail-system", self.claims, now=lambda: self.now, rng=random.Random(seed)
        )
        self._version = 1

    def put(
        self, uid: str, *ports: tuple[int, int], created: str = "2026-11-15T12:00:00Z", namespace: str = "default"
    ) -> CloudInstance:
        entries = tuple(BridgePort(target_port=target, port=port) for target, port in ports)
        self._version += 1
        metadata = {"uid": uid, "resource_version": str(self._version), "creation_timestamp": created}
        of = spec(uid)
        of = msgspec.structs.replace(of, owner=msgspec.structs.replace(of.owner, namespace=namespace))
        found = claim("Running", metadata=metadata, of=of, bridge_ports=entries)
        self.claims.put(found)
        return found


def test_ports_proposal_stays_until_the_claim_has_it():
    harness = Harness()
    first = harness.ports.propose("a-0", Target(0, 80))
    assert first is not None
    assert FIRST_PORT <= first <= LAST_PORT
    assert harness.ports.propose("a-0", Target(0, 80)) == first
    others = {harness.ports.propose("a-0", Target(0, 81)), harness.ports.propose("b-0", Target(0, 80))}
    assert len(others | {first}) == 3


def test_ports_released_port_rests_for_ten_minutes():
    harness = Harness()
    for number, port in enumerate(range(FIRST_PORT, LAST_PORT)):
        harness.put(f"uid-{number}", (80, port))
    assert harness.ports.propose("last", Target(0, 80)) == LAST_PORT
    assert harness.ports.propose("none", Target(0, 80)) is None, "all ports are in use"
    gone = harness.claims.get(Key("", "uid-7-0"))
    assert gone is not None
    harness.claims.mark_deleted(gone)
    harness.now = NOW + REST - timedelta(seconds=1)
    assert harness.ports.propose("none", Target(0, 80)) is None
    harness.now = NOW + REST
    assert harness.ports.propose("none", Target(0, 80)) == FIRST_PORT + 7


def test_ports_namespace_with_half_of_all_ports_leaves_the_rest_to_others():
    harness = Harness()
    for number, port in enumerate(range(FIRST_PORT, FIRST_PORT + 4999)):
        harness.put(f"uid-{number}", (80, port))
    assert harness.ports.propose("uid-0-0", Target(0, 81)) is not None
    assert harness.ports.propose("uid-0-0", Target(0, 82)) is None
    other = harness.put("other", namespace="other")
    assert harness.ports.propose(other.metadata.name, Target(0, 80)) is not None
    gone = harness.claims.get(Key("", "uid-7-0"))
    assert gone is not None
    harness.claims.mark_deleted(gone)
    harness.now = NOW + REST
    assert harness.ports.propose("uid-0-0", Target(0, 82)) is not None


def test_ports_resting_ports_count_for_the_namespace_that_released_them():
    harness = Harness()
    other = harness.put("other", namespace="other")
    for port in range(FIRST_PORT, FIRST_PORT + 4999):
        harness.put("greedy", (80, port), namespace="greedy")
    assert harness.ports.propose("greedy-0", Target(0, 81)) is not None
    assert harness.ports.propose("greedy-0", Target(0, 82)) is None
    assert harness.ports.propose(other.metadata.name, Target(0, 80)) is not None
    harness.now = NOW + REST
    assert harness.ports.propose("greedy-0", Target(0, 82)) is not None


def test_ports_resting_ports_count_for_their_namespace_after_a_restart():
    async def play() -> None:
        first = Harness(Client(ApiModel(World([CONFIG_MAP, NAMESPACE]))))
        await first.client.create(NAMESPACE, {"metadata": {"name": "skysail-system"}}, Object)
        for port in range(FIRST_PORT, FIRST_PORT + 4999):
            first.put("greedy", (80, port), namespace="greedy")
        await first.ports.load()
        await first.ports._write()
        second = Harness(first.client)
        second.put("greedy", (80, FIRST_PORT + 4998), namespace="greedy")
        await second.ports.load()
        assert second.ports.propose("greedy-0", Target(0, 81)) is not None
        assert second.ports.propose("greedy-0", Target(0, 82)) is None

    virtual_time.run(play())


def test_ports_released_by_an_earlier_version_rest():
    async def play() -> None:
        harness = Harness(Client(ApiModel(World([CONFIG_MAP, NAMESPACE]))))
        await harness.client.create(NAMESPACE, {"metadata": {"name": "skysail-system"}}, Object)
        released = dict.fromkeys(range(FIRST_PORT, LAST_PORT), NOW)
        metadata = {"name": NAME, "namespace": "skysail-system"}
        page = {"metadata": metadata, "data": {"released": msgspec.json.encode(released).decode()}}
        await harness.client.create(CONFIG_MAP, page, Object)
        await harness.ports.load()
        assert harness.ports.propose("a-0", Target(0, 80)) == LAST_PORT
        assert harness.ports.propose("a-0", Target(0, 81)) is None

    virtual_time.run(play())


def test_ports_released_port_rests_after_a_restart():
    async def play() -> None:
        first = Harness(Client(ApiModel(World([CONFIG_MAP, NAMESPACE]))))
        await first.client.create(NAMESPACE, {"metadata": {"name": "skysail-system"}}, Object)
        held = first.put("a", (80, 20500))
        first.claims.mark_deleted(held)
        await first.ports.load()
        await first.ports._write()
        second = Harness(first.client)
        await second.ports.load()
        for number, port in enumerate(port for port in range(FIRST_PORT, LAST_PORT + 1) if port != 20500):
            second.put(f"uid-{number}", (80, port))
        assert second.ports.propose("b", Target(0, 80)) is None
        second.now = NOW + REST
        assert second.ports.propose("b", Target(0, 80)) == 20500

    virtual_time.run(play())


def test_ports_shared_port_belongs_to_the_older_claim():
    harness = Harness()
    old = harness.put("old", (80, 20001), created="2026-11-15T11:00:00Z")
    new = harness.put("new", (80, 20001), (81, 20002))
    assert not harness.ports.is_shared(old, 20001)
    assert harness.ports.is_shared(new, 20001)
    assert not harness.ports.is_shared(new, 20002)


def test_ports_claim_that_cannot_be_decoded_stops_proposals():
    harness = Harness()
    harness.claims.mark_undecodable(Key("", "x"))
    assert harness.ports.propose("a-0", Target(0, 80)) is None


def test_with_ports_keeps_other_targets():
    found = claim("Running", bridge_ports=(BridgePort(target_port=80, port=20001),))
    added = with_ports(found, [BridgePort(target_port=70, port=20002)])
    assert [(entry.target_port, entry.port) for entry in added] == [(70, 20002), (80, 20001)]
    other_rank = BridgePort(target_port=80, port=20003, rank=1)
    assert with_ports(found, [other_rank]) == (*found.status.bridge_ports, other_rank)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "write", "delete", "wait"]), st.integers(0, 5), st.integers(1, 3)), max_size=60
)


@given(_STEPS, st.integers(0, 3))
def test_ports_no_two_claims_ever_have_the_same_port(steps, seed):
    """Whatever is asked, written and deleted, a port has one holder, and a new one only after its rest."""
    harness = Harness(seed=seed)
    offered: dict[tuple[str, int], int] = {}
    released: dict[int, datetime] = {}
    for what, number, target in steps:
        name = f"uid-{number}"
        known = harness.claims.get(Key("", f"{name}-0"))
        if what == "wait":
            harness.now += timedelta(minutes=3)
        elif what == "delete" and known is not None:
            released |= {entry.port: harness.now for entry in known.status.bridge_ports}
            offered = {key: port for key, port in offered.items() if key[0] != name}
            harness.claims.mark_deleted(known)
        elif what in {"ask", "write"}:
            entries = {entry.target_port: entry.port for entry in known.status.bridge_ports} if known else {}
            port = entries.get(target) or harness.ports.propose(f"{name}-0", Target(0, target))
            assert port is not None
            if port in released and target not in entries:
                assert harness.now - released[port] >= REST
                del released[port]
            offered[name, target] = port
            if what == "write":
                harness.put(name, *(entries | {target: port}).items())
    assert len(set(offered.values())) == len(offered)
