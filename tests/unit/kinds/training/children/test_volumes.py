"""What pods find on disk, and which claims are made for it."""

from __future__ import annotations

import json

import pytest

from skysail.kinds.training.children.volumes import checkpoint_directory, checkpoint_pvc, hyperparameters
from tests.unit.kinds.training.samples import container, environment, job, pod


def mounts(job):
    """Where each mount leads to: path, what is behind it, whether it can only be read."""
    sources = {row["name"]: row for row in pod(job)["volumes"]}
    return {
        mount["mountPath"]: (sources[mount["name"]], mount.get("readOnly", False))
        for mount in container(job)["volumeMounts"]
    }


@pytest.mark.parametrize("read_only", [True, False])
def test_data_is_at_data(read_only):
    claim = {"claimName": "mnist-data", **({"readOnly": True} if read_only else {})}
    assert mounts(job(dataVolume=claim)) == {"/data": ({"name": "data", "persistentVolumeClaim": claim}, read_only)}


def test_a_job_without_volumes_has_none():
    assert mounts(job()) == {}
    assert checkpoint_pvc(job()) is None
    assert hyperparameters(job()) is None


# (spec, where checkpoints are, the claim behind it)
DIRECTORIES = {
    "a directory": ({"checkpointDir": "/saved"}, "/saved", "mnist-checkpoints"),
    "one that is not absolute": ({"checkpointDir": "saved/here"}, "/saved/here", "mnist-checkpoints"),
    "a claim that is there": ({"checkpointDir": "/saved", "checkpoint": {"claimName": "mine"}}, "/saved", "mine"),
    "a claim without a directory": ({"checkpoint": {"claimName": "mine"}}, "/checkpoints", "mine"),
    "a size without a directory": ({"checkpoint": {"size": "1Gi"}}, "/checkpoints", "mnist-checkpoints"),
}


@pytest.mark.parametrize(("spec", "path", "claim"), DIRECTORIES.values(), ids=DIRECTORIES)
def test_checkpoints_have_a_volume(spec, path, claim):
    source = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}}
    assert mounts(job(**spec)) == {path: (source, False)}
    assert environment(job(**spec, checkpointInterval=5))["CHECKPOINT_DIR"] == path
    assert environment(job(**spec, checkpointInterval=5))["CHECKPOINT_INTERVAL"] == "5"
    made = checkpoint_pvc(job(**spec))
    assert (made is None) == (claim == "mine")


def test_time_to_save_is_no_wish_for_a_volume():
    assert checkpoint_directory(job(checkpoint={"gracePeriodSeconds": 60}).spec) == ""


# (spec, access mode, size, StorageClass)
CLAIMS = {
    "one worker": ({}, "ReadWriteOnce", "10Gi", None),
    "two workers": ({"workers": 2}, "ReadWriteMany", "10Gi", None),
    "one worker that may become many": ({"elastic": {"min": 1, "max": 2}}, "ReadWriteMany", "10Gi", None),
    "an evaluator beside": ({"roles": {"evaluator": {}}}, "ReadWriteMany", "10Gi", None),
    "as asked": (
        {"workers": 2, "checkpoint": {"accessMode": "ReadWriteOnce", "size": "1Gi", "storageClassName": "fast"}},
        "ReadWriteOnce",
        "1Gi",
        "fast",
    ),
}


@pytest.mark.parametrize(("spec", "mode", "size", "storage_class"), CLAIMS.values(), ids=CLAIMS)
def test_the_claim_that_is_made(spec, mode, size, storage_class):
    made = checkpoint_pvc(job(checkpointDir="/saved", **spec))["spec"]
    assert made["accessModes"] == [mode]
    assert made["resources"] == {"requests": {"storage": size}}
    assert made.get("storageClassName") == storage_class


PARAMETERS = {
    "learningRate": 0.001,
    "optimizer": "adam",
    "epochs": 10,
    "nesterov": True,
    "warmup": False,
    "path": "$(HOME)/$$x$",
    "batch-size": "64",
}


def test_hyperparameters_are_a_file():
    config = hyperparameters(job(hyperparameters=PARAMETERS))
    assert json.loads(config["data"]["hyperparameters.json"]) == PARAMETERS
    mount = container(job(hyperparameters=PARAMETERS))["volumeMounts"][0]
    assert (mount["mountPath"], mount["subPath"]) == ("/etc/skysail/hyperparameters.json", "hyperparameters.json")
    source = mounts(job(hyperparameters=PARAMETERS))["/etc/skysail/hyperparameters.json"][0]
    assert source["configMap"]["name"] == config["metadata"]["name"]


def test_hyperparameters_are_variables():
    found = environment(job(hyperparameters=PARAMETERS))
    assert {name: value for name, value in found.items() if name.startswith("HYPERPARAM_")} == {
        "HYPERPARAM_LEARNINGRATE": "0.001",
        "HYPERPARAM_OPTIMIZER": "adam",
        "HYPERPARAM_EPOCHS": "10",
        "HYPERPARAM_NESTEROV": "true",
        "HYPERPARAM_WARMUP": "false",
        "HYPERPARAM_PATH": "$(HOME)/$$x$",
        "HYPERPARAM_BATCH_SIZE": "64",
    }


def test_of_two_hyperparameters_with_one_variable_the_first_by_name_has_it():
    found = environment(job(hyperparameters={"batch_size": 2, "batch-size": 1}))
    assert found["HYPERPARAM_BATCH_SIZE"] == "1"
