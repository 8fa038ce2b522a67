"""Which pods a job has, and whose success is the job's."""

from __future__ import annotations

import pytest

from skysail.kinds.training.children.replica_groups import is_elastic, max_pods, replica_groups
from tests.unit.kinds.training.samples import job

EVERY_ROLE = {"chief": {}, "parameterServers": {"replicas": 2}, "evaluator": {}}

# (framework, spec, [(role, replicas)] in the order of ranks, [(role, the pod that decides)])
CASES = {
    "one worker": ("pytorch", {}, [("worker", 1)], [("worker", None)]),
    "all workers decide": ("pytorch", {"workers": 4}, [("worker", 4)], [("worker", None)]),
    "all workers of XGBoost": ("xgboost", {"workers": 2}, [("worker", 2)], [("worker", None)]),
    "all workers of JAX": ("jax", {"workers": 2}, [("worker", 2)], [("worker", None)]),
    "worker 0 of TensorFlow": ("tensorflow", {"workers": 2}, [("worker", 2)], [("worker", 0)]),
    "the one worker of TensorFlow": ("tensorflow", {}, [("worker", 1)], [("worker", None)]),
    "worker 0 beside servers": (
        "tensorflow",
        {"workers": 2, "roles": {"parameterServers": {}}},
        [("worker", 2), ("ps", 1)],
        [("worker", 0)],
    ),
    "the chief": (
        "tensorflow",
        {"workers": 3, "roles": EVERY_ROLE},
        [("chief", 1), ("worker", 3), ("ps", 2), ("evaluator", 1)],
        [("chief", None)],
    ),
    "an evaluator decides nothing": (
        "pytorch",
        {"workers": 2, "roles": {"evaluator": {}}},
        [("worker", 2), ("evaluator", 1)],
        [("worker", None)],
    ),
}


@pytest.mark.parametrize(("framework", "spec", "pods", "decisive"), CASES.values(), ids=CASES)
def test_the_pods_of_a_job_in_the_order_of_ranks(framework, spec, pods, decisive):
    found = replica_groups(job(framework, **spec).spec)
    assert [(replica_group.role, replica_group.replicas) for replica_group in found] == pods
    assert [
        (replica_group.role, replica_group.success_index) for replica_group in found if replica_group.decides_success
    ] == decisive
    assert max_pods(job(framework, **spec).spec) == sum(count for _, count in pods)


def test_what_a_role_does_not_say_is_as_for_a_worker():
    worker = {"args": ["--epochs=1"], "gpuPerWorker": 2, "resources": {"requests": {"cpu": "2"}}}
    chief, workers = replica_groups(job("tensorflow", **worker, roles={"chief": {}}).spec)
    assert (chief.image, chief.command, chief.args, chief.resources, chief.gpus) == (
        workers.image,
        workers.command,
        workers.args,
        workers.resources,
        workers.gpus,
    )


# (what the role says, what its pods run)
COMMANDS = [
    ({}, (("python", "train.py"), ("--epochs=1",))),
    ({"command": ["serve"]}, (("serve",), ())),
    ({"args": ["--serve"]}, (("python", "train.py"), ("--serve",))),
    ({"command": ["serve"], "args": ["--now"]}, (("serve",), ("--now",))),
]


@pytest.mark.parametrize(("role", "runs"), COMMANDS)
def test_arguments_belong_to_their_command(role, runs):
    evaluator = replica_groups(job(args=["--epochs=1"], roles={"evaluator": role}).spec)[-1]
    assert (evaluator.command, evaluator.args) == runs


# (spec, GPUs of each worker, of each parameter server)
GPUS = [
    ({"gpuPerWorker": 2}, 2, 0),
    ({"resources": {"limits": {"nvidia.com/gpu": "1"}}}, 1, 0),
    ({"resources": {"requests": {"nvidia.com/gpu": 3}}}, 3, 0),
    ({"gpuPerWorker": 2, "resources": {"limits": {"nvidia.com/gpu": "1"}}}, 2, 0),
    ({"resources": {"limits": {"nvidia.com/gpu": "1k"}}}, 0, 0),
    ({}, 0, 0),
]


@pytest.mark.parametrize(("spec", "of_worker", "of_server"), GPUS)
def test_gpus_of_workers_and_of_parameter_servers(spec, of_worker, of_server):
    workers, servers = replica_groups(job("tensorflow", **spec, roles={"parameterServers": {}}).spec)
    assert (workers.gpus, servers.gpus) == (of_worker, of_server)


def test_parameter_servers_share_the_rest_and_have_gpus_where_they_say_so():
    shared = {"resources": {"limits": {"nvidia.com/gpu": 1, "memory": "4Gi"}, "requests": {"cpu": "2"}}}
    servers = replica_groups(job("tensorflow", **shared, roles={"parameterServers": {}}).spec)[-1]
    assert (servers.resources.limits, servers.resources.requests) == ({"memory": "4Gi"}, {"cpu": "2"})
    own = {"parameterServers": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}
    assert replica_groups(job("tensorflow", **shared, roles=own).spec)[-1].gpus == 1


def test_a_role_with_resources_of_its_own_has_no_gpus_but_those():
    spec = job(gpuPerWorker=2, roles={"evaluator": {"resources": {"requests": {"cpu": "1"}}}}).spec
    assert replica_groups(spec)[-1].gpus == 0


@pytest.mark.parametrize(("framework", "elastic", "pods"), [("pytorch", True, 8), ("jax", False, 2)])
def test_only_torch_grows_in_place(framework, elastic, pods):
    spec = job(framework, workers=2, elastic={"min": 1, "max": 8}).spec
    assert (is_elastic(spec), max_pods(spec)) == (elastic, pods)
