"""A model is tried before it is served, and what is not needed is not imported."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from skysail.runtimes.model_server.errors import InvalidModel, InvalidSetting
from skysail.runtimes.model_server.models import ModelTraits, onnx_graph
from skysail.runtimes.model_server.models.loader import load
from skysail.runtimes.model_server.settings import Settings
from tests.support import onnx_models
from tests.support.onnx_models import WIDTH, Network


def loaded(path, **more):
    return load(Settings(model_path=str(path), threads=1, **more))


def test_a_model_is_tried_and_known(tmp_path):
    network = Network()
    served = loaded(network.save(tmp_path / "model.onnx"))
    assert served.joins
    assert [array.shape for array in served.example] == [(1, WIDTH)]
    rows = np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(served.model.run([rows])[0], network.predict(rows), rtol=1e-4)
    signature = served.model.signature
    assert [(spec.name, spec.datatype, spec.shape) for spec in (*signature.inputs, *signature.outputs)] == [
        ("features", "FP32", (-1, 16)),
        ("scores", "FP32", (-1, 4)),
    ]


def test_requests_are_joined_only_where_rows_do_not_know_each_other(tmp_path):
    assert not loaded(onnx_models.save_mixing(tmp_path / "mixing.onnx")).joins
    assert not loaded(Network().save(tmp_path / "one.onnx", rows=1)).joins
    assert not loaded(Network().save(tmp_path / "off.onnx"), batching=False).joins
    assert loaded(onnx_models.save_echo(tmp_path / "echo.onnx")).joins


@pytest.mark.parametrize("by_hand", [True, False])
def test_rows_that_would_be_quantized_by_each_other_are_not_joined(tmp_path, by_hand):
    """A row of small numbers would be rounded to nothing beside one of large ones."""
    served = loaded(onnx_models.save_quantized(tmp_path / "model.onnx", by_hand=by_hand))
    assert not served.joins
    assert served.model.traits.mixes_rows is not by_hand


def test_what_a_graph_inside_of_a_graph_computes_with_counts(tmp_path):
    """With no input that is tried does it come to that."""
    assert loaded(onnx_models.save_branching(tmp_path / "plain.onnx")).joins
    assert not loaded(onnx_models.save_branching(tmp_path / "inner.onnx", quantizing=True)).joins


def test_a_graph_is_read_as_onnx_reads_it(tmp_path):
    assert onnx_graph.traits(Network().save(tmp_path / "plain.onnx")) == ModelTraits()
    assert onnx_graph.traits(onnx_models.save_branching(tmp_path / "if.onnx")) == ModelTraits(has_branches=True)
    inner = onnx_models.save_branching(tmp_path / "inner.onnx", quantizing=True)
    assert onnx_graph.traits(inner) == ModelTraits(has_branches=True, mixes_rows=True)


def test_whole_numbers_that_are_mixed_are_seen_as_well(tmp_path):
    assert not loaded(onnx_models.save_mixing(tmp_path / "mixing.onnx", kind="INT64")).joins


def test_a_model_that_fails_with_what_it_takes_is_refused(tmp_path):
    with pytest.raises(InvalidModel, match=r"^model.onnx, which looks like ONNX, cannot be loaded: .*Reshape"):
        loaded(onnx_models.save_failing(tmp_path / "model.onnx"))


def test_a_model_that_fails_with_every_guess_is_refused_with_what_to_do(tmp_path):
    file = onnx_models.save_particular(tmp_path / "model.onnx", width=5)
    with pytest.raises(InvalidModel, match=r"Put signature.json next to it .*, or set ALLOW_UNTRIED=1 .*[^.]\.$"):
        loaded(file)
    served = loaded(file, allow_untried=True)
    assert (served.example, served.joins) == (None, False)
    assert "ALLOW_UNTRIED" in served.remark


@pytest.mark.parametrize("told", [{"shape": [-1, 5]}, {"shape": [-1, -1], "trial": [1, 5]}])
def test_what_onnx_leaves_open_can_be_said_beside_it(tmp_path, told):
    file = onnx_models.save_particular(tmp_path / "model.onnx", width=5)
    write_signature(tmp_path, told)
    served = loaded(file)
    assert served.joins
    assert [array.shape for array in served.example] == [(1, 5)]
    assert [spec.shape for spec in served.model.signature.inputs] == [tuple(told["shape"])]


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"shape": [-1, 5], "name": "x"}, r"has other inputs than the model: use features \(FP32\)"),
        ({"shape": [-1, 5], "datatype": "INT64"}, "has other inputs than the model"),
        ({"shape": [-1, 5], "trial": [1, 4]}, r"`trial` of features .* must be a shape that \[-1, 5\] allows"),
        ({"shape": [-1, -1], "trial": [1, 0]}, "`trial` of features"),
        ({"shape": [-1, 4]}, "it fails with input of its own signature"),
    ],
)
def test_what_is_said_beside_a_model_must_be_true(tmp_path, told, sentence):
    file = onnx_models.save_particular(tmp_path / "model.onnx", width=5)
    write_signature(tmp_path, told)
    with pytest.raises(InvalidModel, match=sentence):
        loaded(file)


def write_signature(folder, told):
    spec = {"name": "features", "datatype": "FP32", **told}
    (folder / "signature.json").write_text(json.dumps({"inputs": [spec]}))


def test_inputs_may_be_said_in_another_order(tmp_path):
    file = onnx_models.save_echo(tmp_path / "model.onnx")
    known = loaded(file).model.signature.inputs
    told = [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in known[::-1]]
    (tmp_path / "signature.json").write_text(json.dumps({"inputs": told}))
    served = loaded(file)
    assert [spec.name for spec in served.model.signature.inputs] == [spec.name for spec in known[::-1]]
    assert served.joins


def test_an_input_without_dimensions_is_tried_as_well(tmp_path):
    served = loaded(onnx_models.save_number(tmp_path / "model.onnx"))
    assert ([array.shape for array in served.example], served.joins) == ([()], False)


def test_what_is_no_onnx_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"<html>not found</html>")
    with pytest.raises(InvalidModel, match=r"^model.onnx begins with <html>.*, which is a web page"):
        loaded(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")  # a graph, and nothing in it
    with pytest.raises(InvalidModel, match=r"cannot be loaded: .*[^.]\.$"):
        loaded(tmp_path)


def test_without_pytorch_its_models_are_refused_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidSetting, match="has no PyTorch: use fastapi-pytorch instead of fastapi-onnx"):
        loaded(tmp_path)


CODE = """
import sys
from skysail.runtimes.model_server import __main__
from skysail.runtimes.model_server.models.loader import load
from skysail.runtimes.model_server.settings import Settings
load(Settings(model_path=sys.argv[1]))
print(sorted({"torch", "fastapi", "pydantic", "onnx", "onnxruntime"} & sys.modules.keys()))
print(sorted(name for name in sys.modules if name.startswith("skysail.") and not name.startswith("skysail.runtimes")))
"""


def test_an_onnx_model_needs_neither_pytorch_nor_the_rest_of_skysail(tmp_path):
    """PyTorch can be imported here, and is not."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    Network().save(tmp_path / "model.onnx")
    said = subprocess.run(
        [sys.executable, "-c", CODE, tmp_path / "model.onnx"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert said.splitlines() == ["['onnxruntime']", "[]"]
