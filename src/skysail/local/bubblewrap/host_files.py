"""Implementation of `rootfs.HostFs` with the machine's files."""

from __future__ import annotations

import os
from pathlib import Path


class HostFiles:
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
