"""Frameworks in pods of the node `local`: ranks that find each other by name and exchange what each alone has.

Their environments are of the starting set, so the first run on a machine downloads them through the egress proxy.
PyTorch and TensorFlow are large, and have a stage of their own: `make test-frameworks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster
from tests.support.kubectl import fresh_namespace
from tests.support.training import PORT, RANKS, Training

if TYPE_CHECKING:
    from collections.abc import Iterator

XGBOOST = {
    "DMLC_TRACKER_URI": "NAME-0.NAME",
    "DMLC_TRACKER_PORT": str(PORT),
    "DMLC_TASK_ID": "$(RANK)",
    "DMLC_NUM_WORKER": str(RANKS),
}
JAX = {
    "JAX_COORDINATOR_ADDRESS": f"NAME-0.NAME:{PORT}",
    "JAX_PROCESS_ID": "$(RANK)",
    "JAX_NUM_PROCESSES": str(RANKS),
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
# Rank 0 is the one that all others need.
TRAININGS = {
    "xgboost": Training("xgboost-tracker", "team/xgboost:1", XGBOOST),
    "jax": Training("jax-gloo", "team/jax:1", JAX),
    "xgboost, rank 0 is late": Training("xgboost-tracker", "team/xgboost:1", XGBOOST, late=0),
    "jax, rank 0 is late": Training("jax-gloo", "team/jax:1", JAX, late=0),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def namespace(node: Cluster) -> Iterator[str]:
    """All of them at once: most of the time they wait, for a late one or for an interpreter to start."""
    with fresh_namespace(node) as name:
        for training in TRAININGS.values():
            training.begin(node, name)
        yield name


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_ranks_add_up_what_each_of_them_has(node, namespace, training):
    said = training.finish(node, namespace)
    assert [(line.rank, line.sum) for line in said] == [(rank, training.sum) for rank in range(RANKS)]
    assert len({line.address for line in said}) == RANKS


@pytest.mark.parametrize("name", [name for name in TRAININGS if "late" in name])
def test_the_late_one_was_late(node, namespace, name):
    TRAININGS[name].finish(node, namespace)
    late, other = TRAININGS[name].began(node, namespace)
    assert other < late
