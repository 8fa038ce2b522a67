"""Which file is the model, and what it is."""

import pickle
import zipfile

import pytest

from skysail.runtimes.fastapi_pytorch.errors import WrongModel, WrongSetting
from skysail.runtimes.fastapi_pytorch.models import files
from skysail.runtimes.fastapi_pytorch.models.files import Format


def put(folder, *names, content=b"x"):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def archive(file, *members):
    with zipfile.ZipFile(file, "w") as made:
        for member in members:
            made.writestr(f"archive/{member}", b"x")
    return file


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["anything.onnx"], "anything.onnx"),
        (["model.onnx", "other.onnx"], "model.onnx"),
        (["model.onnx", "model.safetensors", "config.json"], "model.onnx"),
        (["README.md", "onnx/model.onnx"], "onnx/model.onnx"),
        (["model.safetensors", "onnx/model.onnx"], "model.safetensors"),
    ],
)
def test_a_folder_has_one_model(tmp_path, names, chosen):
    assert files.find(put(tmp_path, *names)).file == tmp_path / chosen


def test_a_file_is_a_model(tmp_path):
    put(tmp_path, "a.onnx", "b.onnx")
    assert files.find(tmp_path / "b.onnx").file == tmp_path / "b.onnx"


def test_a_folder_with_several_is_not_guessed_at(tmp_path):
    with pytest.raises(WrongModel, match=r"several models \(a.onnx, b.onnx\); name one of them `model`"):
        files.find(put(tmp_path, "a.onnx", "b.onnx"))


def test_a_folder_without_one_says_what_is_looked_for(tmp_path):
    with pytest.raises(WrongModel, match=r"none of its files ends in .onnx, .pt, .pth, .safetensors, .pt2"):
        files.find(put(tmp_path, "README.md"))


def test_a_path_that_is_not_there_is_a_setting(tmp_path):
    with pytest.raises(WrongSetting, match=r"There is no .*missing; MODEL_PATH must name"):
        files.find(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "members", "format_"),
    [
        ("model.pt", ["data.pkl", "constants.pkl", "code/net.py"], Format.SCRIPT),
        ("model.pth", ["data.pkl", "data/0", "version"], Format.WEIGHTS),
        ("model.pt2", ["models/model.json", "archive_format"], Format.EXPORTED),
        ("model.pt", ["models/model.json", "archive_format"], Format.EXPORTED),
        ("model.pt2", ["serialized_exported_program.json"], Format.EXPORTED),
    ],
)
def test_the_content_says_what_pytorch_wrote(tmp_path, name, members, format_):
    assert files.find(archive(tmp_path / name, *members)).format is format_


def test_a_bare_pickle_may_be_old_weights(tmp_path):
    put(tmp_path, "model.pt", content=pickle.dumps({"a": 1}))
    assert files.find(tmp_path).format is Format.WEIGHTS


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "model.pt is empty"), (b"<!DOCTYPE html>", "no model of PyTorch; it begins with b'<!'")],
)
def test_what_is_no_model_is_refused(tmp_path, content, sentence):
    with pytest.raises(WrongModel, match=sentence):
        files.find(put(tmp_path, "model.pt", content=content))


def test_another_archive_is_refused(tmp_path):
    with pytest.raises(WrongModel, match="none that PyTorch has written"):
        files.find(archive(tmp_path / "model.pt", "holiday.jpg"))
