"""`skysail get`: one object in one line, with the warnings about its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from skysail.cli import main
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.kube.api.resources import EVENT, POD
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
        event = {"type": "Warning", "reason": "ImageVersionMismatch", "note": NOTE}
        about = {"kind": "Pod", "name": "torch", "namespace": "default", "uid": pod["metadata"]["uid"]}
        metadata = {"name": "torch.1", "namespace": "default"}
        served.create(EVENT, {"metadata": metadata, "regarding": about, **event})
        yield served


def run(api: ServedApi, *arguments: str) -> str:
    command = ["get", "--kubeconfig", str(api.kubeconfig), *arguments]
    done = CliRunner().invoke(main.application(), command, catch_exceptions=False)
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


def test_get_for_programs_has_no_warning(api):
    assert run(api, "pod/torch", "-o", "name") == "pod/torch\n"
