"""Make the files of a container reachable for bubblewrap, which runs with an unprivileged host id.

Volumes, environments and the cluster's home may be below folders that only root may enter, and files belong to ids that
a pod does not have. So each source is mounted again while the container starts, in a folder that every id may traverse.
If the file system supports it, the mount maps the ids on the disk to the ids of the pod.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import msgspec

from skysail.local import files
from skysail.local.bubblewrap import mounts
from skysail.local.bubblewrap.rootfs import BindMount, ContainerRoot, ImageRoot

_OPTIONS = "mode=711,size=4m"
_SCRATCH_OPTIONS = "mode=755,size=256m"
# Folders in the scratch folder of a container: its changes to the root of the image, and space for the kernel.
UPPER, WORK = "upper", "work"
# Answers of a file system or kernel without id-mapped mounts.
_NOT_MAPPABLE = (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class Staging:
    """Staging folder of one cluster, in its mount namespace. `can_map` may be called in any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._mappable: dict[int, bool] = {}

    def open(self) -> None:
        """Remove the mounts of an earlier process, and create the folder. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        while self._folder.is_mount():
            mounts.detach(self._folder)
        mounts.mount_tmpfs(self._folder, _OPTIONS)

    def can_map(self, path: Path | str | int, namespace: int) -> bool:
        """Return whether the file system of `path` supports id-mapped mounts. Tried once per file system."""
        device = os.stat(path).st_dev  # noqa: PTH116 (a path or a descriptor)
        if device not in self._mappable:
            self._mappable[device] = _is_mappable(path if isinstance(path, int) else str(path), namespace)
        return self._mappable[device]

    def stage(self, container_root: ContainerRoot, namespace: int) -> tuple[ContainerRoot, Path]:
        """Mount every source of the container root in a new folder.

        Returns the root with the new sources, and the folder. Remove the folder with `remove` when bubblewrap has made
        its own mounts. Raises OSError.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        with ExitStack() as undo:
            undo.callback(self.remove, folder)
            mounts.mount_tmpfs(folder, _OPTIONS)
            names = itertools.count()
            staged = {
                kind: tuple(self._bind(bind_mount, folder / str(next(names)), namespace) for bind_mount in bind_mounts)
                for kind, bind_mounts in (("binds", container_root.binds), ("environment", container_root.environment))
            }
            image = container_root.image
            if image is not None:
                image = self._merge(image, folder, namespace)
            undo.pop_all()
        return msgspec.structs.replace(container_root, image=image, **staged), folder

    def stage_image(self, container_root: ContainerRoot) -> tuple[ContainerRoot, Path]:
        """Mount only the root of the image, for a cluster with a single id. As `stage`, otherwise."""
        assert container_root.image is not None, "only a root of an image is staged"
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        with ExitStack() as undo:
            undo.callback(self.remove, folder)
            mounts.mount_tmpfs(folder, _OPTIONS)
            image = self._merge(container_root.image, folder, None)
            undo.pop_all()
        return msgspec.structs.replace(container_root, image=image), folder

    def _merge(self, image: ImageRoot, folder: Path, namespace: int | None) -> ImageRoot:
        """Mount an overlay of the image and the container's own changes. Raises OSError."""
        lower, scratch, merged = folder / "lower", folder / "scratch", folder / "merged"
        for path in (lower, scratch, merged):
            path.mkdir()
        with ExitStack() as until:
            tree = mounts.Tree(image.lower)
            until.callback(tree.close)
            if namespace is not None and self.can_map(image.lower, namespace):
                tree.map_ids(namespace)
            tree.attach(lower, read_only=True)
            changes = mounts.Tree(image.scratch)
            until.callback(changes.close)
            changes.attach(scratch, read_only=False)
        try:
            mounts.mount_overlay(merged, lower=lower, upper=scratch / UPPER, work=scratch / WORK)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The scratch folder is on an overlay itself, as in most containers: keep changes in memory.
            self._merge_in_memory(lower, scratch, merged)
        return msgspec.structs.replace(image, merged=str(merged))

    def _merge_in_memory(self, lower: Path, scratch: Path, merged: Path) -> None:
        owner = (scratch / UPPER).stat()
        mounts.detach(scratch)
        mounts.mount_tmpfs(scratch, _SCRATCH_OPTIONS)
        for name in (UPPER, WORK):
            (scratch / name).mkdir()
        os.chown(scratch / UPPER, owner.st_uid, owner.st_gid)
        (scratch / UPPER).chmod(stat.S_IMODE(owner.st_mode))
        mounts.mount_overlay(merged, lower=lower, upper=scratch / UPPER, work=scratch / WORK)

    def remove(self, folder: Path) -> None:
        """Unmount and remove the folder. If that fails, the next process that opens the staging folder does it."""
        with contextlib.suppress(OSError):
            mounts.detach(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()

    def _bind(self, bind_mount: BindMount, target: Path, namespace: int) -> BindMount:
        with ExitStack() as until:
            source: str | int = bind_mount.source
            if bind_mount.is_shared:
                # By descriptor: another pod can put a link into the path between its check and this mount.
                source = files.open_nofollow(Path(bind_mount.source))
                until.callback(os.close, source)
            _make_mount_point(target, is_folder=stat.S_ISDIR(os.stat(source).st_mode))  # noqa: PTH116 (as above)
            tree = mounts.Tree(source)
            until.callback(tree.close)
            if self.can_map(source, namespace):
                tree.map_ids(namespace)
            tree.attach(target, read_only=bind_mount.read_only)
        return msgspec.structs.replace(bind_mount, source=str(target), is_shared=False)


def _make_mount_point(path: Path, *, is_folder: bool) -> None:
    if is_folder:
        path.mkdir()
    else:
        path.touch()


def _is_mappable(source: str | int, namespace: int) -> bool:
    tree = mounts.Tree(source)
    try:
        tree.map_ids(namespace)
    except OSError as error:
        if error.errno not in _NOT_MAPPABLE:
            raise
        return False
    else:
        return True
    finally:
        tree.close()
