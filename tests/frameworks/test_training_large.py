"""TrainingJobs of PyTorch and TensorFlow on the node `local`, whose pods exchange what each alone has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster
from tests.support.kubectl import fresh_namespace
from tests.support.training import RANKS, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first time, environments of gigabytes are made.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        cluster.start_operator(restart=True)
        yield cluster
        cluster.end_operator()


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name


def test_pytorch_workers_add_up_what_each_of_them_has(node: Cluster, namespace: str) -> None:
    job = TrainingJob("torch-gloo", framework="pytorch", image="pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime")
    job.begin(node, namespace)
    said = job.finish(node, namespace)
    assert [(line.rank, line.sum) for line in said] == [(rank, job.sum) for rank in range(RANKS)]
    assert len({line.address for line in said}) == RANKS


@pytest.mark.on_demand
def test_parameter_server_sums_chief_and_worker_and_ends_with_chief(node: Cluster, namespace: str) -> None:
    roles = {"chief": {}, "parameterServers": {"replicas": 1}}
    job = TrainingJob(
        "tensorflow-parameters", framework="tensorflow", image="tensorflow/tensorflow:2.20.0", workers=1, roles=roles
    )
    job.begin(node, namespace)
    [said] = job.finish(node, namespace)
    assert (said.rank, said.sum) == (0, job.sum)
    assert "kept by /job:ps/replica:0/task:0/" in job.log(node, namespace)
    node.until(lambda: job.phases(node, namespace) == {("chief", "0"): "Succeeded"}, "the others to be taken away")
