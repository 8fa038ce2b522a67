"""Models of PyTorch behind the model server, in the environment that stands for its image on the node `local`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from skysail.local.images.environments import open_environments
from tests.support.model_server import refusal, serving

# The first time, an environment of gigabytes is made.
pytestmark = pytest.mark.timeout(1800)

MAKER = Path(__file__).parents[1] / "support" / "torch_models.py"
CODE = {"ALLOW_CODE": "1"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of the image."""
    _, environments = open_environments(tmp_path_factory.mktemp("home"), os.environ)
    environment = asyncio.run(environments.find("localhost/fastapi-pytorch:dev", lambda _: None))
    assert environment is not None
    return f"{environment.folders[0]}/bin/python"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([python, MAKER, folder], check=True)
    return folder


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("script", {}),
        ("traced-as-pth", {}),
        ("weights", CODE),
        ("weights-in-the-old-form", CODE),
        ("checkpoint", CODE),
        ("safetensors", CODE),
        ("exported", CODE),
        ("pictures", {}),
    ],
)
def test_predictions_equal_those_of_pytorch(models, python, name, variables):
    folder = models / name
    asked, wanted = (json.loads((folder / f"{file}.json").read_text()) for file in ("asked", "wanted"))
    with serving(folder, python=python, **variables) as server:
        assert "batching on" in server.said
        told = server.post("/predict", asked).json
        rank = np.ndim(asked["features"])
        wrong = server.post("/predict", {"features": np.ones((1,) * rank).tolist()})
        metadata = server.get("/v2/models/net").json
    np.testing.assert_allclose(told["predictions"], wanted["predictions"], rtol=1e-4, atol=1e-6)
    assert (wrong.status, metadata["platform"]) == (400, "pytorch")
    assert wrong.json["error"].startswith("The model failed with input of shape [1, 1")


def test_several_inputs_and_outputs_have_the_names_of_their_signature(models, python):
    folder = models / "two-inputs"
    asked, wanted = (json.loads((folder / f"{file}.json").read_text()) for file in ("asked", "wanted"))
    with serving(folder, python=python) as server:
        told = server.post("/v2/models/net/infer", asked).json
    assert {output["name"]: output["datatype"] for output in told["outputs"]} == {"sum": "FP32", "largest": "INT64"}
    for output in told["outputs"]:
        np.testing.assert_allclose(output["data"], wanted[output["name"]], rtol=1e-5)


def test_a_trace_that_knows_one_row_only_is_given_one_request_at_a_time(models, python):
    with serving(models / "baked", python=python) as server:
        assert "batching off" in server.said
        assert server.post("/predict", {"features": [[1, 2, 3, 4]]}).json == {"predictions": [[4, 6]]}


@pytest.mark.parametrize(
    ("name", "variables", "code", "sentence"),
    [
        ("whole", CODE, 65, "model.pt is a pickle of more than weights, such as a whole module"),
        ("hostile", CODE, 65, "model.pt is a pickle of more than weights"),
        ("hostile-archive", CODE, 65, "model.pt is a pickle of more than weights"),
        ("weights-alone", CODE, 65, "model.pt holds weights without code. Export the model to ONNX"),
        ("no-weights", CODE, 65, "model.pt is a list without a state_dict: "),
        ("damaged", CODE, 65, "model.pt, which looks like PyTorch weights, cannot be loaded: "),
        ("broken-code", CODE, 65, "cannot be loaded: no such layer."),
        ("other-code", CODE, 65, "cannot be loaded: Error(s) in loading state_dict"),
        ("no-make", CODE, 65, "model.py has no function make(): "),
        ("untold", {}, 65, "Put signature.json next to it with shapes that work, or set ALLOW_UNTRIED=1"),
        ("weights", {}, 78, "model.py comes with the model: set ALLOW_CODE=1"),
        ("exported", {}, 78, "is an exported program, and loading it can run code in it. Set ALLOW_CODE=1"),
        ("script", {"DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}, 78, "DEVICE=cuda is invalid: PyTorch finds no GPU."),
    ],
)
def test_nothing_is_loaded_that_should_not_be(models, python, name, variables, code, sentence):
    found, said = refusal(models / name, python=python, **variables)
    assert (found, said.count("\n")) == (code, 1), said
    assert sentence in said
    assert not (models / "ran").exists()


def test_beside_pytorch_an_onnx_model_is_still_served_without_it(python, tmp_path):
    from tests.support.onnx_models import WIDTH, Network

    network = Network()
    with serving(network.save(tmp_path / "model.onnx"), python=python) as server:
        rows = np.ones((1, WIDTH))
        np.testing.assert_allclose(
            server.post("/predict", {"features": rows.tolist()}).json["predictions"], network.predict(rows), rtol=1e-4
        )
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "onnxruntime" in mapped
    assert "libtorch" not in mapped
