"""Attacks on a real control plane with node `local`, the simulated clouds and the operator.

Each test records its attempts; the summary prints how many were tried and how many were held.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.clouds import NODES, start_operator
from tests.support.kubectl import fresh_namespace, ok
from tests.support.tenant import Attempts, Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.cluster import Cluster

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.plane)


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with node `local`, the nodes of both simulated clouds, and the operator."""
    cluster.start_agent()
    start_operator(cluster, restart=True)
    cluster.until_asking()
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name


@pytest.fixture
def tenant(node: Cluster, namespace: str) -> Tenant:
    """A user with the role `edit` in `namespace`, and with no other rights."""
    return Tenant.create(node, namespace)


@pytest.fixture
def other_tenant(node: Cluster) -> Iterator[Tenant]:
    """A second one, with a namespace of its own: the victim of attacks across namespaces."""
    with fresh_namespace(node) as name:
        yield Tenant.create(node, name)


@pytest.fixture
def attempts(record_property: Callable[[str, object], None]) -> Iterator[Attempts]:
    """Collect the attempts of a test, and fail the test at its end with all that were not held."""
    recorder = Attempts()
    yield recorder
    record_property("attempts", json.dumps(recorder.rows))
    recorder.check()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried, held = Counter[str](), Counter[str]()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name == "attempts" and report.when == "teardown":
                for area, _, was_held in json.loads(value):
                    tried[area] += 1
                    held[area] += was_held
    if tried:
        terminalreporter.section("security: attempts")
        for area in sorted(tried):
            terminalreporter.write_line(f"{area:<32} tried {tried[area]:>4}   held {held[area]:>4}")
        terminalreporter.write_line(f"{'all':<32} tried {tried.total():>4}   held {held.total():>4}")
