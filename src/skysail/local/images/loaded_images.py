"""Images that were loaded from files: one folder per image with its root, shared read-only by all pods."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from skysail.cloud import image_names
from skysail.cloud.image_manifests import Program
from skysail.cloud.image_names import ImageName
from skysail.local.bubblewrap import id_ranges
from skysail.local.errors import Misused
from skysail.local.files import remove_tree, write_private
from skysail.local.images import archives, layers
from skysail.local.images.archives import Archive, ArchivedImage, Layer
from skysail.local.images.layers import LayerUnpacker
from skysail.local.images.rules import locked

if TYPE_CHECKING:
    from typing_extensions import Buffer

Report = Callable[[str], None]

_RECORD = "image.json"
_ROOT = "root"
_IN_USE = "in-use"
_DRAFT = ".draft-"
_RESERVED_BYTES = 1 << 30
_MAX_BYTES = 256 << 30
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class LoadedImage(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded image. `id` is the digest of its config, `root` its root folder on this machine."""

    id: str
    names: tuple[str, ...]
    program: Program
    bytes: int = 0
    root: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.root).parent


class LoadedImages:
    """Loaded images of one home. Blocking. Any process may load and remove images."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, path: Path, names: Iterable[str], report: Report) -> list[LoadedImage]:
        """Load all images of an OCI layout or of the file of `docker save`. Raises Misused.

        `names` replace the names in the file; with them, the file must hold one image.
        """
        given = tuple(_canonical(name) for name in names)
        with archives.open_archive(path) as archive:
            found = archives.images(archive)
            if given and len(found) != 1:
                raise Misused(f"{path} has {len(found)} images for this machine, so --name cannot name them: omit it.")
            if not found:
                raise Misused(f"{path} has no image for this machine.")
            return [self._load(archive, image, given or _names(image, path), report) for image in found]

    def find(self, image: str) -> LoadedImage | None:
        """Return the image with this name. A name with a digest finds the image with that id."""
        name = image_names.parse(image)
        for loaded in self.all():
            if name.digest == loaded.id or (not name.digest and _spelling(name) in loaded.names):
                return loaded
        return None

    def all(self) -> list[LoadedImage]:
        found = []
        for record in sorted(self._folder.glob(f"*/{_RECORD}")):
            with contextlib.suppress(OSError, msgspec.DecodeError):  # removed meanwhile, or cut off by a full disk
                loaded = msgspec.json.decode(record.read_bytes(), type=LoadedImage)
                found.append(msgspec.structs.replace(loaded, root=str(record.parent / _ROOT)))
        return found

    def remove(self, name: str) -> bool:
        """Remove a name, and the image if it has no other. Returns False if there is no such image.

        Raises Misused if a pod uses the image.
        """
        with self._lock():
            loaded = self.find(name)
            if loaded is None:
                return False
            spelling = _spelling(image_names.parse(name))
            others = tuple(known for known in loaded.names if known != spelling)
            if others and spelling in loaded.names:
                self._write(msgspec.structs.replace(loaded, names=others))
            else:
                self._delete(loaded)
            return True

    @contextlib.contextmanager
    def in_use(self, loaded: LoadedImage) -> Iterator[None]:
        """Keep the image until the end of the block: other processes cannot remove it. Raises OSError."""
        descriptor = os.open(loaded.folder / _IN_USE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _load(self, archive: Archive, image: ArchivedImage, names: tuple[str, ...], report: Report) -> LoadedImage:
        with self._lock():
            known = self.find(f"{names[0].partition(':')[0]}@{image.id}") if names else None
            if known is None:
                report(f"unpacking {names[0]} ({len(image.layers)} layers)")
                known = self._unpack(archive, image)
            for other in self.all():
                if other.id != image.id and set(other.names) & set(names):
                    self._rename(other, tuple(name for name in other.names if name not in names))
            loaded = msgspec.structs.replace(known, names=tuple(sorted({*known.names, *names})))
            self._write(loaded)
            return loaded

    def _unpack(self, archive: Archive, image: ArchivedImage) -> LoadedImage:
        """Unpack into a draft and rename it: an interrupted load leaves nothing that looks complete."""
        for stale in self._folder.glob(f"{_DRAFT}*"):
            remove_tree(stale, ignore_errors=True)
        draft = self._folder / f"{_DRAFT}{secrets.token_hex(8)}"
        root = draft / _ROOT
        root.mkdir(parents=True, mode=0o755)
        try:
            limit = min(_MAX_BYTES, layers.free_bytes(self._folder, _RESERVED_BYTES))
            unpacker = LayerUnpacker(root, max_bytes=limit, owns_ids=os.geteuid() == 0 and id_ranges.are_mapped())
            for layer in image.layers:
                _unpack_layer(archive, layer, unpacker, limit)
            layers.check_root(root)
            (draft / _IN_USE).touch(mode=0o600)
            place = self._folder / image.id.removeprefix("sha256:")
            remove_tree(place, ignore_errors=True)  # without a record, so no image
            draft.rename(place)
        except OSError as error:
            raise Misused(f"The image cannot be unpacked: {error.strerror}.") from error
        finally:
            remove_tree(draft, ignore_errors=True)
        program = image.config.config or Program()
        size = sum(file.lstat().st_size for file in (place / _ROOT).rglob("*") if not file.is_symlink())
        return LoadedImage(id=image.id, names=(), program=program, bytes=size, root=str(place / _ROOT))

    def _rename(self, loaded: LoadedImage, names: tuple[str, ...]) -> None:
        """Take names from an image. An image without a name stays: a pod may use it, and `find` knows its id."""
        self._write(msgspec.structs.replace(loaded, names=names))

    def _write(self, loaded: LoadedImage) -> None:
        stored = msgspec.structs.replace(loaded, root="")
        write_private(loaded.folder / _RECORD, msgspec.json.encode(stored))

    def _delete(self, loaded: LoadedImage) -> None:
        descriptor = os.open(loaded.folder / _IN_USE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (loaded.folder / _RECORD).unlink(missing_ok=True)
            remove_tree(loaded.folder)
        except BlockingIOError as error:
            raise Misused(
                f"Image {', '.join(loaded.names) or loaded.id} is used by a pod: delete the pod first."
            ) from error
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        # Closed to other users of the machine: files of an image keep their owners.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self._folder / "lock"):
            yield


def _names(image: ArchivedImage, path: Path) -> tuple[str, ...]:
    names = tuple(_canonical(name) for name in image.names)
    if not names:
        raise Misused(f"{path} does not name its image: add `--name NAME:TAG`.")
    return names


def _canonical(name: str) -> str:
    parsed = image_names.parse(name)
    if not parsed.is_valid or parsed.digest:
        raise Misused(f"{name!r} is not a name of an image: write REPOSITORY:TAG, or REGISTRY/REPOSITORY:TAG.")
    return _spelling(parsed)


def _spelling(name: ImageName) -> str:
    return f"{name.registry}/{name.repository}:{name.tag or 'latest'}"


def _unpack_layer(archive: Archive, layer: Layer, unpacker: LayerUnpacker, limit: int) -> None:
    """Unpack a layer, and check it by its digests. Raises Misused."""
    name = (layer.digest or layer.diff_id)[:19]
    with archive.open(layer.path) as stored:
        packed = _Hashing(stored)
        packed_reader = io.BufferedReader(packed, _CHUNK)
        plain = _Hashing(_uncompressed(packed_reader, name))
        plain_reader = io.BufferedReader(plain, _CHUNK)
        unpacker.unpack(plain_reader, name)
        try:
            _drain(plain_reader, limit)
            _drain(packed_reader, limit)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Misused(f"Layer {name} is damaged: save the image again.") from error
    if plain.digest != layer.diff_id or (layer.digest and packed.digest != layer.digest):
        raise Misused(f"Layer {name} does not match its digest: save the image again.")


def _uncompressed(packed: io.BufferedReader[_Hashing], name: str) -> Readable:
    first = packed.peek(len(_ZSTD))
    if first.startswith(_GZIP):
        return gzip.GzipFile(fileobj=packed, mode="rb")
    if first.startswith(_ZSTD):
        raise Misused(f"Layer {name} is compressed with zstd: save the image with gzip, as `docker save` does.")
    return packed


def _drain(reader: io.BufferedReader[_Hashing], limit: int) -> None:
    """Read the rest, such as the padding of a tar file. Raises Misused if it is longer than the limit."""
    while data := reader.read(_CHUNK):
        limit -= len(data)
        if limit < 0:
            raise Misused("The image unpacks to more than the limit: free disk space, or use a smaller image.")


class _Hashing(io.RawIOBase):
    """Stream that computes the digest of all that was read from it."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._source.read(len(view))
        self._hash.update(data)
        view[: len(data)] = data
        return len(data)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
