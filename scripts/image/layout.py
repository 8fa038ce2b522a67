"""OCI layout of one image: reproducible layers from folders, config, manifest, index."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Layer(msgspec.Struct, frozen=True):
    """A layer: folder on this machine, and a word for the history of the image."""

    folder: Path
    comment: str


def write(folder: Path, layers: Iterable[Layer], config: Mapping[str, Any], *, name: str, epoch: int) -> str:
    """Write the layout of one image, and return the digest of its manifest. The same files give the same digest."""
    shutil.rmtree(folder, ignore_errors=True)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    created = datetime.fromtimestamp(epoch, UTC).isoformat()
    descriptors, diff_ids, history = [], [], []
    for layer in layers:
        plain = _tar(layer.folder, epoch)
        diff_ids.append(_digest(plain))
        descriptors.append(_store(blobs, gzip.compress(plain, compresslevel=6, mtime=0), _LAYER))
        history.append({"created": created, "created_by": layer.comment})
    described = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _store(blobs, msgspec.json.encode(described), _CONFIG),
        "layers": descriptors,
    }
    row = _store(blobs, msgspec.json.encode(manifest), _MANIFEST)
    row["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [row]}
    (folder / "index.json").write_bytes(msgspec.json.encode(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(row["digest"])


def pack(folder: Path, file: Path, epoch: int) -> None:
    """Write the layout as one tar file, for `skysail image load`, `docker load` and others."""
    file.write_bytes(_tar(folder, epoch))


def _tar(folder: Path, epoch: int) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = epoch
            # Independent of the umask of this machine.
            info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
            if info.isreg():
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
    return written.getvalue()


def _store(blobs: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = _digest(content)
    (blobs / digest.removeprefix("sha256:")).write_bytes(content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
