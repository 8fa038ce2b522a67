"""`skysail get`: one object in one line, with the warnings about its pods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from skysail.base.names import Label
from skysail.cli import main
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kinds.training.objects import INDEX_LABEL
from skysail.kube.api.resources import EVENT, NAMESPACE, POD
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.support.served_api import ServedApi

NOTE = "main: Image pytorch/pytorch:1.12.0 runs with torch 2.15.0 on this machine."


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        spec = {"containers": [{"name": "main", "image": "pytorch/pytorch:1.12.0"}]}
        pod = served.create(POD, {"metadata": {"name": "torch", "namespace": "default"}, "spec": spec})
        warn(served, pod)
        yield served


def warn(api: ServedApi, pod: dict[str, Any]) -> None:
    """Write the event about another version of the pod's image."""
    event = {"type": "Warning", "reason": "ImageVersionMismatch", "note": NOTE}
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    about = {"kind": "Pod", "name": name, "namespace": "default", "uid": uid}
    api.create(EVENT, {"metadata": {"name": f"{name}.1", "namespace": "default"}, "regarding": about, **event})


def run(api: ServedApi, *arguments: str, command: str = "get") -> str:
    words = [command, "--kubeconfig", str(api.kubeconfig), *arguments]
    done = CliRunner().invoke(main.application(), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_get_of_a_pod_says_what_runs_instead_of_its_image(api):
    header, row, warning = run(api, "pod/torch").splitlines()
    assert (header.split()[0], row.split()[:2]) == ("KIND", ["Pod", "torch"])
    assert warning == f"Warning: {NOTE.removeprefix('main: ')}"


def job(name: str, phase: str, message: str) -> dict[str, Any]:
    """Return a TrainingJob that is in this phase for this reason."""
    condition = {"type": "Running", "status": "False", "reason": "Starting", "message": message}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"framework": "pytorch", "image": "pytorch/pytorch:2.9.0", "command": ["fit"], "workers": 1},
        "status": {"phase": phase, "conditions": [condition]},
    }


def test_get_of_a_pending_job_says_what_it_waits_for(api):
    api.create(TRAINING_JOB.resource, job("fit", "Pending", "Worker 0 is preparing its image [1/2]."))
    header, row, *rest = run(api, "fit").splitlines()
    assert (header.split()[0], row.split()[:4]) == ("NAME", ["fit", "pytorch", "0/1", "Pending"])
    assert rest == ["Worker 0 is preparing its image [1/2]."]


def test_get_of_a_running_job_is_its_row_alone(api):
    api.create(TRAINING_JOB.resource, job("fit", "Running", "All pods run."))
    assert len(run(api, "fit").splitlines()) == 2


def test_get_watch_of_a_finished_job_prints_its_message_below_the_row(api):
    api.create(TRAINING_JOB.resource, job("fit", "Succeeded", "Training job completed successfully"))
    _, row, *rest = run(api, "fit", "--watch").splitlines()
    assert row.split()[3] == "Succeeded"
    assert rest == ["Training job completed successfully"]


MODEL = {
    "metadata": {"name": "iris", "namespace": "default"},
    "spec": {"modelURI": "https://example.com/m.onnx", "runtime": "fastapi-pytorch", "version": "2"},
    "status": {"phase": "Ready", "replicas": 2, "readyReplicas": 1},
}


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ((), ["ModelDeployment", "TrainingJob"]),
        (("jobs",), ["TrainingJob"]),
        (("models",), ["ModelDeployment"]),
        (("endpoints",), []),
    ],
    ids=["all", "jobs", "models", "endpoints"],
)
def test_get_of_a_group_lists_its_kinds_in_each_form(api, words, kinds):
    api.create(TRAINING_JOB.resource, job("fit", "Pending", "Worker 0 is preparing its image."))
    api.create(MODEL_DEPLOYMENT.resource, MODEL)
    api.create(NAMESPACE, {"metadata": {"name": "ml"}})
    api.create(MODEL_DEPLOYMENT.resource, {**MODEL, "metadata": {"name": "other", "namespace": "ml"}})
    lines = [line.split()[:3] for line in run(api, *words).splitlines()]
    rows = {"ModelDeployment": ["ModelDeployment", "iris", "Ready"], "TrainingJob": ["TrainingJob", "fit", "Pending"]}
    assert lines == ([["KIND", "NAME", "PHASE"], *(rows[kind] for kind in kinds)] if kinds else [])
    facts = json.loads(run(api, *words, "-o", "json"))
    assert [(fact["kind"], fact["namespace"]) for fact in facts] == [(kind, "default") for kind in kinds]
    names = {
        "ModelDeployment": "modeldeployment.mlops.sathvik.dev/iris",
        "TrainingJob": "trainingjob.ml.example.com/fit",
    }
    assert run(api, *words, "-o", "name").splitlines() == [names[kind] for kind in kinds]


@pytest.mark.parametrize("command", ["get", "why"])
def test_warning_about_another_image_version_is_shown_for_a_training(api, command):
    api.create(TRAINING_JOB.resource, job("fit", "Running", "All pods run."))
    (training,) = api.objects(TRAINING_JOB.resource)
    uid = training["metadata"]["uid"]
    labels = {Label.TRAINING_JOB_UID: uid, Label.ATTEMPT: "0", Label.WORKER: "worker", INDEX_LABEL: "0"}
    spec = {"containers": [{"name": "trainer", "image": "pytorch/pytorch:1.12.0"}]}
    pod = api.create(
        POD, {"metadata": {"name": "fit-worker-0", "namespace": "default", "labels": labels}, "spec": spec}
    )
    warn(api, pod)
    shown = run(api, "fit", command=command)
    assert shown.splitlines()[-1] == f"Warning: Worker 0: {NOTE.removeprefix('main: ')}"


def test_get_for_programs_has_no_warning(api):
    assert run(api, "pod/torch", "-o", "name") == "pod/torch\n"
