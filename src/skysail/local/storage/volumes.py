"""Volumes of one pod, as folders of the machine. Blocking, for one thread at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from skysail.cloud.errors import Gone, Rejected
from skysail.cloud.provider import CloudVolume, EmptyDir, File, HostPath, Mount, PersistentDisk, ProjectedFiles, Volume
from skysail.kube.api import quantities
from skysail.local import files as local_files
from skysail.local.bubblewrap.rootfs import BindMount
from skysail.local.files import remove_tree
from skysail.local.storage import disk_usage
from skysail.local.storage.disk_usage import DiskUsage
from skysail.local.storage.ownership import Ownership

_REASON = "CreateContainerConfigError"
_CURRENT = "..data"
_NEXT = "..data_tmp"


class VolumePaths(msgspec.Struct, frozen=True, kw_only=True):
    """Locations of volumes. `memory` is on a tmpfs. A `HostPath` must be below one of `allowed`."""

    folder: Path
    memory: Path
    disks: Path
    allowed: tuple[Path, ...] = ()


class Volumes:
    """Volumes of one pod, created before its containers and deleted with it. PVCs and host paths are kept."""

    def __init__(self, uid: str, volume_paths: VolumePaths, ownership: Ownership = Ownership()) -> None:  # noqa: B008 (immutable)
        self._uid = uid
        self._volume_paths = volume_paths
        self._ownership = ownership
        self._volumes: dict[str, Volume] = {}
        self._paths: dict[str, Path] = {}

    def make(self, volumes: Iterable[Volume]) -> None:
        """Create the volumes. Raises Rejected if a volume is invalid."""
        for volume in volumes:
            self._paths[volume.name] = self._make(volume)
            self._volumes[volume.name] = volume

    def bind(self, mount: Mount) -> BindMount:
        """Return the bind mount of a volume mount. Raises Rejected."""
        volume = self._volumes.get(mount.volume)
        if volume is None:
            raise Rejected(
                _REASON, f"Volume {mount.volume} of the mount at {mount.path} not found: add it to the pod's volumes."
            )
        match volume.source:
            case ProjectedFiles():
                read_only = True
            case PersistentDisk(read_only=True):
                read_only = True
            case _:
                read_only = mount.read_only
        path = self._paths[mount.volume]
        source = self._below(path, mount, can_make=not read_only) if mount.sub_path else path
        # A program can write next to a subPath and next to a host path, so it can create a link there.
        is_shared = bool(mount.sub_path) or isinstance(volume.source, HostPath)
        return BindMount(str(source), mount.path, read_only, is_shared)

    def update(self, name: str, files: Iterable[File]) -> None:
        """Replace the content of a `ProjectedFiles` volume atomically: a reader sees the old or the new content."""
        volume = self._volumes.get(name)
        if volume is None:
            raise Gone(f"The pod has no volume {name}.")
        if not isinstance(volume.source, ProjectedFiles):
            raise Rejected("VolumeNotReplaceable", f"Volume {name} belongs to the pod and cannot be replaced.")
        self._write(self._paths[name], files)

    @property
    def have_limits(self) -> bool:
        return any(_limit(volume) is not None for volume in self._volumes.values())

    def excess(self) -> str:
        """Return why the pod must be evicted. Empty if every volume is within its limit."""
        for name, volume in self._volumes.items():
            limit = _limit(volume)
            if limit is not None and disk_usage.folders(self._paths[name]).bytes > limit:
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{quantities.in_bytes(limit)}".'
        return ""

    def usage(self) -> DiskUsage:
        """Return the usage of emptyDir volumes on the disk."""
        return disk_usage.folders(*self._scratch())

    def persistent_usage(self) -> DiskUsage:
        """Return the usage of PVCs that the pod can write."""
        writable = [
            self._paths[name]
            for name, volume in self._volumes.items()
            if isinstance(volume.source, PersistentDisk) and not volume.source.read_only
        ]
        return disk_usage.folders(*writable)

    def discard(self) -> None:
        """Delete the content of the emptyDir volumes on the disk. For evicted pods."""
        for folder in self._scratch():
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    remove_tree(path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        path.unlink()

    def _scratch(self) -> list[Path]:
        return [
            self._paths[name]
            for name, volume in self._volumes.items()
            if isinstance(volume.source, EmptyDir) and not volume.source.in_memory
        ]

    def remove(self) -> None:
        """Delete the volumes. Idempotent."""
        for folder in (self._volume_paths.folder / self._uid, self._volume_paths.memory / self._uid):
            remove_tree(folder, ignore_errors=True)

    def _make(self, volume: Volume) -> Path:
        match volume.source:
            case EmptyDir(in_memory=in_memory):
                folder = self._volume_paths.memory if in_memory else self._volume_paths.folder
                path = _empty(folder / self._uid / volume.name)
                self._ownership.adopt(path)
                return path
            case ProjectedFiles(files=files):
                folder = _empty(self._volume_paths.folder / self._uid / volume.name)
                self._write(folder, files)
                return folder
            case HostPath(path=path, create=create):
                return self._folder(Path(path), create=create)
            case PersistentDisk(id=name, read_only=read_only):
                path = self._disk(name)
                self._ownership.adopt(path, is_pvc=True, read_only=read_only)
                return path
            case CloudVolume():
                raise Rejected(_REASON, f"Volume {volume.name} is at a cloud, where this node has no access.")

    def _write(self, folder: Path, files: Iterable[File]) -> None:
        _write(folder, files, self._ownership)

    def _below(self, root: Path, mount: Mount, *, can_make: bool) -> Path:
        """Return the resolved path of a subPath in the volume `root`.

        A link in the volume must not lead out of it. A new folder gets the mode of the volume, as with a kubelet,
        because the program may be any user. Errors do not repeat the path: it may hold a secret (`subPathExpr`).
        Raises Rejected.
        """
        if "\0" in mount.sub_path:
            raise Rejected(_REASON, "A subPath cannot have a NUL byte: remove it.")
        path = _real(root / mount.sub_path)
        if not path.is_relative_to(root):
            raise Rejected(_REASON, f"The subPath of the mount at {mount.path} leads out of its volume.")
        try:
            os.close(local_files.open_nofollow(path, can_make=can_make, made=partial(self._ownership.make_alike, root)))
        except FileNotFoundError as error:
            raise Rejected(
                _REASON, f"The subPath of the mount at {mount.path} does not exist in its volume."
            ) from error
        return path

    def _folder(self, path: Path, *, create: bool) -> Path:
        real = _real(path)
        if not any(real.is_relative_to(_real(allowed)) for allowed in self._volume_paths.allowed):
            raise Rejected(
                "HostPathNotAllowed",
                f"Pods may not use folder {path} of this machine: "
                f"use an emptyDir or a PVC, or run `skysail down` and `SKYSAIL_ALLOWED_FOLDERS={path} skysail up`.",
            )
        if create:
            os.close(local_files.open_nofollow(real, can_make=True))
        if not real.exists():
            raise Rejected("HostPathMissing", f"{path} does not exist on this machine: create it first.")
        return real

    def _disk(self, name: str) -> Path:
        if name != PurePosixPath(name).name or name in ("", ".", ".."):
            raise Rejected(_REASON, f"{name!r} is not a valid volume name.")
        path = self._volume_paths.disks / name
        if not path.exists():
            _empty(path)
        return _real(path)


def _limit(volume: Volume) -> int | None:
    """Return the size limit in bytes. Returns None if there is none, or if it is 0, as in a kubelet."""
    return volume.source.size_limit or None if isinstance(volume.source, EmptyDir) else None


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # the program may be any user
    return _real(folder)


def _real(path: Path) -> Path:
    """Return the path without links. A link loop stays, and fails when it is opened. Raises OSError."""
    return local_files.real_path(path)


def _write(folder: Path, files: Iterable[File], ownership: Ownership) -> None:
    """Write the files to a new hidden folder, then move one link to it, as a kubelet does.

    The visible names are links through that link.
    """
    files = tuple(files)
    previous = _current(folder)
    content = _fresh(folder, previous)
    for file in files:
        _place(content, file)
    ownership.adopt(content, read_only=True)  # before the link, so that readers can open every file
    (folder / _NEXT).unlink(missing_ok=True)
    (folder / _NEXT).symlink_to(content.name)
    (folder / _NEXT).replace(folder / _CURRENT)
    _link_names(folder, {PurePosixPath(file.path).parts[0] for file in files})
    if previous is not None:
        remove_tree(folder / previous, ignore_errors=True)


def _current(folder: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return str((folder / _CURRENT).readlink())
    return None


def _fresh(folder: Path, previous: str | None) -> Path:
    number = int(previous.removeprefix("..")) + 1 if previous else 1
    path = folder / f"..{number}"
    remove_tree(path, ignore_errors=True)  # left by an interrupted update
    path.mkdir()
    return path


def _place(content: Path, file: File) -> None:
    path = content / file.path
    parts = PurePosixPath(file.path).parts
    is_outside = PurePosixPath(file.path).is_absolute() or ".." in parts or not parts
    # Names that begin with two dots are those of the links and folders that this module makes.
    if is_outside or parts[0].startswith("..") or "\0" in file.path:
        raise Rejected(_REASON, f"{file.path!r} is not a path inside a volume.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(file.mode)


def _link_names(folder: Path, desired: set[str]) -> None:
    there = {name for name in os.listdir(folder) if not name.startswith("..")}  # noqa: PTH208 (names are wanted)
    for name in desired - there:
        (folder / name).symlink_to(f"{_CURRENT}/{name}")
    for name in there - desired:
        (folder / name).unlink()
