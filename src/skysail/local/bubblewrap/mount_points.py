"""Mount points inside volumes. Blocking, and fast.

bubblewrap creates mount points while the machine's files are still reachable, and follows links. So a link that a pod
left in a volume could make bubblewrap create folders and files of the machine.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from skysail.local import files
from skysail.local.bubblewrap import rootfs
from skysail.local.bubblewrap.arguments import InvalidArgument, check_words
from skysail.local.bubblewrap.host_files import files_of


def prepare(container_root: rootfs.ContainerRoot) -> None:
    """Create the working directory if it is in a writable volume.

    Raises InvalidArgument if a link in a volume leads a mount point out of the volume.
    """
    check_words((*(bind_mount.target for bind_mount in container_root.binds), container_root.working_dir))
    for bind_mount, rest in rootfs.nested_mount_points(container_root, files_of(container_root)):
        root = files.real_path(Path(bind_mount.source))
        if not files.real_path(root / rest).is_relative_to(root):
            raise InvalidArgument(
                f"Mount at {bind_mount.target.rstrip('/')}/{rest} rejected: a link in the volume at "
                f"{bind_mount.target} "
                "leads out of the volume. Remove the link, or choose another path."
            )
    for bind_mount, rest in rootfs.working_dir_in_bind(container_root, files_of(container_root)):
        # If the path contains a link, the program starts where the link leads, inside of the container.
        with contextlib.suppress(OSError):
            os.close(
                files.open_nofollow(files.real_path(Path(bind_mount.source)) / rest, can_make=not bind_mount.read_only)
            )
