"""Which file is the model, and what it is."""

import pickle
import zipfile
from pathlib import Path

import pytest

from skysail.runtimes import model_formats
from skysail.runtimes.model_formats import Format, NoModel
from tests.support.onnx_models import Network

# As short as they come: a version, and a graph without anything in it.
ONNX = b"\x08\x08\x3a\x00"
SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


def put(folder, *names, content=None):
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        usual = SAFETENSORS if file.suffix == ".safetensors" else ONNX
        file.write_bytes(usual if content is None else content)
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
    assert model_formats.find(put(tmp_path, *names)).file == tmp_path / chosen


def test_a_file_is_a_model(tmp_path):
    put(tmp_path, "a.onnx", "b.onnx")
    assert model_formats.find(tmp_path / "b.onnx").file == tmp_path / "b.onnx"


def test_a_folder_with_several_is_not_guessed_at(tmp_path):
    with pytest.raises(NoModel, match=r"several models \(a.onnx, b.onnx\): name one of them `model`"):
        model_formats.find(put(tmp_path, "a.onnx", "b.onnx"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("README.md", "No file ends in .onnx, .pt, .pth, .safetensors, .pt2"),
        ("net.h5", "net.h5 is a Keras file: export the model to ONNX"),
        ("net.PKL", "net.PKL is a pickle"),
    ],
)
def test_a_folder_without_one_says_what_is_looked_for(tmp_path, name, told):
    with pytest.raises(NoModel) as raised:
        model_formats.find(put(tmp_path, name))
    assert told in str(raised.value)


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
    assert model_formats.find(archive(tmp_path / name, *members)).format is format_


def test_a_bare_pickle_may_be_old_weights(tmp_path):
    put(tmp_path, "model.pt", content=pickle.dumps({"a": 1}))
    assert model_formats.find(tmp_path).format is Format.WEIGHTS


PAGE = "which is a web page, perhaps a login page: use the URL"
DAMAGED = "upload it again, or correct its name."


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pth", ".safetensors", ".pt2"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>\n<html>", f"begins with <!DOCTYPE html>, {PAGE}"),
        (b"\r\n  <HTML lang=en>", f"begins with <HTML lang=en>, {PAGE}"),
        (b"<!-- made by x -->\n<html>", PAGE),
        (b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey', "an answer of an object store"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b'{"error": "not found"}', 'begins with {"error": "not found"}: upload it again'),
        (b"no model at all", f"begins with no model at all: {DAMAGED}"),
        (b"\x89HDF\r\n\x1a\n\0\0", "which is HDF5, a Keras format"),
        (b"GGUF\3\0\0\0", "which is GGUF"),
        (b"\x1f\x8b\x08\0", "which is gzip"),
    ],
)
def test_what_is_no_model_is_told_with_what_it_is(tmp_path, suffix, content, told):
    with pytest.raises(NoModel) as raised:
        model_formats.find(put(tmp_path, f"model{suffix}", content=content))
    assert str(raised.value).startswith(f"model{suffix} ")
    assert told in str(raised.value)


@pytest.mark.parametrize("name", ["model.pt", "model.onnx", "model.safetensors"])
def test_another_archive_is_refused(tmp_path, name):
    with pytest.raises(NoModel, match="a zip archive that PyTorch did not write"):
        model_formats.find(archive(tmp_path / name, "holiday.jpg"))


def test_of_an_onnx_file_every_byte_must_be_there(tmp_path: Path):
    whole = Network().save(tmp_path / "model.onnx").read_bytes()
    assert model_formats.find(tmp_path).format is Format.ONNX
    for length in range(1, len(whole), 7):
        with pytest.raises(NoModel, match=r"not a complete \.onnx file"):
            model_formats.find(put(tmp_path, "model.onnx", content=whole[:length]))


@pytest.mark.parametrize("content", [SAFETENSORS[:8], (3).to_bytes(8, "little") + b"{}", b"{}" * 20])
def test_of_safetensors_the_header_must_be_there(tmp_path, content):
    with pytest.raises(NoModel, match=r"not a complete \.safetensors file"):
        model_formats.find(put(tmp_path, "model.safetensors", content=content))


@pytest.mark.parametrize(
    ("names", "lacks"),
    [(["m.safetensors"], True), (["m.safetensors", "model.py"], False), (["m.onnx"], False)],
)
def test_weights_need_the_code_that_they_belong_to(tmp_path, names, lacks):
    lack = model_formats.find(put(tmp_path, *names)).missing_file
    assert bool(lack) is lacks
    assert not lacks or "add model.py" in lack
