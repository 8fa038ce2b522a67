"""TrainingJobs whose workers find each other by what Skysail tells them, and exchange what each alone has.

PyTorch and TensorFlow are large, and have a stage of their own: `make test-frameworks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster
from tests.support.kubectl import fresh_namespace
from tests.support.training import RANKS, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = {
    "xgboost": TrainingJob("xgboost-tracker", framework="xgboost", image="team/xgboost:1"),
    "jax": TrainingJob("jax-gloo", framework="jax", image="team/jax:1"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        cluster.start_operator(restart=True)
        yield cluster
        cluster.end_operator()


@pytest.fixture(scope="module")
def namespace(node: Cluster) -> Iterator[str]:
    """All of them at once: most of the time they wait for an interpreter to start."""
    with fresh_namespace(node) as name:
        for job in JOBS.values():
            job.begin(node, name)
        yield name


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_workers_add_up_what_each_of_them_has(node: Cluster, namespace: str, job: TrainingJob) -> None:
    said = job.finish(node, namespace)
    assert [(line.rank, line.sum) for line in said] == [(rank, job.sum) for rank in range(RANKS)]
    assert len({line.address for line in said}) == RANKS
