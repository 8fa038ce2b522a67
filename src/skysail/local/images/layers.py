"""Unpacking of image layers into a root folder, over each other. Layers are untrusted.

Every path is resolved inside the root, so nothing is read, written or deleted outside of it. Setuid bits, device files
and extended attributes are dropped. The root must be private to this process while layers are unpacked.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from skysail.local import root_paths
from skysail.local.errors import Misused
from skysail.local.files import remove_tree

_CHUNK = 1 << 20
_MAX_ENTRIES = 1_000_000
_MAX_HEADER_BYTES = 1 << 20
_MAX_NAME = 4096
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_AUFS = ".wh..wh."
# Paths that the sandbox mounts itself: an image's own content is never visible there.
_KERNEL = ("dev", "proc", "sys")
_FILE_BITS = 0o777
_FOLDER_BITS = 0o1777
_OWNER = 0o700
_MAX_ID = 65535
_OVERFLOW_ID = 65534
_DAMAGED = (
    *(
        tarfile.TarError,
        zlib.error,
        gzip.BadGzipFile,
        EOFError,
        OverflowError,
        RecursionError,
        UnicodeError,
        ValueError,
    ),
)


class _Header(tarfile.TarInfo):
    """Header with limited extensions: tarfile reads them into memory as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADERS and header.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError("an extended header is too large")
        return header


class LayerUnpacker:
    """Unpacks the layers of one image in order. `max_bytes` is the limit of all files together."""

    def __init__(self, root: Path, *, max_bytes: int, owns_ids: bool) -> None:
        self._root = root
        self._bytes_left = max_bytes
        self._entries_left = _MAX_ENTRIES
        self._owns_ids = owns_ids
        self._written: set[str] = set()

    def unpack(self, layer: IO[bytes], name: str) -> None:
        """Unpack one layer, an uncompressed tar stream. Raises Misused; errors of the disk are OSError."""
        self._written = set()
        try:
            with tarfile.open(fileobj=layer, mode="r|", tarinfo=_Header, bufsize=_CHUNK) as tar:
                for member in tar:
                    self._count(name)
                    self._unpack_member(tar, member, name)
        except _DAMAGED as error:
            raise Misused(f"Layer {name} is damaged: save the image again.") from error

    def _count(self, name: str) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise Misused(f"Layer {name} has more than {_MAX_ENTRIES} entries: use a smaller image.")

    def _unpack_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, layer: str) -> None:
        parts = _parts(member.name, layer)
        if not parts or (parts[0] in _KERNEL and len(parts) > 1):
            return
        if parts[-1].startswith(_WHITEOUT):
            self._remove(parts, layer)
            return
        place = self._place(parts, layer)
        write = self._writer(member, layer)
        if write is None:
            return
        write(tar, member, place)
        self._written.add(self._inside(place))

    def _writer(
        self, member: tarfile.TarInfo, layer: str
    ) -> Callable[[tarfile.TarFile, tarfile.TarInfo, Path], None] | None:
        if member.isdir():
            return self._write_folder
        if member.isreg():
            return self._write_file
        if member.issym():
            return self._write_link
        if member.islnk():
            return self._write_hard_link
        kind = "device file" if member.isdev() and not member.isfifo() else "special file"
        raise Misused(f"Layer {layer} has {member.name[:100]!r}, a {kind}: build the image without it.")

    def _place(self, parts: list[str], layer: str) -> Path:
        """Return where an entry goes. Missing folders above it are made; links above it are followed in the root."""
        try:
            above = root_paths.outside(self._root, "/".join(parts[:-1]))
            above.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise Misused(f"Layer {layer} has {'/'.join(parts)[:100]!r} below a file or a loop of links.") from error
        return above / parts[-1]

    def _write_folder(self, _tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
        if not _is_real_folder(place):
            _clear(place)
            place.mkdir()
        self._own(member, place)
        # The owner keeps all rights: later layers, and `skysail image rm`, write here.
        place.chmod(member.mode & _FOLDER_BITS | _OWNER)

    def _write_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
        _clear(place)
        content = tar.extractfile(member)
        assert content is not None, "a regular file has content"
        with place.open("xb") as file:
            while chunk := content.read(_CHUNK):
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    raise Misused("The image unpacks to more than the limit: free disk space, or use a smaller image.")
                file.write(chunk)
        self._own(member, place)
        # Without setuid and setgid, which have no effect in a sandbox, but would have one on this machine.
        place.chmod(member.mode & _FILE_BITS)
        os.utime(place, (member.mtime, member.mtime))

    def _write_link(self, _tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
        if "\0" in member.linkname or not member.linkname or len(member.linkname) > _MAX_NAME:
            raise tarfile.ReadError("a link has an invalid target")
        _clear(place)
        # The target may be any path: it is followed inside of the root only.
        place.symlink_to(member.linkname)
        self._own(member, place)

    def _write_hard_link(self, _tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
        parts = _parts(member.linkname, "")
        target = root_paths.outside(self._root, "/".join(parts), follow_last=False)
        try:
            mode = target.lstat().st_mode
        except OSError as error:
            raise tarfile.ReadError("a hard link has no target") from error
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise tarfile.ReadError("a hard link leads to a folder")
        if target == place:
            return
        _clear(place)
        os.link(target, place, follow_symlinks=False)

    def _remove(self, parts: list[str], layer: str) -> None:
        """Apply a whiteout: delete what earlier layers have."""
        folder = root_paths.outside(self._root, "/".join(parts[:-1]))
        if not _is_real_folder(folder):
            return
        if parts[-1] == _OPAQUE:
            for child in list(folder.iterdir()):
                self._remove_earlier(child)
            return
        name = parts[-1].removeprefix(_WHITEOUT)
        if parts[-1].startswith(_AUFS):
            return  # aufs keeps its own records under such names
        if name in {"", ".", ".."}:
            raise Misused(f"Layer {layer} has the invalid whiteout {'/'.join(parts)[:100]!r}: save the image again.")
        if self._inside(folder / name) not in self._written:
            _clear(folder / name)

    def _remove_earlier(self, path: Path) -> None:
        """Delete what this layer has not written itself."""
        inside = self._inside(path)
        if inside not in self._written and not any(row.startswith(f"{inside}/") for row in self._written):
            _clear(path)
        elif _is_real_folder(path):
            for child in list(path.iterdir()):
                self._remove_earlier(child)

    def _inside(self, place: Path) -> str:
        return str(place.relative_to(self._root))

    def _own(self, member: tarfile.TarInfo, place: Path) -> None:
        if self._owns_ids:
            os.chown(place, _id(member.uid), _id(member.gid), follow_symlinks=False)


def check_root(root: Path) -> None:
    """Check the folders at which the sandbox mounts the kernel's files. Raises Misused."""
    for name in _KERNEL:
        place = root / name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise Misused(f"The image has /{name} as a link or a file: build it with a folder there.")
        place.mkdir(mode=0o755, exist_ok=True)


def _parts(name: str, layer: str) -> list[str]:
    parts = [part for part in PurePosixPath(name).parts if part not in {"/", "//"}]
    if ".." in parts or "\0" in name or len(name) > _MAX_NAME:
        raise Misused(f"Layer {layer} has the invalid path {name[:100]!r}: save the image again.")
    return parts


def _clear(place: Path) -> None:
    """Delete a file, a link (not its target) or a folder with its content."""
    if _is_real_folder(place):
        remove_tree(place)
    else:
        place.unlink(missing_ok=True)


def _is_real_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def _id(number: int) -> int:
    """Return an id that pods have."""
    return number if 0 <= number <= _MAX_ID else _OVERFLOW_ID


def free_bytes(folder: Path, reserve: int) -> int:
    """Return how many bytes can be written before only `reserve` bytes are left on the disk."""
    return max(0, shutil.disk_usage(folder).free - reserve)
