"""Bridge ports of one claim: those that no Service leads to are given back, and their number is limited."""

from __future__ import annotations

from skysail.claims.types import MAX_BRIDGE_PORTS
from skysail.core.actions import PatchStatus
from skysail.kube.api.objects import Key
from tests.support import virtual_time
from tests.unit.kinds.cloud_services.test_isolation import Cluster

CLAIM = Key("", "uid-a-web-0")


def ports(cluster: Cluster) -> dict[int, int]:
    found = cluster.claims.get(CLAIM)
    assert found is not None
    return {entry.target_port: entry.port for entry in found.status.bridge_ports}


def served(cluster: Cluster, name: str) -> list[int]:
    return [manifest["ports"][0]["port"] for manifest in cluster.slices["a", name]]


def cluster_with_a_pod() -> Cluster:
    cluster = Cluster()
    cluster.add_pod("a", "web", {"app": "web"}, {})
    return cluster


def test_ports_that_no_service_leads_to_are_given_back():
    async def play() -> None:
        cluster = cluster_with_a_pod()
        cluster.add_service("a", "db", {"app": "web"}, [7000])
        await cluster.reconcile("a", "db")
        kept = ports(cluster)[7000]
        for target in range(1000, 1000 + MAX_BRIDGE_PORTS + 10):
            cluster.add_service("a", "web", {"app": "web"}, [target])
            await cluster.reconcile("a", "web")
            assert ports(cluster).keys() == {7000, target}
            assert served(cluster, "web") == [ports(cluster)[target]]
        assert ports(cluster)[7000] == kept

    virtual_time.run(play())


def test_ports_of_a_service_that_cannot_be_decoded_are_kept():
    async def play() -> None:
        cluster = cluster_with_a_pod()
        cluster.add_service("a", "web", {"app": "web"}, [1000])
        await cluster.reconcile("a", "web")
        cluster.caches.services.mark_undecodable(Key("a", "other"))
        cluster.add_service("a", "web", {"app": "web"}, [2000])
        await cluster.reconcile("a", "web")
        assert ports(cluster).keys() == {1000, 2000}

    virtual_time.run(play())


def test_ports_above_the_limit_of_a_claim_are_reported_and_the_others_are_served():
    async def play() -> None:
        cluster = cluster_with_a_pod()
        cluster.add_service("a", "web", {"app": "web"}, list(range(1000, 1000 + MAX_BRIDGE_PORTS + 10)))
        await cluster.reconcile("a", "web")
        assert sorted(served(cluster, "web")) == sorted(ports(cluster).values())
        assert len(ports(cluster)) == MAX_BRIDGE_PORTS
        snapshot = await cluster.reconciler.observe(Key("a", "web"))
        assert snapshot is not None
        plan = cluster.reconciler.plan(snapshot)
        (write,) = (action for action in plan.actions if isinstance(action, PatchStatus))
        assert write.fields["conditions"][0]["reason"] == "NoBridgePort"
        assert plan.requeue_after is not None

    virtual_time.run(play())
