"""Images in files: an OCI layout in a folder or a tar file, and the tar file of `docker save`."""

from __future__ import annotations

import contextlib
import hashlib
import platform
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol, TypeVar

import msgspec

from skysail.base import untrusted_json
from skysail.cloud import image_names
from skysail.cloud.image_manifests import Config, Descriptor, Manifest, Platform
from skysail.local.errors import Misused

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_JSON_BYTES = 4 << 20
_MAX_LAYERS = 512
_MAX_INDEX_DEPTH = 2
_NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")

T = TypeVar("T")


class _DockerImage(msgspec.Struct, frozen=True, rename="pascal"):
    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


class Layer(msgspec.Struct, frozen=True):
    """A layer: its path in the archive, its digest as stored ("" if the archive names none), and as a tar file."""

    path: str
    digest: str
    diff_id: str
    media_type: str = ""


class ArchivedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an archive. `id` is the digest of its config; `names` may be empty."""

    id: str
    names: tuple[str, ...]
    config: Config
    layers: tuple[Layer, ...]


class Archive(Protocol):
    """Files of an archive, by their path in it."""

    def open(self, path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Open a file. Raises Misused if there is none."""
        ...

    def has(self, path: str) -> bool: ...


class FolderArchive:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, path: str) -> bool:
        return (self._folder / path).is_file()

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        if ".." in Path(path).parts or Path(path).is_absolute() or not self.has(path):
            raise Misused(f"{self._folder} has no file {path[:100]}: save the image again.")
        with (self._folder / path).open("rb") as file:
            yield file


class TarArchive:
    """A tar file, also a compressed one."""

    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar = tar
        self._name = name
        self._members = {member.name.removeprefix("./"): member for member in tar}

    def has(self, path: str) -> bool:
        return path in self._members

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        member = self._members.get(path)
        # Older versions of Docker write a layer that several images share once, and links to it.
        if member is not None and (member.issym() or member.islnk()):
            member = self._members.get(_link_target(path, member))
        content = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if content is None:
            raise Misused(f"{self._name} has no file {path[:100]}: save the image again.")
        with content:
            yield content


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a layout folder or a tar file. Raises Misused."""
    if path.is_dir():
        yield FolderArchive(path)
        return
    try:
        with tarfile.open(path, "r:*") as tar:
            yield TarArchive(tar, path.name)
    except FileNotFoundError as error:
        raise Misused(f"{path} does not exist: name an OCI layout, or the file of `docker save`.") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Misused(f"{path} is not a tar file, or is damaged: write it with `docker save -o FILE IMAGE`.") from error


def images(archive: Archive) -> list[ArchivedImage]:
    """Return the images of the archive for this machine. Raises Misused."""
    if archive.has("manifest.json"):
        rows = _json(archive, "manifest.json", tuple[_DockerImage, ...])
        return [_docker_image(archive, row) for row in rows]
    if archive.has("index.json"):
        index = _json(archive, "index.json", Manifest)
        found = [_oci_image(archive, descriptor) for descriptor in index.manifests]
        return [image for image in found if image is not None]
    raise Misused("It is neither an OCI layout (index.json) nor written by `docker save` (manifest.json).")


def machine_platform() -> Platform:
    return Platform("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))


def _docker_image(archive: Archive, row: _DockerImage) -> ArchivedImage:
    content = _read(archive, row.config)
    id_ = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if row.config.removesuffix(".json").rpartition("/")[2] != id_.removeprefix("sha256:"):
        raise Misused(f"Config {row.config[:100]} does not match its name: save the image again.")
    config = _decoded(content, Config, row.config)
    layers = [Layer(path, "", diff_id) for path, diff_id in _zip(row.layers, config.rootfs.diff_ids)]
    return _checked(ArchivedImage(id=id_, names=tuple(row.repo_tags or ()), config=config, layers=tuple(layers)))


def _oci_image(archive: Archive, descriptor: Descriptor) -> ArchivedImage | None:
    """Return the image of an entry of the index. Returns None for an entry that is no image for this machine."""
    notes = descriptor.annotations or {}
    names = tuple(dict.fromkeys(notes[key] for key in _NAME_ANNOTATIONS if notes.get(key)))
    for _ in range(_MAX_INDEX_DEPTH + 1):
        if descriptor.platform not in {None, machine_platform()}:
            return None
        manifest = _blob(archive, descriptor, Manifest)
        if manifest.config is not None:
            return _image(archive, manifest.config, manifest, names)
        fitting = [row for row in manifest.manifests if row.platform == machine_platform()]
        if not fitting:
            raise Misused(f"The image has no variant for linux/{machine_platform().architecture}: build one for it.")
        descriptor = fitting[0]
    raise Misused("The indexes of the image are nested too deeply: save the image again.")


def _image(archive: Archive, source: Descriptor, manifest: Manifest, names: tuple[str, ...]) -> ArchivedImage:
    config = _blob(archive, source, Config)
    layers = [
        Layer(_blob_path(layer), layer.digest, diff_id, layer.media_type)
        for layer, diff_id in _zip(manifest.layers, config.rootfs.diff_ids)
    ]
    return _checked(ArchivedImage(id=source.digest, names=names, config=config, layers=tuple(layers)))


def _checked(image: ArchivedImage) -> ArchivedImage:
    found = Platform(image.config.os or "linux", image.config.architecture or machine_platform().architecture)
    if found != machine_platform():
        raise Misused(
            f"The image is for {found.os}/{found.architecture}: build it with "
            f"`--platform linux/{machine_platform().architecture}`."
        )
    return image


def _zip(layers: tuple[T, ...], diff_ids: tuple[str, ...]) -> list[tuple[T, str]]:
    if len(layers) != len(diff_ids) or len(layers) > _MAX_LAYERS:
        raise Misused("The layers of the image do not match its config: save the image again.")
    return list(zip(layers, diff_ids, strict=True))


def _blob(archive: Archive, descriptor: Descriptor, kind: type[T]) -> T:
    content = _read(archive, _blob_path(descriptor))
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != descriptor.digest:
        raise Misused(f"Blob {descriptor.digest} is damaged: save the image again.")
    return _decoded(content, kind, descriptor.digest)


def _blob_path(descriptor: Descriptor) -> str:
    if not image_names.DIGEST.fullmatch(descriptor.digest):
        raise Misused(f"Digest {descriptor.digest[:100]!r} is not sha256: save the image with sha256 digests.")
    return f"blobs/{descriptor.digest.replace(':', '/')}"


def _json(archive: Archive, path: str, kind: type[T]) -> T:
    return _decoded(_read(archive, path), kind, path)


def _read(archive: Archive, path: str) -> bytes:
    with archive.open(path) as file:
        content = file.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise Misused(f"{path[:100]} has more than {_MAX_JSON_BYTES} bytes: save the image again.")
    return content


def _decoded(content: bytes, kind: type[T], name: str) -> T:
    try:
        return untrusted_json.decode(content, kind)
    except untrusted_json.InvalidJson as error:
        raise Misused(f"{name[:100]} is invalid: {error}. Save the image again.") from error


def _link_target(path: str, member: tarfile.TarInfo) -> str:
    if member.islnk():
        return member.linkname.removeprefix("./")
    parts = path.split("/")[:-1]
    for part in member.linkname.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)
