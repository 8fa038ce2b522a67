"""Safe unpacking of untrusted archives: only files and folders, only below the target folder, and within the limit.

The functions yield the size of each chunk, so that the caller can interrupt them and report progress.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TypeVar

from skysail.runtimes.fetch.errors import InvalidContent
from skysail.runtimes.fetch.unpack.paths import below

_TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_CHUNK = 2**20
_MAX_ENTRIES = 100_000
# Errors that the standard library raises for invalid archives: names and numbers (ValueError), sizes (MemoryError,
# OverflowError), nested headers (RecursionError).
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    ValueError,
)

T = TypeVar("T")
# Returns the path of an entry, by its name and whether it is a folder, or None to skip it.
Placing = Callable[[str, bool], Path | None]


def is_archive(file: Path) -> bool:
    """Return whether the file is an archive.

    The name decides, because model formats are zip files, too; the content decides if there is no extension. Raises
    WrongContent if the start of the file is damaged.
    """
    name = file.name.lower()
    if name.endswith((*_TAR_SUFFIXES, ".zip")):
        return True
    with readable(_damaged(file)):
        return not file.suffix and tarfile.is_tarfile(file)


def unpack(archive: Path, into: Path, *, limit: int) -> Iterator[int]:
    """Unpack an archive and yield the number of bytes written. Raises InvalidContent."""
    into.mkdir(parents=True, exist_ok=True)
    with readable(_damaged(archive)):
        is_zip = archive.suffix.lower() == ".zip" and zipfile.is_zipfile(archive)
    entries = _zip_entries(archive) if is_zip else tar_entries(archive)
    yield from write(entries, lambda name, _is_folder: below(into, name), limit=limit, archive=archive)


def write(
    entries: Iterator[tuple[str, IO[bytes] | None]], placing: Placing, *, limit: int, archive: Path
) -> Iterator[int]:
    """Write entries to their places. Entries without content are folders; entries without a name are skipped.

    Raises InvalidContent, also for damage that is found only while an entry is read.
    """
    written = 0
    with readable(_damaged(archive)):
        for name, content in _counted(entries, archive):
            for count in _written(name, content, placing, archive):
                written += count
                if written > limit:
                    raise InvalidContent(
                        "TooLarge",
                        f"{archive.name} unpacks to more than the limit of {limit} bytes: use a smaller model, or raise"
                        " the setting `max_model_bytes`.",
                    )
                yield count


def names_in(archive: Path) -> Iterator[str]:
    """Yield the names in a tar file. Raises InvalidContent."""
    with readable(_damaged(archive)), tarfile.open(archive, "r:*") as tar:
        for member in _counted(_forward(tar), archive):
            yield member.name


def tar_entries(
    archive: Path, is_wanted: Callable[[str], bool] = lambda _name: True
) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the entries. Unwanted ones have no name. Raises InvalidContent if a wanted one is neither file nor
    folder.
    """
    with tarfile.open(archive, "r:*") as tar:
        for member in _forward(tar):
            if not is_wanted(member.name):
                yield "", None
            elif member.isdir():
                yield member.name if member.name.strip("./") else "", None
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                with closing(content):
                    yield member.name, content
            else:
                raise _refused(
                    archive, f"has {member.name[:100]!r}, a link or a device: pack it with `tar --dereference`"
                )


def _zip_entries(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if info.flag_bits & 1:
                raise _refused(archive, "is protected by a password: pack it without one")
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise _refused(archive, f"has {info.filename[:100]!r}, a link or a device: pack the file itself")
            if info.is_dir():
                yield info.filename, None
            else:
                with file.open(info) as content:
                    yield info.filename, content


def _forward(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield each member once: a negative size would lead back to an earlier one."""
    last = -1
    for member in tar:
        if member.offset <= last:
            raise tarfile.ReadError("an entry ends before it begins")
        last = member.offset
        yield member


def _counted(entries: Iterable[T], archive: Path) -> Iterator[T]:
    """Limit the number of entries, including skipped ones: a few bytes can hold very many."""
    for number, entry in enumerate(entries):
        if number >= _MAX_ENTRIES:
            raise _refused(archive, f"has more than {_MAX_ENTRIES} entries: pack only the model")
        yield entry


def _written(name: str, content: IO[bytes] | None, placing: Placing, archive: Path) -> Iterator[int]:
    path = placing(name, content is None) if name else None
    if path is None:
        yield 0
        return
    conflict = _conflict(path, name, is_folder=content is None)
    if conflict:
        raise _refused(archive, f"has {conflict[:100]!r} both as a file and as a folder: rename one of them")
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
    else:
        yield from _copy(content, path)


def _conflict(path: Path, name: str, *, is_folder: bool) -> str:
    """Return the name that this entry and an earlier one use both as file and folder; empty if there is none.

    The disk decides, not the names: volumes that ignore case treat `A` and `a/b` as conflicting.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if path.is_dir() and not is_folder:
        return "/".join(parts)
    if path.is_file() and is_folder:
        return "/".join(parts)
    above = [(parts[: len(parts) - up], path.parents[up - 1]) for up in range(1, len(parts))]
    return next(("/".join(outer) for outer, folder in reversed(above) if folder.is_file()), "")


def _copy(content: IO[bytes], path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while chunk := content.read(_CHUNK):
            file.write(chunk)
            yield len(chunk)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def readable(sentence: str) -> Iterator[None]:
    """Replace errors of the standard library about damaged content by WrongContent with this sentence."""
    try:
        yield
    except _DAMAGED as error:
        raise InvalidContent("UnsupportedFormat", sentence) from error
    except OSError as error:
        # gzip raises OSError without a number, and a seek outside of the file raises EINVAL.
        if error.errno not in {None, errno.EINVAL}:
            raise  # an error of the disk
        raise InvalidContent("UnsupportedFormat", sentence) from error


def _damaged(archive: Path) -> str:
    return f"{archive.name} is damaged or not an archive: upload it again, or repack it as tar, tar.gz or zip."


def _refused(archive: Path, message: str) -> InvalidContent:
    return InvalidContent("UnsupportedFormat", f"{archive.name} {message}.")
