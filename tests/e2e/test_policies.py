"""Policies and budgets on the real plane: what they deny waits and says why, and their change is noticed at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.clouds import NODES, Books, at, claims, let_go, start_operator
from tests.support.kubectl import apply as apply_object
from tests.support.kubectl import fresh_namespace, get, ok, pod, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

SLEEP = ("sleep", "1000")


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster, restart=True)
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
        books.check()
        let_go(node, name)
        books.until_let_go(name)
        ok(node, "delete", "offloadpolicy", name, "--ignore-not-found")


def limit(node: Cluster, namespace: str, **spec: Any) -> None:
    """Create a policy for this namespace alone, beside the default one."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    manifest = {
        "apiVersion": "skysail.dev/v1alpha1",
        "kind": "OffloadPolicy",
        "metadata": {"name": namespace},
        "spec": {"namespaceSelector": selector, "providers": ["modal"], **spec},
    }
    apply_object(node, namespace, manifest)


def waiting(node: Cluster, namespace: str, name: str) -> dict[str, str]:
    rows = get(node, namespace, "pod", name)["status"].get("containerStatuses", [{}])
    return rows[0].get("state", {}).get("waiting", {}) if rows else {}


def until_waiting(node: Cluster, namespace: str, name: str, reason: str) -> str:
    node.until(lambda: waiting(node, namespace, name).get("reason") == reason, f"{name} to wait for {reason}")
    return waiting(node, namespace, name)["message"]


def account(node: Cluster, namespace: str) -> dict[str, Any]:
    return get(node, "default", "spendaccount", namespace).get("status", {})


def test_policy_default_allows_every_namespace_of_users(node):
    spec = get(node, "default", "offloadpolicy", "default")
    (row,) = spec["status"]["conditions"]
    assert (row["type"], row["status"]) == ("Accepted", "True")
    assert spec["spec"]["automatic"] is True


def test_policy_that_denies_a_launch_is_obeyed_until_it_changes(node, namespace, books):
    limit(node, namespace, providers=["runpod"])
    apply_object(node, namespace, at("modal", pod("p", "true")))
    message = until_waiting(node, namespace, "p", "PolicyDenied")
    assert message == f"OffloadPolicy {namespace} does not allow provider modal: add it to spec.providers."
    uid = get(node, namespace, "pod", "p")["metadata"]["uid"]
    assert books.launches("modal", uid) == 0
    change = json.dumps({"spec": {"providers": ["runpod", "modal"]}})
    ok(node, "patch", "offloadpolicy", namespace, "--type=merge", "-p", change)
    until_phase(node, namespace, "p", "Succeeded")


def test_budget_reserves_ends_in_time_and_is_settled(node, namespace):
    # A machine without GPUs costs 0.10 USD per hour: the budget is enough for half an hour.
    limit(node, namespace, budget={"amount": 0.05, "period": "Day"}, maxDurationSeconds=3600)
    apply_object(node, namespace, at("modal", pod("first", *SLEEP)))
    until_phase(node, namespace, "first", "Running")
    (claim,) = claims(node, namespace)
    assert claim["status"]["reservedUsd"] == 0.05
    assert [row["usd"] for row in account(node, namespace)["reservations"]] == [0.05]
    apply_object(node, namespace, at("modal", pod("second", "true")))
    message = until_waiting(node, namespace, "second", "BudgetExhausted")
    assert f"The daily budget of 0.05 USD in OffloadPolicy {namespace} leaves 0.00 USD" in message
    ok(node, "delete", "pod", "first", "-n", namespace)
    until_phase(node, namespace, "second", "Succeeded")
    node.until(lambda: account(node, namespace)["reservations"] == [], "the reservations to be settled")
    (total,) = account(node, namespace)["totals"]
    assert total["provider"] == "modal"
    assert 0 < total["usd"] < 0.05
