"""Parts of our images: locks, packages, layouts. The image itself runs in the tests of the chart."""

from __future__ import annotations

import io
import json
import re
import tarfile

import pytest

from scripts import build_image
from scripts.image import debian, layout, python_packages, sbom
from scripts.image.debian_index import DebianPackage
from scripts.image.errors import BuildError
from scripts.image.layout import Layer
from scripts.image.python_packages import LockedPackage
from skysail.local.images.loaded_images import LoadedImages


def deb(files: dict[str, bytes]) -> bytes:
    """A Debian package, which is an ar archive with a tar file in it."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:xz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": written.getvalue()}
    found = b"!<arch>\n"
    for name, content in parts.items():
        found += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        found += b"\n" * (len(content) % 2)
    return found


def test_debian_lock_has_every_package_with_its_hash():
    packages = debian.read_lock(build_image.LOCK)
    assert tuple(package.name for package in packages) == debian.PACKAGES
    assert all(re.fullmatch(r"[0-9a-f]{64}", package.sha256) for package in packages)


def test_debian_package_is_unpacked_without_scripts_and_documents(tmp_path):
    import hashlib

    files = {
        "usr/share/ca-certificates/mozilla/b.crt": b"B\n",
        "usr/share/ca-certificates/mozilla/a.crt": b"A\n",
        "usr/sbin/update-ca-certificates": b"#!/bin/sh",
        "usr/share/doc/x/copyright": b"licence",
        "usr/share/doc/x/changelog.gz": b"x",
        "usr/bin/python3.11": b"python",
    }
    content = deb(files)
    package = DebianPackage("x", "1", hashlib.sha256(content).hexdigest())
    cache, root = tmp_path / "cache", tmp_path / "root"
    cache.mkdir()
    (cache / f"{package.sha256}.deb").write_bytes(content)
    debian.unpack([package], cache, root)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert found == {
        "etc/ssl/certs/ca-certificates.crt",
        "usr/bin/python3",
        "usr/bin/python3.11",
        "usr/share/doc/x/copyright",
    }
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_bytes() == b"A\nB\n"


@pytest.mark.parametrize("content", [b"changed", b""])
def test_debian_package_that_was_changed_is_refused(tmp_path, content):
    package = DebianPackage("x", "1", "0" * 64)
    (tmp_path / f"{package.sha256}.deb").write_bytes(content)
    with pytest.raises(BuildError, match="was changed"):
        debian.unpack([package], tmp_path, tmp_path / "root")


def test_layout_is_reproducible_and_can_be_loaded(tmp_path):
    digests = []
    for number in range(2):
        folder = tmp_path / f"files-{number}"
        (folder / "usr/bin").mkdir(parents=True)
        (folder / "usr/bin/x").write_text("program")
        (folder / "usr/bin/x").chmod(0o700 if number else 0o755)
        (folder / "link").symlink_to("usr/bin/x")
        config = {"Entrypoint": ["x"], "User": "65532"}
        layers = (Layer(folder, "files"),)
        digests.append(layout.write(tmp_path / f"layout-{number}", layers, config, name="localhost/x:1", epoch=1000))
    assert digests[0] == digests[1]
    layout.pack(tmp_path / "layout-0", tmp_path / "x.tar", 1000)
    (loaded,) = LoadedImages(tmp_path / "store").load(tmp_path / "x.tar", (), lambda _: None)
    assert loaded.names == ("localhost/x:1",)
    assert (loaded.program.entrypoint, loaded.program.user) == (("x",), "65532")


def test_wheel_is_reproducible(tmp_path):
    first = python_packages.build_wheel(build_image.ROOT, tmp_path / "one", 1_700_000_000)
    second = python_packages.build_wheel(build_image.ROOT, tmp_path / "two", 1_700_000_000)
    assert first.read_bytes() == second.read_bytes()
    names = python_packages.write_entry_points(tmp_path / "root", first)
    assert {"skysail", "runpod-controller"} <= set(names)
    script = (tmp_path / "root/opt/skysail/bin/skysail").read_text()
    assert script.startswith("#!/usr/bin/python3\n")
    assert "from skysail.cli.main import main" in script


@pytest.mark.parametrize("spec", build_image.IMAGES.values(), ids=lambda spec: spec.name)
def test_image_lock_has_hashes_for_every_package(spec):
    packages = python_packages.locked_packages(build_image.ROOT / spec.lock)
    assert packages
    assert all(package.hashes for package in packages)


def test_sbom_names_every_package():
    written = sbom.document(
        "skysail", "0.1.0", [DebianPackage("libc6", "2.36", "0" * 64)], [LockedPackage("aiohttp", "3.14.0", ("1",))]
    )
    found = json.loads(written)
    assert found["bomFormat"] == "CycloneDX"
    assert [row["purl"] for row in found["components"]] == [
        "pkg:deb/debian/libc6@2.36?arch=amd64&distro=bookworm",
        "pkg:pypi/aiohttp@3.14.0",
    ]


def test_dockerfile_has_the_same_program_and_user():
    text = (build_image.ROOT / "Dockerfile").read_text()
    config = build_image._config(build_image.IMAGES["skysail"])
    assert f"USER {config['User']}" in text
    assert f"WORKDIR {config['WorkingDir']}" in text
    assert 'ENTRYPOINT ["skysail"]' in text
    for variable in config["Env"]:
        assert variable in text
