"""Change the owners of files to the users and groups of one pod. Blocking.

No link is followed, because another pod that mounts the same volume can create one at any time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from skysail.local.bubblewrap.isolation import PodIds
from skysail.local.bubblewrap.user_namespace import MAX_ID

_OVERFLOW_ID = 65534  # the kernel shows ids without a mapping as this one
_READ_WRITE, _READ_ONLY, _FOLDER_BITS = 0o660, 0o440, 0o2110
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_DEPTH = 256


class Ownership:
    """Owners of the files of one pod.

    `ids` is None if the pod has a single id, which owns all files already; then nothing is done.
    `fs_group` is the pod's fsGroup. With `only_on_mismatch`, a PVC whose root has this group is not changed.
    """

    def __init__(
        self, ids: PodIds | None = None, fs_group: int | None = None, *, only_on_mismatch: bool = False
    ) -> None:
        self._ids = ids
        self._fs_group = fs_group
        self._only_on_mismatch = only_on_mismatch

    def give(self, path: Path, user: int, group: int) -> None:
        """Change the owner of a file, or of a folder and its content, to this user and group of the pod."""
        if self._ids is None:
            return
        offset = self._ids.offset(path)
        for descriptor in _tree(path):
            os.chown(f"/proc/self/fd/{descriptor}", offset + user, offset + group)

    def adopt(self, path: Path, *, is_pvc: bool = False, read_only: bool = False) -> None:
        """Make the files of a volume accessible to the pod: shift their ids if necessary, then apply fsGroup."""
        if self._ids is None:
            return
        offset = self._ids.offset(path)
        # Pods keep their files in the range, so a PVC is shifted once.
        if offset and not (is_pvc and _is_shifted(path.lstat(), offset)):
            for descriptor in _tree(path):
                _shift(descriptor, offset)
        if self._fs_group is not None and not read_only:
            self._set_group(path, offset + self._fs_group, _READ_WRITE, is_pvc=is_pvc)
        elif self._fs_group is not None and not is_pvc:
            self._set_group(path, offset + self._fs_group, _READ_ONLY, is_pvc=False)

    def make_alike(self, root: Path, descriptor: int) -> None:
        """Give a new folder in the volume `root` the owner and mode of the volume."""
        file, found = f"/proc/self/fd/{descriptor}", root.stat()
        if self._ids is not None:
            os.chown(file, found.st_uid, found.st_gid)
        os.chmod(file, stat.S_IMODE(found.st_mode))  # noqa: PTH101 (by descriptor: no link is followed)

    def _set_group(self, path: Path, group: int, mask: int, *, is_pvc: bool) -> None:
        found = path.lstat()
        if is_pvc and self._only_on_mismatch and found.st_gid == group and found.st_mode & stat.S_ISGID:
            return
        for descriptor in _tree(path):
            found = os.fstat(descriptor)
            file = f"/proc/self/fd/{descriptor}"
            os.chown(file, -1, group)
            if not stat.S_ISLNK(found.st_mode):
                more = mask | (_FOLDER_BITS if stat.S_ISDIR(found.st_mode) else 0)
                os.chmod(file, stat.S_IMODE(found.st_mode) | more)  # noqa: PTH101 (by descriptor: no link is followed)


def _is_shifted(found: os.stat_result, offset: int) -> bool:
    return offset <= found.st_uid <= offset + MAX_ID


def _shift(descriptor: int, offset: int) -> None:
    found = os.fstat(descriptor)
    if _is_shifted(found, offset):
        return
    user, group = (offset + (one if one <= MAX_ID else _OVERFLOW_ID) for one in (found.st_uid, found.st_gid))
    os.chown(f"/proc/self/fd/{descriptor}", user, group)


def _tree(path: Path) -> Iterator[int]:
    """Yield a descriptor of the file or folder and of everything in it. Each is open until the next is yielded.

    Not with os.fwalk, which calls itself for each level: a program that nests 1,000 folders would end the caller.
    Raises OSError if folders are nested deeper than `_MAX_DEPTH`, because each level takes a descriptor.
    """
    levels = [(os.open(path.parent, _FOLDER), [path.name])]  # an open folder, and the names in it that are left
    try:
        while levels:
            folder, names = levels[-1]
            if not names:
                os.close(levels.pop()[0])
                continue
            try:
                descriptor = os.open(names.pop(), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except FileNotFoundError:
                continue  # another pod has removed it
            try:
                yield descriptor
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    levels.append(_opened(descriptor, len(levels)))
            finally:
                os.close(descriptor)
    finally:
        for folder, _ in levels:
            os.close(folder)


def _opened(descriptor: int, depth: int) -> tuple[int, list[str]]:
    if depth > _MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, f"folders of a volume are nested deeper than {_MAX_DEPTH} levels")
    folder = os.open(f"/proc/self/fd/{descriptor}", _FOLDER)
    return folder, os.listdir(folder)  # noqa: PTH208 (by descriptor: no link is followed)
