"""What each server finds, from what people have."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.layouts import LAYOUTS
from tests.support.model_sources import Files, serving, tar_of
from tests.unit.runtimes.fetch.harness import content, fetch, names

_ONNX = b"\x08\x08\x3a\x00"


def _lay_out(tmp_path: Path, layout: str, files: dict[str, bytes]) -> dict[str, bytes]:
    tree, into = tmp_path / "tree", tmp_path / "into"
    tree.mkdir()
    into.mkdir()
    for name, body in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(body)
    LAYOUTS[layout](tree, into, "iris")
    return content(into)


def _mar(name: str = "MAR-INF/MANIFEST.json") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, "{}")
    return made.getvalue()


def _named(*names: str) -> dict[str, bytes]:
    return {name: name.encode() for name in names}


@pytest.mark.parametrize(
    ("layout", "files", "expected"),
    [
        ("folder", ["model.pt"], {"model.pt": "model.pt"}),
        ("folder", ["a/b/model.pt", "a/b/config.json"], {"model.pt": "a/b/model.pt", "config.json": "a/b/config.json"}),
        ("folder", ["a/model.pt", "b.txt"], {"a/model.pt": "a/model.pt", "b.txt": "b.txt"}),
        ("tree", ["a/b/model.pt"], {"a/b/model.pt": "a/b/model.pt"}),
        (
            "tensorflow",
            ["saved_model.pb", "variables/variables.index"],
            {
                "iris/1/saved_model.pb": "saved_model.pb",
                "iris/1/variables/variables.index": "variables/variables.index",
            },
        ),
        ("tensorflow", ["export/saved_model.pb"], {"iris/1/saved_model.pb": "export/saved_model.pb"}),
        ("tensorflow", ["7/saved_model.pb"], {"iris/7/saved_model.pb": "7/saved_model.pb"}),
        (
            "tensorflow",
            ["iris/1/saved_model.pb", "iris/12/saved_model.pb", "README.md"],
            {"iris/1/saved_model.pb": "iris/1/saved_model.pb", "iris/12/saved_model.pb": "iris/12/saved_model.pb"},
        ),
        ("tensorflow", ["a/saved_model.pbtxt"], {"iris/1/saved_model.pbtxt": "a/saved_model.pbtxt"}),
        ("triton", ["resnet.onnx"], {"iris/1/model.onnx": "resnet.onnx"}),
        ("triton", ["a/resnet.onnx", "a/w.bin"], {"iris/1/model.onnx": "a/resnet.onnx", "iris/1/w.bin": "a/w.bin"}),
        ("triton", ["resnet.plan"], {"iris/1/model.plan": "resnet.plan"}),
        ("triton", ["net.xml", "net.bin"], {"iris/1/model.xml": "net.xml", "iris/1/model.bin": "net.bin"}),
        ("triton", ["a/saved_model.pb"], {"iris/1/model.savedmodel/saved_model.pb": "a/saved_model.pb"}),
        (
            "triton",
            ["config.pbtxt", "model.pt"],
            {"iris/config.pbtxt": "config.pbtxt", "iris/1/model.pt": "model.pt"},
        ),
        (
            "triton",
            ["config.pbtxt", "1/model.pt", "2/model.pt"],
            {"iris/config.pbtxt": "config.pbtxt", "iris/1/model.pt": "1/model.pt", "iris/2/model.pt": "2/model.pt"},
        ),
        ("triton", ["3/model.onnx"], {"iris/3/model.onnx": "3/model.onnx"}),
        (
            "triton",
            ["iris/config.pbtxt", "iris/1/model.pt"],
            {"iris/config.pbtxt": "iris/config.pbtxt", "iris/1/model.pt": "iris/1/model.pt"},
        ),
        (
            "triton",
            ["repo/iris/config.pbtxt", "repo/iris/1/model.pt", "repo/prep/config.pbtxt", "repo/prep/1/model.py"],
            {
                "iris/config.pbtxt": "repo/iris/config.pbtxt",
                "iris/1/model.pt": "repo/iris/1/model.pt",
                "prep/config.pbtxt": "repo/prep/config.pbtxt",
                "prep/1/model.py": "repo/prep/1/model.py",
            },
        ),
    ],
)
def test_a_server_finds_the_model_where_it_looks(tmp_path: Path, layout, files, expected):
    found = _lay_out(tmp_path, layout, _named(*files))

    assert {path: body.decode() for path, body in found.items()} == expected


@pytest.mark.parametrize("names", [["iris.onnx"], ["a/b/model.onnx", "a/b/other.onnx", "a/b/labels.txt"]])
def test_our_own_server_finds_one_model(tmp_path: Path, names):
    found = _lay_out(tmp_path, "file", dict.fromkeys(names, _ONNX))

    assert found == {name.removeprefix("a/b/"): _ONNX for name in names}


@pytest.mark.parametrize("name", ["densenet.mar", "folder/densenet.mar"])
def test_torchserve_finds_the_archive_under_the_name_of_the_model(tmp_path: Path, name):
    assert _lay_out(tmp_path, "torchserve", {name: _mar()}) == {"iris.mar": _mar()}


@pytest.mark.parametrize(
    ("layout", "files", "told"),
    [
        ("tensorflow", _named("tf_model.h5"), "tf_model.h5 is a Keras file"),
        ("tensorflow", _named("iris.keras"), '.export("folder")'),
        ("tensorflow", _named("model.onnx"), "saved_model.pb"),
        ("tensorflow", _named("a/saved_model.pb", "b/saved_model.pb"), "several SavedModels"),
        ("triton", _named("model.pt"), "config.pbtxt"),
        ("triton", _named("model.py"), "config.pbtxt"),
        ("triton", _named("a.onnx", "b.onnx"), "several models"),
        ("triton", _named("readme.md"), "provide a folder or archive"),
        ("file", {"model.onnx": b"<!DOCTYPE html><title>Log in</title>"}, "perhaps a login page"),
        ("file", {"net.h5": b"\x89HDF\r\n\x1a\n"}, "net.h5 is a Keras file"),
        ("file", {"a/one.onnx": _ONNX, "a/two.onnx": _ONNX}, "several models (one.onnx, two.onnx)"),
        ("file", {"model.safetensors": (2).to_bytes(8, "little") + b"{}"}, "add model.py"),
        ("file", _named("model.pt"), "not a complete PyTorch model"),
        ("onnx", {"net.safetensors": (2).to_bytes(8, "little") + b"{}"}, "loads only ONNX: export"),
        ("torchserve", _named("model.pt"), "torch-model-archiver"),
        ("torchserve", {"a.mar": _mar(), "b.mar": _mar()}, "a.mar, b.mar"),
        ("torchserve", {"a.mar": b"not a zip file"}, "not a TorchServe model archive"),
        ("torchserve", {"a.mar": _mar("other")}, "not a TorchServe model archive"),
    ],
)
def test_what_a_server_cannot_load_is_told_with_what_is_missing(tmp_path: Path, layout, files, told):
    with pytest.raises(InvalidContent) as raised:
        _lay_out(tmp_path, layout, files)

    assert raised.value.reason == "UnsupportedFormat"
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("name", "layout", "expected"),
    [
        ("iris.tar.gz", "folder", {"model.onnx": b"x"}),
        ("iris.tar.gz", "triton", {"iris/1/model.onnx": b"x"}),
        ("iris.tar.gz", "tree", None),
    ],
)
async def test_archives_are_unpacked_for_all_but_trees(tmp_path: Path, name, layout, expected):
    files = Files()
    body = files.files[f"/{name}"] = tar_of({"folder/model.onnx": b"x"})
    async with serving(files) as url:
        await fetch(f"{url}/{name}", tmp_path / "m", layout=layout)

    assert content(tmp_path / "m") == (expected if expected is not None else {name: body})


async def test_a_step_that_fails_after_the_download_is_named(tmp_path: Path):
    files = Files()
    files.files["/tf_model.h5"] = b"weights"
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/tf_model.h5", tmp_path / "m", layout="tensorflow")

    assert raised.value.step == "Layout"


@pytest.mark.parametrize("layout", ["file", "onnx", "folder", "tree", "tensorflow", "triton", "torchserve"])
@pytest.mark.parametrize("name", ["model.onnx", "model.tar.gz", "model.zip", "model.mar", "download"])
async def test_a_page_in_place_of_a_model_is_told_whoever_would_serve_it(tmp_path: Path, layout, name):
    files = Files()
    files.files[f"/{name}"] = b"<!doctype html><html><title>Log in</title>"
    async with serving(files) as url:
        with pytest.raises(InvalidContent, match=r"begins with <!doctype html>.*, which is a web page") as raised:
            await fetch(f"{url}/{name}", tmp_path / "m", layout=layout)

    assert (raised.value.reason, raised.value.step) == ("UnsupportedFormat", "Layout")


async def test_a_page_beside_a_model_is_no_mistake(tmp_path: Path):
    source = tmp_path / "claim"
    source.mkdir()
    (source / "model.onnx").write_bytes(_ONNX)
    (source / "report.html").write_bytes(b"<html>")
    await fetch("pvc://claim", tmp_path / "m", layout="file", claim=source)

    assert content(tmp_path / "m") == {"model.onnx": _ONNX, "report.html": b"<html>"}


async def test_an_empty_archive_is_an_error(tmp_path: Path):
    files = Files()
    files.files["/iris.tar.gz"] = tar_of({})
    async with serving(files) as url:
        with pytest.raises(InvalidContent) as raised:
            await fetch(f"{url}/iris.tar.gz", tmp_path / "m")

    assert raised.value.reason == "EmptyModel"


async def test_a_damaged_archive_is_told_and_given_back(tmp_path: Path):
    files = Files()
    files.files["/download"] = tar_of({"model.onnx": _ONNX})[:20]
    async with serving(files) as url:
        with pytest.raises(InvalidContent, match="upload it again") as raised:
            await fetch(f"{url}/download", tmp_path / "m", layout="file")

    assert (raised.value.reason, raised.value.step) == ("UnsupportedFormat", "Layout")
    assert names(tmp_path) == []


@pytest.mark.parametrize(("layout", "name"), [("torchserve", "iris.mar"), ("file", "iris.pt")])
def test_a_model_that_is_a_damaged_zip_file_is_told_with_the_fix(tmp_path: Path, layout, name):
    body = _mar().replace(b"MAR-INF/MANIFEST.json", b"MAR-INF/MANIFEST.js\xc3\x28")
    damaged = body.replace(b"PK\x01\x02", b"PK\x01\x03")
    with pytest.raises(InvalidContent, match="damaged: upload it again"):
        _lay_out(tmp_path, layout, {name: damaged})
