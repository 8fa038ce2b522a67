from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.training.admission.validation import validate
from skysail.kinds.training.children.manifests import build_children
from skysail.kinds.training.plan import planner
from tests.unit.kinds.training import builders
from tests.unit.kinds.training.samples import job, jobs

DATA = {"dataVolume": {"claimName": "mnist-data"}}
GPU = "nvidia.com/gpu"


def template(**spec: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": spec}}


def trainer(**fields: Any) -> dict[str, Any]:
    return template(containers=[{"name": "trainer", **fields}])


def labelled(label: str) -> dict[str, Any]:
    return {"podTemplate": {"metadata": {"labels": {label: "x"}}}}


WRONG = [
    ({"hyperparameters": {"layers": [64, 32]}}, "spec.hyperparameters.layers is a list ([64,32]): "),
    ({"hyperparameters": {"seed": None}}, "spec.hyperparameters.seed is null (null): "),
    ({"hyperparameters": {"optimizer": {"name": "adam"}}}, 'spec.hyperparameters.optimizer is an object ({"name"'),
    ({"hyperparameters": {"long": ["x" * 100]}}, "…): write a string"),
    (
        {"hyperparameters": {"learning-rate": 1, "learning_rate": 2}},
        "same environment variable HYPERPARAM_LEARNING_RATE: rename one of them.",
    ),
    ({"hyperparameters": {"": 1}}, "spec.hyperparameters has an empty key: give it a name, such as lr."),
    ({"hyperparameters": {"lr": "x\0--ro-bind\0/\0/host"}}, "spec.hyperparameters.lr has a NUL byte"),
    ({"hyperparameters": {"l\0r": 1}}, "spec.hyperparameters has a NUL byte"),
    ({"command": ["python", "\0"]}, "spec.command[1] has a NUL byte"),
    ({"checkpointDir": "/a\0b"}, "spec.checkpointDir has a NUL byte"),
    (
        trainer(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "\0"}]),
        "spec.podTemplate.spec.containers[0].env[1].value has a NUL byte",
    ),
    ({"hyperparameters": {"lr": 1, "LR": 2}}, "HYPERPARAM_LR: rename"),
    ({"framework": "xgboost", "elastic": {"min": 1, "max": 2}}, "spec.framework is xgboost: remove spec.elastic"),
    (
        {"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}},
        "spec.resources.requests has cpu: 1500m",
    ),
    (
        {"roles": {"evaluator": {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2G"}}}}},
        "spec.roles.evaluator.resources.requests has memory: 2Gi",
    ),
    (
        {"gpuPerWorker": 2, "resources": {"limits": {GPU: 4}}},
        f"spec.gpuPerWorker is 2, but spec.resources.limits has {GPU}: 4: make them equal",
    ),
    ({"gpuPerWorker": 2, "resources": {"requests": {GPU: "1"}}}, f"spec.resources.requests has {GPU}: 1"),
    ({"resources": {"requests": {GPU: 1}, "limits": {GPU: 2}}}, f"{GPU}: 1"),
    ({"resources": {"limits": {"cpu": "1e9999999999999999999999"}, "requests": {"cpu": 1}}}, "cpu: 1e9999"),
    (
        {"resources": {"requests": {"cpu": "1e2.5"}}},
        "spec.resources.requests has cpu: 1e2.5",
    ),
    ({"resources": {"requests": {"cpu": "1e999999"}}, "scheduling": {"gang": "volcano"}}, "has cpu: 1e999999, which"),
    ({"checkpointDir": "/data", **DATA}, "spec.checkpointDir is /data, which overlaps the mount at /data: "),
    ({"checkpointDir": "data/saved/", **DATA}, "mount at /data:"),
    ({"checkpointDir": "/x/../data/saved", **DATA}, "mount at /data:"),
    ({"checkpointDir": "/"}, "spec.checkpointDir is /, which"),
    ({"checkpointDir": "/etc/skysail", "hyperparameters": {"a": 1}}, "/etc/skysail/hyperparameters.json"),
    ({"checkpointDir": "/var/run/secrets/kubernetes.io/serviceaccount/x"}, "choose another directory"),
    ({"checkpointDir": "/a:b"}, "spec.checkpointDir is /a:b: a mount path must not contain a colon"),
    (labelled("trainingjob.ml.example.com/worker"), "labels has trainingjob.ml.example.com/worker, "),
    (labelled("skysail.dev/attempt"), "skysail.dev/attempt"),
    (labelled("batch.kubernetes.io/job-name"), "batch.kubernetes.io/job-name"),
    (labelled("controller-uid"), "controller-uid"),
    (template(restartPolicy="OnFailure"), "spec.podTemplate.spec.restartPolicy is OnFailure: remove it."),
    (template(hostname="me"), "spec.podTemplate.spec.hostname is me"),
    (template(subdomain="mine"), "spec.podTemplate.spec.subdomain is mine"),
    ({**template(volumes=[{"name": "x"}, {"name": "data"}]), **DATA}, "volumes[1] is named data"),
    (template(volumes=[{"name": "x"}, {"name": "x"}]), "volumes[1] is named x, "),
    (template(volumes=None), "spec.podTemplate.spec.volumes is not a list"),
    (template(containers=None), "spec.podTemplate.spec.containers is not a list"),
    (template(containers=[{"name": "trainer"}, {"name": "trainer"}]), "containers[1] is named trainer"),
    (template(containers=[{"image": "proxy:1"}]), "spec.podTemplate.spec.containers[0] has no name"),
    (template(containers=["proxy"]), "spec.podTemplate.spec.containers[0] has no name"),
    (template(initContainers=[{"name": "trainer"}]), "initContainers[0] is named trainer"),
    (trainer(env=[{"name": "A"}, {"name": "RANK"}]), "spec.podTemplate.spec.containers[0].env[1] sets RANK"),
    (trainer(env=[{"name": "RESUME_FROM"}]), "sets RESUME_FROM"),
    ({**trainer(env=[{"name": "HYPERPARAM_LR"}]), "hyperparameters": {"lr": 1}}, "sets HYPERPARAM_LR"),
    (trainer(env=[{"name": "KUBEFLOW_TRAINER_SERVER_URL"}]), "sets KUBEFLOW_TRAINER_SERVER_URL"),
    (template(volumes=[{"name": "kubeflow-trainer-token"}]), "volumes[0] is named kubeflow-trainer-token"),
    ({"checkpointDir": "/var/run/secrets"}, "mount at /var/run/secrets/kube"),
    (trainer(env=None), "spec.podTemplate.spec.containers[0].env is not a list"),
    ({**trainer(volumeMounts=[{"name": "x", "mountPath": "/data"}]), **DATA}, "is at /data, the mount path of data"),
]


@pytest.mark.parametrize(("spec", "want"), WRONG)
def test_what_is_wrong_is_named_with_the_fix(spec, want):
    (found,) = validate(job(**spec))
    assert want in found
    assert found.startswith("spec.")
    assert found.endswith(".")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hyperparameters": {"lr": 0.1, "name": "", "nesterov": True, "epochs": 3}},
        {"elastic": {"min": 1, "max": 4}},
        {"gpuPerWorker": 2, "resources": {"limits": {GPU: "2"}, "requests": {GPU: 2, "cpu": "1000m"}}},
        {"resources": {"limits": {GPU: 2}}},
        {"resources": {"limits": {"cpu": 1}, "requests": {"memory": "9Gi", "cpu": "1e0"}}},
        {"resources": {"limits": {"cpu": "1e3"}, "requests": {"cpu": "1n"}}},
        {"checkpointDir": "/data/saved"},
        {"checkpointDir": "/database", **DATA},
        {"checkpointDir": "saved", **DATA},
        template(restartPolicy="Never", hostname=None, nodeSelector={"zone": "a"}),
        template(volumes=[{"name": "data", "emptyDir": {}}]),
        template(containers=[{"name": "sidecar", "env": [{"name": "RANK", "value": "x"}]}]),
        trainer(env=[{"name": "NCCL_DEBUG"}, {"name": "PYTHONUNBUFFERED"}, {"name": "PET_NPROC_PER_NODE"}]),
        trainer(env=[{"name": "TF_CONFIG"}]),
        labelled("team"),
        {"managedBy": "kueue.x-k8s.io/multikueue", "hyperparameters": {"layers": [64]}},
    ],
)
def test_what_can_be_trained_meets_no_objection(spec):
    assert validate(job(**spec)) == ()


@pytest.mark.parametrize("spec", [spec for spec, _ in WRONG])
def test_validation_without_admission_starts_nothing_and_sets_same_message(spec):
    wrong = builders.job(**spec)
    planned = planner.plan(builders.snapshot(wrong))
    assert planned.actions == ()
    assert planned.status.phase == "Pending"
    told = {(row.type, row.status, row.reason, row.message) for row in planned.status.conditions}
    message = " ".join(validate(wrong))
    assert {("Accepted", "False", "InvalidSpec", message), ("Running", "False", "InvalidSpec", message)} <= told
    assert [event.message for event in planned.events] == [message]


def test_an_objection_is_told_once():
    wrong = builders.job(hyperparameters={"layers": [64]})
    told = planner.plan(builders.snapshot(wrong)).status
    again = planner.plan(builders.snapshot(builders.job(hyperparameters={"layers": [64]}, status=told)))
    assert (again.status, again.events) == (told, ())


def test_a_bad_edit_never_ends_good_work_and_is_told_once():
    runs = builders.job(status=builders.status(builders.attempt(), phase="Running"))
    wrong = builders.changed(runs, checkpoint_dir="/")
    wrong = msgspec.structs.replace(wrong, metadata=msgspec.structs.replace(wrong.metadata, generation=2))
    there = (builders.child(runs), builders.pod(0), builders.pod(1))
    planned = planner.plan(builders.snapshot(wrong, *there))
    assert (planned.status.attempts[-1].cause, planned.status.phase, planned.actions) == (None, "Running", ())
    message = f"The current attempt continues with its old spec. {validate(wrong)[0]}"
    rows = {(row.type, row.status, row.reason, row.message) for row in planned.status.conditions}
    assert ("Accepted", "False", "InvalidSpec", message) in rows
    assert [event.reason for event in planned.events] == ["InvalidSpec"]
    again = planner.plan(builders.snapshot(msgspec.structs.replace(wrong, status=planned.status), *there))
    assert (again.status, again.events) == (planned.status, ())


def test_what_only_the_api_server_knows_to_be_wrong_ends_no_good_work_either():
    runs = builders.job(status=builders.status(builders.attempt(), phase="Running"))
    wrong = builders.changed(runs, image="other:1")
    there = (builders.child(runs), builders.pod(0), builders.pod(1))
    refused = "The API server rejects the pods of this spec: spec.podTemplate.spec.nodeSelektor."
    planned = planner.plan(builders.snapshot(wrong, *there, preflight_error=refused))
    assert (planned.status.attempts[-1].cause, planned.status.phase, planned.actions) == (None, "Running", ())
    rows = {(row.type, row.status, row.message) for row in planned.status.conditions}
    assert ("Accepted", "False", f"The current attempt continues with its old spec. {refused}") in rows
    assert planner.plan(builders.snapshot(wrong, *there)).status.attempts[-1].cause == "SpecChanged"


def test_nothing_begins_that_the_api_server_would_refuse():
    planned = planner.plan(builders.snapshot(builders.job(), preflight_error="The API server refuses it."))
    assert (planned.actions, planned.status.phase, planned.status.attempts) == ((), "Pending", ())
    assert planned.requeue_after is not None
    told = [row.message for row in planned.status.conditions if row.type in {"Accepted", "Running"}]
    assert told == ["The API server refuses it."] * 2


def test_after_an_attempt_that_went_on_under_a_bad_edit_no_other_begins():
    runs = builders.job(status=builders.status(builders.attempt(), phase="Running"))
    wrong = builders.changed(runs, checkpoint_dir="/")
    failed = builders.child(runs, end="Failed", reason="BackoffLimitExceeded")
    ended = planner.plan(builders.snapshot(wrong, failed, builders.pod(0, "Failed"), builders.pod(1)))
    assert ended.status.attempts[-1].cause == "Failed"
    after = msgspec.structs.replace(wrong, status=ended.status)
    later = planner.plan(builders.snapshot(after, now=builders.NOW + timedelta(hours=1)))
    assert (later.status.phase, later.actions) == ("Restarting", ())


def test_a_bad_edit_that_asks_for_roles_that_are_not_there_ends_nothing():
    runs = builders.job(framework="tensorflow", status=builders.status(builders.attempt(), phase="Running"))
    wrong = builders.job(
        framework="tensorflow", status=runs.status, roles={"chief": {}}, hyperparameters={"layers": [64]}
    )
    seen = builders.snapshot(
        wrong, builders.child(runs), builders.pod(0), builders.pod(1), missing_jobs=frozenset({"mnist-chief-0"})
    )
    assert planner.plan(seen).status.attempts[-1].cause is None


def test_a_wrong_job_that_is_held_no_more_is_not_called_held():
    held = builders.job(suspend=True, hyperparameters={"x": [1]})
    told = planner.plan(builders.snapshot(held)).status
    assert told.phase == "Suspended"
    free = msgspec.structs.replace(builders.changed(held, suspend=False), status=told)
    assert planner.plan(builders.snapshot(free)).status.phase == "Pending"


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "trainer", "RANK", "data"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "env", "volumeMounts", "mountPath", "image", "value"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
_fields = st.sampled_from(["containers", "initContainers", "volumes", "hostname", "restartPolicy", "nodeSelector"])


@given(spec=st.dictionaries(_fields, _json, max_size=4), hyperparameters=st.dictionaries(st.text(), _json, max_size=3))
def test_whatever_the_schema_takes_is_answered_by_sentences_and_never_by_a_crash(spec, hyperparameters):
    taken = job(podTemplate={"spec": spec}, hyperparameters=hyperparameters, **DATA)
    assert all(sentence.startswith("spec.") for sentence in validate(taken))
    assert build_children(taken, 0, None).jobs


@given(taken=jobs())
def test_validation_job_without_template_has_no_template_errors(taken):
    assert not [sentence for sentence in validate(taken) if "podTemplate" in sentence]
