"""Open paths without following links, and write private files.

Use it where another process may replace part of a path by a link at any time. Files with secrets are readable for their
owner only, and a reader never sees a partial write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_PART = os.O_PATH | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def open_nofollow(path: Path, *, can_make: bool = False, made: Callable[[int], None] = lambda _: None) -> int:
    """Return an O_PATH descriptor of `path`, without following links.

    With `can_make`, missing folders are made, and `made` is called with the descriptor of each new folder.
    Raises OSError if the path does not exist or if any part of it is a link.
    """
    folder = os.open(path.anchor, _PART)
    for part in path.relative_to(path.anchor).parts:
        try:
            found = _open_part(folder, part, can_make=can_make, made=made)
        finally:
            os.close(folder)
        folder = found
    return folder


def real_path(path: Path) -> Path:
    """Return the path without links, as far as it exists. Unlike `Path.resolve` it takes a link that leads to itself.

    Raises OSError if a link cannot be read, or if thousands of links follow each other.
    """
    try:
        return Path(os.path.realpath(path))
    except RecursionError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _open_part(folder: int, part: str, *, can_make: bool, made: Callable[[int], None]) -> int:
    is_new = False
    try:
        found = os.open(part, _PART, dir_fd=folder)
    except FileNotFoundError:
        if not can_make:
            raise
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(part, dir_fd=folder)
            is_new = True
        found = os.open(part, _PART, dir_fd=folder)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, "path contains a link", part)
    if is_new:
        made(found)
    return found


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder with all that it holds, at any depth. A missing folder is fine.

    shutil.rmtree calls itself for each level, so a program that nests 1,000 folders would end this process. Here nested
    folders are moved up into `path` first. Raises the first OSError when all else is deleted, unless `ignore_errors`.
    """
    errors: list[OSError] = []
    with _collecting(errors), contextlib.suppress(FileNotFoundError):
        root = os.open(path, _FOLDER)
        try:
            folders = _delete_files(root, errors)
            while folders:
                with _collecting(errors):
                    _dissolve(root, folders.pop(), folders, errors)
        finally:
            os.close(root)
        path.rmdir()
    if errors and not ignore_errors:
        raise errors[0]


def _dissolve(root: int, name: str, folders: list[str], errors: list[OSError]) -> None:
    """Delete one folder in `root`. The folders in it are moved to `root` and added to `folders`."""
    folder = os.open(name, _FOLDER, dir_fd=root)
    try:
        for nested in _delete_files(folder, errors):
            moved = f".{secrets.token_hex(8)}"
            try:
                os.rename(nested, moved, src_dir_fd=folder, dst_dir_fd=root)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                shutil.rmtree(nested, dir_fd=folder)  # in a lower layer of an overlay, which no pod can write
            else:
                folders.append(moved)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)


def _delete_files(folder: int, errors: list[OSError]) -> list[str]:
    """Delete all but the folders in this folder. Returns the names of these."""
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            with _collecting(errors):
                os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]


@contextlib.contextmanager
def _collecting(errors: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        errors.append(error)


def write_private(path: Path, content: bytes) -> None:
    """Replace the file atomically: a reader sees the old content or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)


def token(path: Path) -> str:
    """Return the token in this file. If the file is missing, create it; concurrent callers get the same token."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = path.with_name(f"{path.name}-{os.getpid()}")
        write_private(temporary, secrets.token_urlsafe(32).encode())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
        temporary.unlink()
    return path.read_text()
