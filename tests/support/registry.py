"""A real registry on loopback, and small images that tests make and push.

The server is the registry of go-containerregistry, built from its Go module into the user's cache.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import socket
import subprocess
import tarfile
import threading
import urllib.request
from base64 import b64encode
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.local import addresses
from tests.support.programs import GoProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.cluster import Cluster

_PROGRAM = GoProgram(Path(__file__).with_name("ociregistry"))
# Port of the cluster that leads to a registry.
INSIDE_PORT = 5055
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Blobs and manifest of one image."""

    manifest: bytes
    blobs: tuple[bytes, ...]
    media_type: str = MANIFEST
    others: tuple[Image, ...] = ()  # images of an index, pushed by digest

    @property
    def digest(self) -> str:
        return digest(self.manifest)


class Registry(msgspec.Struct, frozen=True):
    """A running registry. `host` has the form 127.0.0.1:PORT."""

    host: str
    username: str = ""
    password: str = ""

    @property
    def allowed(self) -> tuple[str, ...]:
        """The setting `allowed_registries` with which the operator may read from this registry."""
        return (f"http://{self.host}",)

    def push(self, repository: str, tag: str, image: Image) -> str:
        """Push an image. Returns its name with registry and tag."""
        for other in image.others:
            self.push(repository, other.digest, other)
        for blob in image.blobs:
            self._put(
                f"/v2/{repository}/blobs/uploads/?digest={digest(blob)}", blob, "application/octet-stream", "POST"
            )
        self._put(f"/v2/{repository}/manifests/{tag}", image.manifest, image.media_type, "PUT")
        return f"{self.host}/{repository}:{tag}"

    def _put(self, path: str, body: bytes, media_type: str, method: str) -> None:
        headers = {"Content-Type": media_type, **self._authorization()}
        request = urllib.request.Request(f"http://{self.host}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass

    def _authorization(self) -> dict[str, str]:
        if not self.username:
            return {}
        login = b64encode(f"{self.username}:{self.password}".encode()).decode()
        request = urllib.request.Request(f"http://{self.host}/token", headers={"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return {"Authorization": f"Bearer {json.load(answer)['token']}"}


@contextmanager
def running(username: str = "", password: str = "") -> Iterator[Registry]:
    """Run a registry until the end of the block. With a user, it requires a token to read and to write."""
    env = {"USERNAME": username, "PASSWORD": password}
    with subprocess.Popen([_PROGRAM.binary()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as server:
        try:
            assert server.stdout is not None
            yield Registry(server.stdout.readline().decode().strip(), username, password)
        finally:
            server.kill()


@contextmanager
def inside(node: Cluster, registry: Registry) -> Iterator[str]:
    """Forward a port of the cluster to the registry. Yields the registry's host as the operator reaches it."""

    def pipe(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), source:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", int(registry.host.rpartition(":")[2])))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=pipe, args=ends, daemon=True).start()

    listener = node.listen(INSIDE_PORT)
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"{addresses.CLUSTER_IP}:{INSIDE_PORT}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def image(config: Mapping[str, Any], *layers: bytes, **fields: Any) -> Image:
    """Return an image with this `config` part and these layers (tar). `fields` go into the image's config."""
    packed = [gzip.compress(layer, mtime=0) for layer in layers]
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
        **fields,
    }
    written = json.dumps(described).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(written, CONFIG),
        "layers": [descriptor(layer, LAYER) for layer in packed],
    }
    return Image(manifest=json.dumps(manifest).encode(), blobs=(written, *packed))


def index(*variants: tuple[str, Image]) -> Image:
    """Return an index of images by platform, such as linux/amd64."""
    rows = []
    for platform, variant in variants:
        system, _, architecture = platform.partition("/")
        row = descriptor(variant.manifest, variant.media_type)
        rows.append({**row, "platform": {"os": system, "architecture": architecture}})
    manifest = {"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}
    others = tuple(variant for _, variant in variants)
    return Image(manifest=json.dumps(manifest).encode(), blobs=(), media_type=INDEX, others=others)


def layer(files: Mapping[str, bytes], mode: int = 0o755) -> bytes:
    """Return a layer with these files."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
