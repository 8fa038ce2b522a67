"""Routes of the bridge come from claims alone, and never mix two of them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from skysail.bridge import routes
from skysail.claims.types import BridgePort, CloudInstance
from tests.unit.claims.samples import ACCOUNT, claim, spec


def claim_of(
    namespace: str, name: str, *ports: tuple[int, int], state: str = "Running", **status: Any
) -> CloudInstance:
    uid = f"uid-{namespace}-{name}"
    of = spec(uid, account=ACCOUNT)
    owner = msgspec.structs.replace(of.owner, namespace=namespace, name=name)
    of = msgspec.structs.replace(of, owner=owner)
    entries = tuple(BridgePort(target_port=target, port=port) for target, port in ports)
    return claim(state, of=of, bridge_ports=entries, **{"instance_id": f"i-{uid}", **status})


def test_routes_port_of_running_claim_leads_to_its_instance():
    table = routes.build([claim_of("a", "web", (8000, 20001))])
    (route,) = table.routes.values()
    assert (route.port, route.target_port, route.instance) == (20001, 8000, "i-uid-a-web")
    assert (route.namespace, route.owner, route.account) == ("a", "web", ACCOUNT)
    assert (route.rank, route.protocol) == (0, "tcp")


def test_routes_rank_and_protocol_are_those_of_the_claim():
    found = claim_of("a", "gang")
    entry = BridgePort(target_port=8000, port=20001, rank=2, protocol="http")
    found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, bridge_ports=(entry,)))
    (route,) = routes.build([found]).routes.values()
    assert (route.rank, route.protocol) == (2, "http")


def test_routes_claim_without_instance_has_no_route():
    for state in ("Claimed", "Launching", "Unknown", "Terminated"):
        assert routes.build([claim_of("a", "web", (8000, 20001), state=state)]).routes == {}
    assert routes.build([claim_of("a", "web", (8000, 20001), instance_id="")]).routes == {}


def test_routes_port_of_two_claims_leads_nowhere():
    table = routes.build([claim_of("a", "web", (8000, 20001), (9000, 20002)), claim_of("b", "web", (8000, 20001))])
    assert table.conflicts == {20001}
    assert set(table.routes) == {20002}


def test_routes_claim_that_is_not_running_still_holds_its_port():
    table = routes.build([claim_of("a", "web", (80, 20001)), claim_of("b", "web", (80, 20001), state="Launching")])
    assert table.routes == {}


_CLAIMS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["web", "db"]),
        st.lists(st.tuples(st.integers(1, 5), st.integers(20000, 20008)), max_size=4, unique_by=lambda row: row[0]),
        st.sampled_from(["Claimed", "Running", "Terminating", "Terminated"]),
    ),
    max_size=8,
    unique_by=lambda row: row[:2],
)


@given(_CLAIMS)
def test_routes_never_lead_to_a_claim_that_shares_the_port(rows):
    claims = [claim_of(namespace, name, *ports, state=state) for namespace, name, ports, state in rows]
    table = routes.build(claims)
    for port, route in table.routes.items():
        holders = [found for found in claims if port in {entry.port for entry in found.status.bridge_ports}]
        assert [found.metadata.name for found in holders] == [route.claim]
        assert (route.namespace, route.owner) == (holders[0].spec.owner.namespace, holders[0].spec.owner.name)
        assert BridgePort(target_port=route.target_port, port=port) in holders[0].status.bridge_ports
