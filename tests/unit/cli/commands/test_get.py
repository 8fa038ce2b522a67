"""`skysail get`: one object in one line, with the warnings about its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from skysail.cli import main
from skysail.kube.api.resources import EVENT, POD
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def test_get_for_programs_has_no_warning(api):
    assert run(api, "pod/torch", "-o", "name") == "pod/torch\n"
