"""Everything here needs the real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.kubectl import fresh_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.plane)


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """A plane with the node `local` on it."""
    cluster.start_agent()
    yield cluster
    cluster.remove_agent()


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
