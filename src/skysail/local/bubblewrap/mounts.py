"""Bind mounts with the kernel's newer calls, optionally with mapped ids. For root.

Id-mapped mounts need Linux 5.12.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# Same numbers on x86_64 and aarch64.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 0x1, 0x2, 0x4, 0x00100000
_MNT_DETACH = 2
_MS_NOSUID_NODEV = 0x2 | 0x4

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class Tree:
    """Detached copy of the mounts at `source`, a path or a descriptor. Must be closed. Raises OSError."""

    def __init__(self, source: str | int) -> None:
        folder, path, empty = (source, "", _AT_EMPTY_PATH) if isinstance(source, int) else (_AT_FDCWD, source, 0)
        flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC | empty
        self._descriptor = _call("open_tree", _OPEN_TREE, folder, os.fsencode(path), flags)

    def map_ids(self, namespace: int) -> None:
        """Map the ids on the disk to the same ids inside this user namespace.

        Raises OSError if the file system cannot map ids.
        """
        self._set(_IDMAP, namespace)

    def attach(self, target: Path | str, *, read_only: bool, has_devices: bool = False) -> None:
        self._set((0 if has_devices else _NOSUID | _NODEV) | (_RDONLY if read_only else 0), 0)
        _call(
            "move_mount",
            _MOVE_MOUNT,
            self._descriptor,
            b"",
            _AT_FDCWD,
            os.fsencode(target),
            _MOVE_MOUNT_F_EMPTY_PATH,
        )

    def close(self) -> None:
        os.close(self._descriptor)

    def _set(self, flags: int, namespace: int) -> None:
        desired = _Attributes(attr_set=flags, userns_fd=namespace)
        size = ctypes.c_size_t(ctypes.sizeof(desired))
        where = _AT_EMPTY_PATH | _AT_RECURSIVE
        _call("mount_setattr", _MOUNT_SETATTR, self._descriptor, b"", where, ctypes.byref(desired), size)


def cover_read_only(path: str) -> None:
    """Mount a file over itself read-only: a device can still be opened for writing, but not be changed."""
    tree = Tree(path)
    try:
        tree.attach(path, read_only=True, has_devices=True)
    finally:
        tree.close()


def mount_tmpfs(target: Path, options: str) -> None:
    result = _libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", ctypes.c_ulong(_MS_NOSUID_NODEV), options.encode())
    _check("mount", result)


def mount_overlay(target: Path, *, lower: Path, upper: Path, work: Path) -> None:
    """Mount `lower` with the changes in `upper`. Raises OSError if the file system of `upper` cannot be used so.

    The paths must not have characters with a meaning in mount options.
    """
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    # Without privileges on the machine, only the other set of attributes may be written.
    options = layers if os.geteuid() == 0 and _is_initial_namespace() else f"{layers},userxattr"
    result = _libc.mount(
        b"overlay", os.fsencode(target), b"overlay", ctypes.c_ulong(_MS_NOSUID_NODEV), os.fsencode(options)
    )
    _check("mount", result)


def _is_initial_namespace() -> bool:
    """Return whether this process has all user ids: then it is in no user namespace that restricts mounts."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def detach(target: Path) -> None:
    """Unmount `target` and everything below it. Open files stay usable."""
    _check("umount2", _libc.umount2(os.fsencode(target), _MNT_DETACH))


def _call(name: str, number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    return _check(name, result)


def _check(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
