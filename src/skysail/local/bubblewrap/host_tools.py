"""Paths of the machine's programs that are needed to start a container."""

from __future__ import annotations

import os
import shutil
from typing import Self

import msgspec

from skysail.local.errors import StartFailed

_FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = {
    "bwrap": "bubblewrap",
    "ip": "iproute2",
    "setsid": "util-linux",
    "sh": "dash",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "unshare": "util-linux",
    "cat": "coreutils",
}


class HostTools(msgspec.Struct, frozen=True):
    bwrap: str
    ip: str
    setsid: str
    sh: str
    setpriv: str
    prlimit: str
    unshare: str
    cat: str

    @classmethod
    def find(cls, path: str = "") -> Self:
        """Find the programs on `path` and in the system's folders. Raises StartFailed if one is missing."""
        found = {name: shutil.which(name, path=f"{path}:{_FOLDERS}") for name in _PACKAGES}
        missing = [f"`{name}` (package {_PACKAGES[name]})" for name, where in found.items() if where is None]
        if missing:
            raise StartFailed(
                f"Pods need {' and '.join(missing)}, not found on this machine: install it, for example by apt-get."
            )
        return cls(**{name: where for name, where in found.items() if where is not None})

    def is_bwrap(self, pid: int) -> bool:
        """Return whether a process is still bubblewrap and not yet the user's program.

        Raises OSError if it has ended.
        """
        return os.path.samestat(os.stat(f"/proc/{pid}/exe"), os.stat(self.bwrap))  # noqa: PTH116 (no path object needed)
