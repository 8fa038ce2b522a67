"""Our image as it is built: programs, size, software bill of materials, and what must not be in it."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scripts import build_image
from scripts.image import debian, python_packages
from tests.chart.conftest import CANARY, print_line

if TYPE_CHECKING:
    from pathlib import Path

# Programs that an intruder would use, and files that hold secrets of the machine that built the image.
SHELLS = {"sh", "bash", "dash", "busybox", "zsh", "apt", "apt-get", "dpkg", "pip", "pip3", "uv", "curl", "wget"}
PRIVATE = (".env", "id_rsa", "id_ed25519", "kubeconfig", ".netrc", ".git", ".modal.toml")
_MAX_BYTES = 200_000_000


class Content(msgspec.Struct):
    """Files of all layers by path: sizes, hashes, and which tell of the build machine. And the configuration."""

    files: dict[str, int]
    hashes: dict[str, str]
    telling: list[str]
    config: dict[str, Any]
    bom: dict[str, Any]


@pytest.fixture(scope="module")
def content(image: Path) -> Content:
    def blob(digest: str) -> Path:
        return image / "blobs" / digest.replace(":", "/")

    index = json.loads((image / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
    words = (CANARY.encode(), str(build_image.ROOT).encode(), f"{tempfile.gettempdir()}/skysail-".encode())
    found = Content({}, {}, [], json.loads(blob(manifest["config"]["digest"]).read_text())["config"], {})
    for layer in manifest["layers"]:
        with tarfile.open(blob(layer["digest"])) as tar:
            for entry in tar:
                name = entry.name.removeprefix("./")
                found.files[name] = entry.size
                if not entry.isfile() or (file := tar.extractfile(entry)) is None:
                    continue
                text = file.read()
                found.hashes[name] = hashlib.sha256(text).hexdigest()
                if any(word in text for word in words):
                    found.telling.append(name)
                if name.endswith("sbom.cdx.json"):
                    found.bom = json.loads(text)
    return found


def test_image_has_operator_logger_and_proxy_below_200_mb(content, pytestconfig):
    size = sum(content.files.values())
    print_line(pytestconfig, f"Image skysail: {size / 1e6:.0f} MB in {len(content.files)} files")
    assert size < _MAX_BYTES
    programs = {name.rpartition("/")[2] for name in content.files if name.startswith(f"{python_packages.FOLDER}/bin/")}
    assert {"skysail", "modal-logger", "modal-proxy", "runpod-controller"} <= programs
    assert content.config["Entrypoint"] == ["skysail"]


@pytest.mark.parametrize("name", [name for name in build_image.DEFAULT if name != "skysail"])
def test_image_of_models_is_below_200_mb_and_has_no_shell(name, tmp_path, pytestconfig):
    """Of the images that run in users' pods, only their files: nothing is packed."""
    roots = build_image.make_roots(build_image.IMAGES[name], tmp_path, build_image.source_date(), is_release=False)
    print_line(pytestconfig, f"Image {name}: {roots.bytes / 1e6:.0f} MB")
    assert 0 < roots.bytes < _MAX_BYTES
    files = [path for folder in (roots.base, roots.app) for path in folder.rglob("*")]
    assert {path.name for path in files} & SHELLS == set()
    assert [path for path in files if path.name in PRIVATE or path.suffix == ".key"] == []
    named = {row["name"] for row in json.loads(roots.bom)["components"]}
    locked = python_packages.locked_packages(build_image.ROOT / build_image.IMAGES[name].lock)
    assert {package.name for package in locked} <= named


def test_image_has_no_shell_no_package_manager_no_root_and_no_secrets(content):
    names = {path.rpartition("/")[2] for path in content.files}
    assert names & SHELLS == set()
    assert [path for path in content.files if path.rpartition("/")[2] in PRIVATE or path.endswith(".key")] == []
    assert content.config["User"] == f"{build_image.USER}:{build_image.USER}"
    assert content.telling == [], "neither the environment of the build nor its folders are in the image"
    assert CANARY not in json.dumps(content.config)


@pytest.mark.on_demand
def test_image_built_again_elsewhere_has_the_same_files(content, tmp_path):
    roots = build_image.make_roots(build_image.IMAGES["skysail"], tmp_path, build_image.source_date(), is_release=False)
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in (roots.base, roots.app)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    assert found == content.hashes


def test_image_bill_of_materials_names_every_locked_package(content):
    named = {row["name"] for row in content.bom["components"]}
    locked = {package.name for package in python_packages.locked_packages(build_image.ROOT / "requirements.lock")}
    locked |= {package.name for package in debian.read_lock(build_image.LOCK)}
    assert locked <= named
