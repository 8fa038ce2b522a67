"""The environment of each framework, as the program of each role and rank finds it; and what can begin anew alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.children.replica_groups import replica_groups
from tests.unit.kinds.training.samples import environment, job, jobs

# What every container has, whatever its framework.
COMMON = {
    "JOB_COMPLETION_INDEX",
    "POD_NAME",
    "POD_IP",
    "PYTHONUNBUFFERED",
    "TRAINING_ATTEMPT",
}
EVERY_ROLE = {"chief": {}, "parameterServers": {"replicas": 2}, "evaluator": {}}


def of_framework(*arguments, **options):
    return {name: value for name, value in environment(*arguments, **options).items() if name not in COMMON}


def ranks(master, port, world, rank):
    return {"MASTER_ADDR": master, "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "RANK": str(rank)}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_torch_and_torchrun(rank):
    first = "mnist-worker-4-0.mnist-workers"
    assert of_framework(job(workers=3, gpuPerWorker=2), index=rank, number=4) == {
        **ranks(first, 29500, 3, rank),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": "29500",
        "PET_NNODES": "3",
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": "2",
    }


def test_one_worker_of_torch_finds_itself():
    assert of_framework(job()) == {
        **ranks("localhost", 29500, 1, 0),
        "PET_MASTER_ADDR": "localhost",
        "PET_MASTER_PORT": "29500",
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "1",
    }


@pytest.mark.parametrize(("policy", "restarts"), [("OnFailure", "5"), ("Never", "0")])
def test_elastic_torch_is_told_no_rank_and_no_size(policy, restarts):
    elastic = job(workers=2, elastic={"min": 1, "max": 8}, runPolicy={"backoffLimit": 5}, restartPolicy=policy)
    assert of_framework(elastic, index=1, number=2) == {
        "PET_NPROC_PER_NODE": "1",
        "PET_NNODES": "1:8",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "mnist-worker-2-0.mnist-workers:29500",
        "PET_RDZV_ID": "mnist-2",
        "PET_MAX_RESTARTS": restarts,
    }


CLUSTER = {
    "chief": ["mnist-chief-0-0.mnist-workers:2222"],
    "worker": ["mnist-worker-0-0.mnist-workers:2222", "mnist-worker-0-1.mnist-workers:2222"],
    "ps": ["mnist-ps-0-0.mnist-workers:2222", "mnist-ps-0-1.mnist-workers:2222"],
}


@pytest.mark.parametrize(
    ("role", "index"), [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("evaluator", 0)]
)
def test_tf_config_tells_each_task_who_it_is(role, index):
    found = of_framework(job("tensorflow", workers=2, roles=EVERY_ROLE), role, index)
    assert json.loads(found["TF_CONFIG"]) == {"cluster": CLUSTER, "task": {"type": role, "index": index}}
    assert found["GRPC_FAIL_FAST"] == "use_caller"
    assert ("RANK" in found) == (role == "worker")


def test_workers_of_tensorflow_without_other_roles():
    found = of_framework(job("tensorflow", workers=2), index=1)
    config = json.loads(found.pop("TF_CONFIG"))
    assert config == {"cluster": {"worker": CLUSTER["worker"]}, "task": {"type": "worker", "index": 1}}
    assert found == ranks("mnist-worker-0-0.mnist-workers", 2222, 2, 1)


def test_one_worker_of_tensorflow_needs_no_cluster():
    assert of_framework(job("tensorflow")) == ranks("localhost", 2222, 1, 0)


@pytest.mark.parametrize(("gpus", "processes"), [(0, "2"), (1, "2"), (4, "8")])
def test_xgboost_finds_its_tracker(gpus, processes):
    first = "mnist-worker-0-0.mnist-workers"
    assert of_framework(job("xgboost", workers=2, gpuPerWorker=gpus), index=1) == {
        **ranks(first, 29500, 2, 1),
        "DMLC_TRACKER_URI": first,
        "DMLC_TRACKER_PORT": "29500",
        "DMLC_TASK_ID": "1",
        "DMLC_NUM_WORKER": processes,
    }


# (workers, GPUs of each, whether processes need gloo to exchange anything)
@pytest.mark.parametrize(("workers", "gpus", "gloo"), [(2, 0, True), (2, 1, False), (1, 0, False)])
def test_jax_finds_its_coordinator(workers, gpus, gloo):
    first = "mnist-worker-0-0.mnist-workers" if workers > 1 else "localhost"
    assert of_framework(job("jax", workers=workers, gpuPerWorker=gpus), index=workers - 1) == {
        **ranks(first, 29500, workers, workers - 1),
        "JAX_COORDINATOR_ADDRESS": f"{first}:29500",
        "JAX_NUM_PROCESSES": str(workers),
        "JAX_PROCESS_ID": str(workers - 1),
        **({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"} if gloo else {}),
    }


@pytest.mark.parametrize("framework", ["pytorch", "xgboost", "jax"])
def test_an_evaluator_is_none_of_the_ranks(framework):
    assert of_framework(job(framework, workers=2, roles={"evaluator": {}}), "evaluator") == {}


# (framework, spec, roles whose pods are replaced one by one)
SCOPES = [
    ("pytorch", {"workers": 2}, set()),
    ("pytorch", {"workers": 2, "roles": {"evaluator": {}}}, {"evaluator"}),
    ("pytorch", {"workers": 2, "elastic": {"min": 1, "max": 4}}, {"worker"}),
    ("tensorflow", {"workers": 2}, set()),
    ("tensorflow", {"workers": 2, "roles": {"parameterServers": {}}}, set()),
    ("tensorflow", {"workers": 2, "roles": {"chief": {}}}, set()),
    ("tensorflow", {"workers": 2, "roles": EVERY_ROLE}, {"worker", "evaluator"}),
    ("xgboost", {"workers": 2, "elastic": {"min": 1, "max": 4}}, set()),
    ("jax", {"workers": 2}, set()),
]


@pytest.mark.parametrize(("framework", "spec", "alone"), SCOPES)
def test_who_begins_anew_alone(framework, spec, alone):
    spec = job(framework, **spec).spec
    scopes = {
        replica_group.role: FRAMEWORKS[framework].restart_scope(spec, replica_group.role)
        for replica_group in replica_groups(spec)
    }
    assert {role for role, scope in scopes.items() if scope == "index"} == alone


@given(jobs())
def test_every_host_that_a_pod_is_told_is_a_pod_of_its_attempt(job):
    """A pod's host is `<Job>-<index>`, below the Service that it names as its subdomain."""
    made = build_children(job, 3, None)
    service = next((row["metadata"]["name"] for _, row in made.shared if row["kind"] == "Service"), None)
    hosts = {
        f"{row['metadata']['name']}-{index}.{service}"
        for _, row in made.jobs
        for index in range(row["spec"]["completions"])
    }
    for replica_group in replica_groups(job.spec):
        found = environment(job, replica_group.role, replica_group.replicas - 1, number=3)
        told = [found[name] for name in ("MASTER_ADDR", "PET_MASTER_ADDR", "DMLC_TRACKER_URI") if name in found]
        addresses = [found[name] for name in ("PET_RDZV_ENDPOINT", "JAX_COORDINATOR_ADDRESS") if name in found]
        if "TF_CONFIG" in found:
            addresses += [host for some in json.loads(found["TF_CONFIG"])["cluster"].values() for host in some]
        told += [address.partition(":")[0] for address in addresses]
        assert set(told) <= (hosts if service else {"localhost"})
