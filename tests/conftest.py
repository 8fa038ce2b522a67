"""The real control plane, for every test that asks for it: one hull per test worker, one operator per module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A plane with our kinds and without an operator. Where namespaces are forbidden, its tests fail and say so."""
    with Cluster(tmp_path_factory.mktemp("hull") / "home") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[str]:
    """The operator as a process under the generated RBAC; the name of its unit."""
    cluster.start_operator("operator")
    yield "operator"
    cluster.stop("operator")
