"""Images in files, as `docker save` and others write them, with programs of this machine in them."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import registry
from tests.support.registry import Image

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = ("/bin/sh", "/usr/bin/id", "/bin/ls", "/bin/cat", "/usr/bin/env", "/usr/bin/touch", "/bin/sleep")


_PACKAGES = ("collections", "ctypes", "encodings", "importlib", "json", "re")


def write_layout(folder: Path, image: Image, name: str = "") -> Path:
    """Write an OCI layout with one image."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for content in (image.manifest, *image.blobs):
        (blobs / registry.digest(content).removeprefix("sha256:")).write_bytes(content)
    row = registry.descriptor(image.manifest, image.media_type)
    if name:
        row["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [row]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def docker_save(file: Path, config: Mapping[str, Any], *layers: bytes, tags: tuple[str, ...]) -> Path:
    """Write a tar file as `docker save` does."""
    described = registry.image(config, *layers).blobs[0]
    name = f"{registry.digest(described).removeprefix('sha256:')}.json"
    paths = [f"{number}/layer.tar" for number in range(len(layers))]
    rows = [{"Config": name, "RepoTags": list(tags), "Layers": paths}]
    parts = {name: described, "manifest.json": json.dumps(rows).encode(), **dict(zip(paths, layers, strict=True))}
    file.write_bytes(registry.layer(parts))
    return file


def programs(*paths: str) -> dict[str, bytes]:
    """Return programs of this machine with their libraries, as files of a layer."""
    found: dict[str, bytes] = {}
    for path in paths or PROGRAMS:
        found[path.lstrip("/")] = Path(path).read_bytes()
        printed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in (word for word in printed.split() if word.startswith("/")):
            found[library.lstrip("/")] = Path(library).read_bytes()
    return found


def layer_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a layer with exactly these entries."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", mode: int = 0o755, user: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.uid, info.gid = kind, link, mode, user, user
    return info


@functools.cache
def python_layer() -> bytes:
    """Return a layer with the Python of this machine, as /usr/bin/python3, and a part of its standard library."""
    version = Path("/usr/bin/python3").resolve()
    library = Path(f"/usr/lib/{version.name}")
    wanted = [*library.glob("*.py"), *(file for name in _PACKAGES for file in (library / name).rglob("*.py"))]
    files = {str(path).lstrip("/"): path.read_bytes() for path in wanted if path.name != "sitecustomize.py"}
    for name in ("_ctypes", "resource"):
        for extension in library.glob(f"lib-dynload/{name}.*.so"):
            files |= programs(str(extension))
    files |= programs(str(version))
    return registry.layer({**files, "usr/bin/python3": files[str(version).lstrip("/")]})
