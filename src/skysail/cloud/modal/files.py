"""Files of a pod's volumes inside a sandbox. Pure.

Modal mounts no files into a sandbox. A shell in the image unpacks them from a variable before the program starts, so
they never become part of an image, which other pods of the workspace could read.
"""

from __future__ import annotations

import base64
import gzip
import io
import posixpath
import tarfile
from collections.abc import Iterator

import msgspec

from skysail.cloud.account import LaunchSpec
from skysail.cloud.errors import Rejected
from skysail.cloud.provider import CloudVolume, EmptyDir, File, Mount, ProjectedFiles, Volume

VARIABLE = "SKYSAIL_FILES"
_MAX_ENCODED = 96 * 1024
_FOLDER_MODE = 0o755
_EMPTY_DIR_MODE = 0o777
_SCRIPT = (
    f'printf %s "${VARIABLE}" | base64 -d | tar -xzf - -C / || '
    "{ echo 'skysail: the image needs base64 and tar for volumes of files' >&2; exit 126; }\n"
    f"unset {VARIABLE}\n"
    'exec "$@"'
)


class Unpacking(msgspec.Struct, frozen=True):
    """Command line that unpacks the files and starts the program, and the variables that it needs."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]


def unpacking(spec: LaunchSpec, argv: tuple[str, ...]) -> Unpacking:
    """Return the command line with the files of the pod. A pod without volumes keeps its command line.

    Raises Rejected for volumes of the cluster or of the machine, and if the files are too large.
    """
    sources = {volume.name: _supported(volume).source for volume in spec.pod.volumes}
    entries = [
        entry
        for mount in spec.container.mounts
        if isinstance(source := sources.get(mount.volume), EmptyDir | ProjectedFiles)
        for entry in _entries(mount, source)
    ]
    if not entries:
        return Unpacking(argv, ())
    packed = base64.b64encode(_archive(entries)).decode()
    if len(packed) > _MAX_ENCODED:
        raise Rejected(
            "FilesTooLarge",
            f"The volumes of pod {spec.pod.name} have {len(packed) // 1024} KiB of files, and Modal takes at most "
            f"{_MAX_ENCODED // 1024} KiB: put them into the image or into a Modal Volume.",
        )
    return Unpacking(("/bin/sh", "-c", _SCRIPT, "sh", *argv), ((VARIABLE, packed),))


def _supported(volume: Volume) -> Volume:
    if not isinstance(volume.source, EmptyDir | ProjectedFiles | CloudVolume):
        raise Rejected(
            "UnsupportedVolume",
            f"Volume {volume.name} is in the cluster, where Modal has no access: use an emptyDir, or a Modal Volume by "
            "the annotation modal-operator.io/volumes.",
        )
    return volume


def _entries(mount: Mount, source: EmptyDir | ProjectedFiles) -> Iterator[tuple[str, File | None, int]]:
    """Yield paths with their files; None is a folder. A `subPath` selects one file or one folder of the volume."""
    if isinstance(source, EmptyDir):
        yield mount.path, None, _EMPTY_DIR_MODE
        return
    wanted = mount.sub_path.strip("/")
    exact = next((file for file in source.files if file.path == wanted), None)
    if exact is not None:
        yield mount.path, exact, exact.mode
        return
    yield mount.path, None, _FOLDER_MODE
    for file in source.files:
        inside = posixpath.relpath(file.path, wanted) if wanted else file.path
        if not inside.startswith("../"):
            yield posixpath.join(mount.path, inside), file, file.mode


def _archive(entries: list[tuple[str, File | None, int]]) -> bytes:
    packed = io.BytesIO()
    # No time stamp: equal files give an equal archive.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path, file, mode in entries:
            info = tarfile.TarInfo(path.strip("/"))
            info.mode = mode
            if file is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(file.content)
                archive.addfile(info, io.BytesIO(file.content))
    return packed.getvalue()
