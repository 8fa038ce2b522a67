"""Volumes: copied, and never left."""

from __future__ import annotations

from pathlib import Path

import pytest

from skysail.runtimes.fetch.errors import AccessDenied, InvalidArgument, InvalidContent
from tests.unit.runtimes.fetch.harness import content, fetch


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    claim = tmp_path / "claim"
    (claim / "iris/1").mkdir(parents=True)
    (claim / "iris/1/model.onnx").write_bytes(b"onnx")
    (claim / "iris/labels.txt").write_bytes(b"labels")
    (claim / "empty").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    return claim


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("iris", {"1/model.onnx": b"onnx", "labels.txt": b"labels"}),
        ("iris/1/model.onnx", {"model.onnx": b"onnx"}),
        ("", {"iris/1/model.onnx": b"onnx", "iris/labels.txt": b"labels"}),
    ],
)
async def test_a_path_is_copied(tmp_path: Path, claim: Path, path, expected):
    await fetch(f"pvc://models/{path}", tmp_path / "m", layout="tree", claim=claim)

    assert content(tmp_path / "m") == expected
    assert (claim / "iris/1/model.onnx").exists()


@pytest.mark.parametrize("path", ["../secret", "%2e%2e/secret", "iris/../../secret", "link", "folder/secret"])
async def test_nothing_outside_of_the_volume_is_read(tmp_path: Path, claim: Path, path):
    (claim / "link").symlink_to(tmp_path / "secret")
    (claim / "folder").symlink_to(tmp_path)
    with pytest.raises(AccessDenied) as raised:
        await fetch(f"pvc://models/{path}", tmp_path / "m", claim=claim)

    assert raised.value.reason == "AddressForbidden"
    assert not (tmp_path / "m").exists()


async def test_links_inside_of_the_volume_are_followed(tmp_path: Path, claim: Path):
    (claim / "current").symlink_to("iris/1")
    await fetch("pvc://models/current", tmp_path / "m", claim=claim)

    assert content(tmp_path / "m") == {"model.onnx": b"onnx"}


async def test_what_is_not_there_or_empty_is_told(tmp_path: Path, claim: Path):
    with pytest.raises(InvalidArgument):
        await fetch("pvc://models/other", tmp_path / "m", claim=claim)
    with pytest.raises(InvalidContent) as raised:
        await fetch("pvc://models/empty", tmp_path / "m", claim=claim)
    with pytest.raises(InvalidArgument):
        await fetch("pvc://models/iris", tmp_path / "m")

    assert raised.value.reason == "EmptyModel"
