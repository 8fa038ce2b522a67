"""PyTorch and TensorFlow in pods of the node `local`. Gigabytes the first time, so they are no part of `make test`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster
from tests.support.kubectl import fresh_namespace
from tests.support.training import PORT, RANKS, Training

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCH = {"MASTER_ADDR": "NAME-0.NAME", "MASTER_PORT": str(PORT), "WORLD_SIZE": str(RANKS)}
WORKERS = [f"NAME-{rank}.NAME:{PORT}" for rank in range(RANKS)]
# The index is a number there, so it has no quotes.
TF_CONFIG = json.dumps({"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": "INDEX"}})
TRAININGS = {
    "torch": Training("torch-gloo", "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime", TORCH),
    "torch, rank 0 is late": Training("torch-gloo", "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime", TORCH, late=0),
    "tensorflow": Training(
        "tensorflow-ring", "tensorflow/tensorflow:2.20.0", {"TF_CONFIG": TF_CONFIG.replace('"INDEX"', "$(RANK)")}
    ),
}

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(training, id=name, marks=[pytest.mark.on_demand] if "tensorflow" in name else [])
        for name, training in TRAININGS.items()
    ],
)
def test_ranks_add_up_what_each_of_them_has(node, training):
    with fresh_namespace(node) as namespace:
        training.begin(node, namespace)
        said = training.finish(node, namespace)
    assert [(line.rank, line.sum) for line in said] == [(rank, training.sum) for rank in range(RANKS)]
    assert len({line.address for line in said}) == RANKS
