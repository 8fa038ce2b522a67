"""Output of `skysail train` and `skysail serve` for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from skysail.cli import cluster, main
from skysail.cli.cluster import NamespaceMissing
from skysail.cli.commands import train
from skysail.cli.serve.packing import NotAModel
from skysail.cli.train import code
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT
from skysail.kinds.training.api.training_job import TRAINING_JOB
from skysail.local.errors import Misused
from tests.support.served_api import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from tests.support.served_api import ServedApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ServedApi]:
    with serve(tmp_path) as served:
        yield served


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "fit.py"
    path.write_text("print(1)\n")
    return path


def skysail(*words: str | Path) -> Result:
    return CliRunner().invoke(main.application(), [str(word) for word in words])


def test_train_detached_prints_the_name_of_the_job_and_nothing_else(api, script):
    done = skysail("train", script, "--image", "python:3.12", "-d", "-o", "name", "--kubeconfig", api.kubeconfig)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"trainingjob.{TRAINING_JOB.resource.group}/fit\n"


def test_train_detached_prints_the_job_as_json(api, script):
    done = skysail("train", script, "--image", "python:3.12", "-d", "-o", "json", "--kubeconfig", api.kubeconfig)
    assert {key: json.loads(done.stdout)[key] for key in ("kind", "namespace", "name")} == {
        "kind": "TrainingJob",
        "namespace": "default",
        "name": "fit",
    }


@pytest.mark.parametrize("is_folder", [False, True], ids=["script", "folder"])
def test_train_packages_of_all_three_sources_are_merged_without_doubles(tmp_path, is_folder):
    script = tmp_path / "train.py"
    script.write_text('# /// script\n# dependencies = ["numpy", "pandas<3"]\n# ///\nprint(1)\n')
    (tmp_path / "requirements.txt").write_text("torch>=2,<3\npandas<3  # tables\nscipy\n")
    source = tmp_path if is_folder else script
    found = train._packages(source, code.read(source), ("torch>=2,<3,numpy", "rich"))
    assert found == ("torch>=2,<3", "numpy", "rich", "pandas<3", "scipy")


def test_train_script_that_requires_another_python_is_refused_unless_an_image_is_named(script):
    script.write_text('# /// script\n# requires-python = ">=3.99"\n# ///\nprint(1)\n')
    done = skysail("train", script, "--dry-run")
    assert isinstance(done.exception, Misused)
    assert "fit.py requires Python >=3.99, but its environment has Python" in str(done.exception)
    assert skysail("train", script, "--image", "python:3.99", "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("-o", "name"), "--detach"),
        (("-o", "json"), "--detach"),
        (("-o", "yaml", "-d"), "--dry-run"),
        (("-o", "csv"), "name"),
    ],
)
def test_train_output_that_it_cannot_have_names_the_fix_and_creates_nothing(api, script, words, fix):
    done = skysail("train", script, "--image", "python:3.12", *words, "--kubeconfig", api.kubeconfig)
    assert done.exit_code == 2
    assert fix in done.output
    assert api.writes == []


@pytest.mark.parametrize("form", ["text", "yaml", "json", "name"])
def test_train_dry_run_prints_both_manifests_without_a_cluster(script, form):
    done = skysail("train", script, "--image", "python:3.12", "--dry-run", "-o", form, "--kubeconfig", "/nowhere")
    assert done.exit_code == 0, done.output
    kinds = {
        "name": lambda text: [line.partition(".")[0].partition("/")[0] for line in text.splitlines()],
        "json": lambda text: [item["kind"].lower() for item in json.loads(text)["items"]],
    }.get(form, lambda text: [item["kind"].lower() for item in yaml.safe_load_all(text)])
    assert kinds(done.stdout) == ["configmap", "trainingjob"]


@pytest.mark.parametrize(("form", "read"), [("text", yaml.safe_load), ("yaml", yaml.safe_load), ("json", json.loads)])
def test_serve_dry_run_prints_the_manifest(api, form, read):
    words = ("serve", "https://example.com/a.onnx", "--dry-run", "-o", form, "--kubeconfig", api.kubeconfig)
    assert read(skysail(*words).stdout)["kind"] == "ModelDeployment"


def test_serve_dry_run_prints_the_name(api):
    done = skysail("serve", "https://example.com/a.onnx", "--dry-run", "-o", "name", "--kubeconfig", api.kubeconfig)
    assert done.stdout == f"modeldeployment.{MODEL_DEPLOYMENT.resource.group}/a\n"


def test_serve_yaml_without_dry_run_names_the_fix_and_creates_nothing(api):
    done = skysail("serve", "https://example.com/a.onnx", "-o", "yaml", "--kubeconfig", api.kubeconfig)
    assert done.exit_code == 2
    assert "--dry-run" in done.output
    assert api.writes == []


@pytest.mark.parametrize("command", ["train", "serve", "serve an address"])
def test_missing_namespace_is_named_with_the_fix_before_anything_is_created(api, tmp_path, script, command):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    words = {
        "train": ("train", script, "--image", "python:3.12", "-d"),
        "serve": ("serve", model),
        "serve an address": ("serve", "https://example.com/m.onnx"),
    }
    done = skysail(*words[command], "-n", "nosuchns", "--kubeconfig", api.kubeconfig)
    assert isinstance(done.exception, NamespaceMissing)
    assert "run `kubectl create namespace nosuchns`" in str(done.exception)
    assert api.writes == []


def test_namespace_that_may_not_be_read_is_no_obstacle(api):
    api.forbidden = {"default"}

    async def check(client):
        await cluster.check_namespace(client, "default")

    cluster.run_client(cluster.access(api.kubeconfig, None), check)


@pytest.mark.parametrize(
    ("name", "words"), [("nope.onnx", "not found"), ("empty.onnx", "is empty"), ("empty", "has no file with content")]
)
def test_serve_source_without_a_model_is_a_mistake_in_the_command(api, tmp_path, name, words):
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "empty").mkdir()
    done = skysail("serve", tmp_path / name, "--kubeconfig", api.kubeconfig)
    assert isinstance(done.exception, NotAModel)
    assert words in str(done.exception)
    assert done.exception.exit_code == 2
    assert api.writes == []
