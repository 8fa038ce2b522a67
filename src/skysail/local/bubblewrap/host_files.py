"""Implementations of `rootfs.HostFs` with the files of the machine and of an image."""

from __future__ import annotations

import os
from pathlib import Path

from skysail.local import root_paths
from skysail.local.bubblewrap.rootfs import ContainerRoot, HostFs

_KERNEL = ("/proc/", "/sys/")


def files_of(container_root: ContainerRoot) -> HostFs:
    """Return the files that the container is made of."""
    return HostFiles() if container_root.image is None else ImageFiles(Path(container_root.image.lower))


class HostFiles:
    is_image = False

    def link(self, path: str) -> str | None:
        return str(Path(path).readlink()) if Path(path).is_symlink() else None

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_folder(self, path: str) -> bool:
        return Path(path).is_dir()

    def names(self, path: str) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 (names are wanted)

    def resolve(self, path: str) -> str:
        return str(Path(path).resolve())


class ImageFiles:
    """Files of an image. Below /proc and /sys a container has the kernel's files, not those of its image."""

    is_image = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kernel = HostFiles()

    def link(self, path: str) -> str | None:
        return self._kernel.link(str(root_paths.outside(self._root, path, follow_last=False)))

    def exists(self, path: str) -> bool:
        return self._kernel.exists(self._place(path))

    def is_folder(self, path: str) -> bool:
        return self._kernel.is_folder(self._place(path))

    def names(self, path: str) -> list[str]:
        return self._kernel.names(self._place(path))

    def resolve(self, path: str) -> str:
        return root_paths.resolve(self._root, path)

    def _place(self, path: str) -> str:
        return path if path.startswith(_KERNEL) else str(root_paths.outside(self._root, path))
