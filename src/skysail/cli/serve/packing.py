"""Bytes of a local model for an upload: a file as it is, a folder as a tar."""

from __future__ import annotations

import hashlib
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from skysail.base.errors import UserError

CHUNK = 256 * 1024
VERSION_DIGITS = 12


class UploadFailed(UserError):
    """The model was not uploaded. The message says why."""

    exit_code = 1


class NotAModel(UserError):
    """The source has no model: it does not exist, or it is empty. The message says what to do."""


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to send. A folder is sent as a tar, which is unpacked on the volume."""

    file: BinaryIO
    size: int
    digest: str
    name: str
    is_folder: bool

    @property
    def room(self) -> int:
        """Bytes that the upload needs on the volume. A tar and its content are there at the same time."""
        return self.size * 2 if self.is_folder else self.size

    @property
    def version(self) -> str:
        return self.digest[:VERSION_DIGITS]

    @property
    def path(self) -> str:
        """Path of the model on the volume. Each version has a folder of its own."""
        return f"{self.version}/{self.name}"


@contextmanager
def payload(source: Path) -> Iterator[Payload]:
    """Open a file, or pack a folder into a temporary tar. Raises UploadFailed, or NotAModel for an empty source."""
    try:
        if source.is_dir():
            with tempfile.TemporaryFile() as file:
                check_content(source)
                if not any(path.stat().st_size for path in source.rglob("*") if path.is_file()):
                    raise NotAModel(f"{source} has no file with content: name the folder of a model.")
                # Files in place of links: a snapshot of Hugging Face has links to its blobs.
                with tarfile.open(fileobj=file, mode="w", dereference=True) as tar:
                    tar.add(source, arcname=_safe(source.resolve().name), filter=_plain)
                yield _measured(file, source.resolve().name, is_folder=True)
        else:
            if source.is_file() and not source.stat().st_size:
                raise NotAModel(f"{source} is empty: name the file of a model.")
            with source.open("rb") as file:
                yield _measured(file, source.name, is_folder=False)
    except OSError as error:
        raise UploadFailed(f"{source} cannot be read: {error.strerror}.") from error


def _safe(name: str) -> str:
    """Return the name for paths on the volume, without characters that mean something in shells and addresses."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-.") or "model"


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out owners and times, so that the same folder always has the same digest."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _measured(file: BinaryIO, name: str, *, is_folder: bool) -> Payload:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    file.seek(0)
    return Payload(file=file, size=size, digest=digest.hexdigest(), name=_safe(name), is_folder=is_folder)


def check_content(folder: Path) -> None:
    """Raise UploadFailed if the folder has a link that leads out of it or to a folder, a pipe, a socket or a device.

    A link may be an accident, or an attack by the author of the model: its target must not reach the cluster. Links to
    folders could lead in circles.
    """
    root = folder.resolve()
    allowed = (root, *_blobs(root))
    for path in sorted(folder.rglob("*")):
        target = path.resolve()
        if not any(target.is_relative_to(place) for place in allowed):
            raise UploadFailed(
                f"{path} leads to {target}, outside of {folder}: replace the link with the file, or remove it."
            )
        if path.is_symlink() and target.is_dir():
            raise UploadFailed(f"{path} leads to a folder: replace the link with the folder, or remove it.")
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UploadFailed(f"{path} is neither a file nor a folder: remove it.")


def _blobs(root: Path) -> tuple[Path, ...]:
    """Return the files of a Hugging Face cache if the folder is one of its snapshots, which has only links."""
    is_snapshot = root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--")
    return (root.parent.parent / "blobs",) if is_snapshot else ()
