"""The children of an attempt: what they are, that the same job has the same ones, and that they fit together."""

from __future__ import annotations

import copy
import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.api.training_job import LatestCheckpoint, TrainingJob
from skysail.kinds.training.children.manifests import build_children, labels_for
from tests.unit.kinds.training.samples import FRAMEWORKS, UID, container, environment, job, jobs, pod, rendered

EVERY_ROLE = {"chief": {}, "parameterServers": {"replicas": 2}, "evaluator": {}}


def kinds(rows):
    return [(resource.kind, manifest["metadata"]["name"]) for resource, manifest in rows]


# (spec, claims, what all attempts share, Jobs)
CHILDREN = {
    "one worker": ({}, [], [], ["mnist-worker-2"]),
    "two workers": ({"workers": 2}, [], [("Service", "mnist-workers")], ["mnist-worker-2"]),
    "an elastic one": ({"elastic": {"min": 1, "max": 2}}, [], [("Service", "mnist-workers")], ["mnist-worker-2"]),
    "checkpoints": (
        {"checkpointDir": "/saved"},
        [("PersistentVolumeClaim", "mnist-checkpoints")],
        [],
        ["mnist-worker-2"],
    ),
    "hyperparameters": (
        {"hyperparameters": {"lr": 0.1}, "workers": 2},
        [],
        [("ConfigMap", "mnist-hyperparameters"), ("Service", "mnist-workers")],
        ["mnist-worker-2"],
    ),
    "every role": (
        {"framework": "tensorflow", "roles": EVERY_ROLE},
        [],
        [("Service", "mnist-workers")],
        ["mnist-chief-2", "mnist-worker-2", "mnist-ps-2", "mnist-evaluator-2"],
    ),
}


@pytest.mark.parametrize(("spec", "claims", "shared", "named"), CHILDREN.values(), ids=CHILDREN)
def test_the_children_of_an_attempt(spec, claims, shared, named):
    made = build_children(job(**spec), 2, None)
    assert kinds(made.claims) == claims
    assert kinds(made.shared) == shared
    assert kinds(made.jobs) == [("Job", name) for name in named]


def test_the_service_names_pods_before_they_are_ready():
    ((_, service),) = build_children(job(workers=2), 0, None).shared
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"trainingjob.ml.example.com/uid": UID},
        "ports": [{"name": "training", "port": 29500, "protocol": "TCP"}],
    }
    assert pod(job(workers=2))["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize("role", ["chief", "worker", "ps", "evaluator"])
def test_labels_tell_job_role_and_attempt(role):
    made = rendered(job("tensorflow", roles=EVERY_ROLE), role, 7)
    labels = {
        "trainingjob.ml.example.com/name": "mnist",
        "trainingjob.ml.example.com/uid": UID,
        "trainingjob.ml.example.com/worker": role,
        "skysail.dev/attempt": "7",
    }
    assert made["metadata"]["labels"] == labels
    assert made["spec"]["template"]["metadata"] == {"labels": labels}


def test_a_gang_fails_with_its_first_pod():
    spec = rendered(job(workers=4))["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (0, "Failed")
    assert "backoffLimitPerIndex" not in spec
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob"]


@pytest.mark.parametrize(("policy", "limit"), [("OnFailure", 3), ("Never", 0)])
def test_an_index_begins_anew_alone(policy, limit):
    spec = rendered(job(workers=2, elastic={"min": 1, "max": 4}, restartPolicy=policy))["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (limit, 0)
    assert "backoffLimit" not in spec
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["Ignore"]


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({"workers": 2}, {"rules": [{"succeededIndexes": "0"}]}),
        ({"workers": 1}, None),
        ({"workers": 2, "roles": {"chief": {}}}, None),
    ],
)
def test_worker_0_of_tensorflow_ends_the_job(spec, policy):
    assert rendered(job("tensorflow", **spec))["spec"].get("successPolicy") == policy


def test_gpus_are_limit_and_request():
    resources = {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}
    assert container(job(gpuPerWorker=2, resources=resources))["resources"] == {
        "requests": {"cpu": "2", "nvidia.com/gpu": "2"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": "2"},
    }


def test_image_command_and_arguments_are_the_jobs():
    found = container(job(args=["--epochs=10", "--rank=$(RANK)"]))
    assert (found["image"], found["command"]) == ("team/train:1", ["python", "train.py"])
    assert found["args"] == ["--epochs=10", "--rank=$(RANK)"]


def test_pods_have_time_to_save_and_their_priority():
    found = pod(job(checkpoint={"gracePeriodSeconds": 90}, scheduling={"priorityClass": "high"}))
    assert (found["terminationGracePeriodSeconds"], found["priorityClassName"]) == (90, "high")
    assert {"terminationGracePeriodSeconds", "priorityClassName"}.isdisjoint(pod(job()))


@pytest.mark.parametrize(
    ("resume", "found"),
    [
        (None, {}),
        (LatestCheckpoint(path="/saved/120", step=120), {"RESUME_FROM": "/saved/120", "RESUME_STEP": "120"}),
        (LatestCheckpoint(path="/saved/$(x)"), {"RESUME_FROM": "/saved/$(x)"}),
    ],
)
def test_an_attempt_is_told_what_to_go_on_from(resume, found):
    told = environment(job(checkpointDir="/saved"), number=3, resume=resume)
    assert {name: value for name, value in told.items() if name.startswith("RESUME")} == found
    assert told["TRAINING_ATTEMPT"] == "3"


def test_the_template_of_the_user_is_laid_over():
    wanted = {
        "metadata": {"labels": {"team": "a", "skysail.dev/attempt": "9"}, "annotations": {"note": "x"}},
        "spec": {
            "serviceAccountName": "trainer",
            "restartPolicy": "OnFailure",
            "hostname": "mine",
            "subdomain": "mine",
            "containers": [{"name": "trainer", "env": [{"name": "MASTER_PORT", "value": "1"}]}],
        },
    }
    made = rendered(job(workers=2, podTemplate=wanted))["spec"]["template"]
    assert made["metadata"]["annotations"] == {"note": "x"}
    assert (made["metadata"]["labels"]["team"], made["metadata"]["labels"]["skysail.dev/attempt"]) == ("a", "0")
    spec = made["spec"]
    assert (spec["serviceAccountName"], spec["restartPolicy"]) == ("trainer", "Never")
    assert "hostname" not in spec
    assert spec["subdomain"] == "mnist-workers"
    assert environment(job(workers=2, podTemplate=wanted))["MASTER_PORT"] == "1"


@given(jobs(), st.integers(0, 99))
def test_the_same_job_has_the_same_children(job, number):
    """Also as another process reads it, with its fields in another order."""
    plain = msgspec.to_builtins(job)
    plain["spec"] = dict(reversed(plain["spec"].items()))
    if "hyperparameters" in plain["spec"]:
        plain["spec"]["hyperparameters"] = dict(reversed(plain["spec"]["hyperparameters"].items()))
    again = msgspec.convert(json.loads(json.dumps(plain)), TrainingJob)
    before = copy.deepcopy(build_children(job, number, None))
    assert build_children(again, number, None) == before == build_children(job, number, None)


@given(jobs())
def test_the_index_comes_first_and_every_variable_once(job):
    for _, made in build_children(job, 0, None).jobs:
        env = made["spec"]["template"]["spec"]["containers"][0]["env"]
        names = [variable["name"] for variable in env]
        assert names[0] == "JOB_COMPLETION_INDEX"
        assert len(set(names)) == len(names)
        used = {name for variable in env for name in re.findall(r"(?<!\$)\$\((\w+)\)", variable.get("value", ""))}
        assert used <= {"JOB_COMPLETION_INDEX"}


@given(jobs())
def test_every_mount_has_a_volume_and_every_volume_something_behind_it(job):
    made = build_children(job, 0, None)
    ours = {manifest["metadata"]["name"] for _, manifest in (*made.claims, *made.shared)}
    theirs = {job.spec.data_volume and job.spec.data_volume.claim_name}
    theirs |= {job.spec.checkpoint and job.spec.checkpoint.claim_name}
    for _, row in made.jobs:
        spec = row["spec"]["template"]["spec"]
        sources = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} == set(sources)
        behind = {
            volume["persistentVolumeClaim"]["claimName"] for volume in sources.values() if "configMap" not in volume
        }
        assert behind <= ours | theirs


@given(jobs())
def test_all_children_are_found_by_the_jobs_labels(job):
    made = build_children(job, 0, None)
    for _, manifest in (*made.claims, *made.shared, *made.jobs):
        assert labels_for(job).items() <= manifest["metadata"]["labels"].items()
        assert manifest["metadata"]["namespace"] == "ml-jobs"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_elastic_torch_grows_without_a_new_template(framework):
    """Only how many: all else of a Job that runs is not to be changed."""
    elastic = {"min": 1, "max": 8}
    small, large = (
        build_children(job(framework, workers=n, elastic=elastic, checkpointDir="/s"), 0, None) for n in (1, 8)
    )
    ((_, one),), ((_, eight),) = small.jobs, large.jobs
    assert (one["spec"].pop("completions"), one["spec"].pop("parallelism")) == (1, 1)
    assert (eight["spec"].pop("completions"), eight["spec"].pop("parallelism")) == (8, 8)
    assert (one == eight and small.shared == large.shared) == (framework == "pytorch")
