"""Limits on open connections."""

from __future__ import annotations

import msgspec

from skysail.base.metrics import Metrics
from skysail.bridge.routes import Route
from skysail.bridge.traffic import Traffic

ROUTE = Route(
    port=20000,
    target_port=80,
    claim="c",
    provider="modal",
    account="a",
    instance="i",
    namespace="greedy",
    owner="web",
)


def route(namespace: str, owner: str) -> Route:
    return msgspec.structs.replace(ROUTE, namespace=namespace, owner=owner)


def test_admit_namespace_takes_half_of_what_others_leave_over_all_of_its_routes():
    traffic = Traffic(Metrics(), max_connections=16, max_connections_per_route=6)
    greedy = [traffic.admit(route("greedy", owner)) for owner in ("a", "b", "c") for _ in range(6)]
    assert greedy.count(True) == 8
    others = [traffic.admit(route("other", "web")) for _ in range(6)]
    assert others.count(True) == 4
    traffic.leave(route("greedy", "a"))
    assert not traffic.admit(route("greedy", "a")), "the others take a part now, so its share is smaller"
    assert traffic.admit(route("third", "web"))


def test_leave_forgets_routes_and_namespaces_without_connections():
    traffic = Traffic(Metrics(), max_connections=16, max_connections_per_route=6)
    assert traffic.admit(ROUTE)
    traffic.leave(ROUTE)
    assert traffic.open_connections == 0
    assert traffic._open_by_namespace == {}
