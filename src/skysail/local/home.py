"""SKYSAIL_HOME: the folder that holds one cluster's data, certificates, logs and sockets, and its lock.

Nothing of a cluster is written anywhere else, least of all to ~/.kube.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from skysail.local.errors import Misused, NotRunning

# The hull mounts its own over these, so a home below them would be invisible inside.
_HIDDEN_INSIDE = ("/proc", "/sys", "/run", "/dev")
# `struct flock`: type, whence, start, length, pid. It belongs to the open file, so forks share it.
_LOCK = struct.Struct("hhqqi4x")
_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Home(msgspec.Struct, frozen=True):
    """The paths of one home. Making this object touches no disk."""

    root: Path

    @classmethod
    def of(cls, path: Path | None, env: Mapping[str, str]) -> Self:
        """The home that was named, else SKYSAIL_HOME, else ~/.skysail."""
        root = (path or Path(env.get("SKYSAIL_HOME") or Path.home() / ".skysail")).expanduser().absolute()
        if any(root.resolve().is_relative_to(hidden) for hidden in _HIDDEN_INSIDE):
            raise Misused(f"SKYSAIL_HOME {root} cannot be below {', '.join(_HIDDEN_INSIDE)}: choose another folder.")
        return cls(root)

    @property
    def kubeconfig(self) -> Path:
        """For people and tools on this machine: through the door on 127.0.0.1."""
        return self.root / "kubeconfig"

    @property
    def credentials(self) -> Path:
        """Kubeconfigs for what runs inside the hull."""
        return self.root / "credentials"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.jsonl"

    @property
    def audit_policy(self) -> Path:
        return self.root / "audit-policy.yaml"

    @property
    def failure(self) -> Path:
        """Why the last start failed, for the one who asked for it."""
        return self.root / "failure"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def door_port(self) -> Path:
        """The port of the last start, so that a kubeconfig somebody copied stays right."""
        return self.root / "door-port"

    @property
    def kubectl_cache(self) -> Path:
        return self.root / "kubectl-cache"

    @property
    def kubectl(self) -> Path:
        """The argv prefix of the kubectl that belongs to this cluster, as JSON."""
        return self.root / "kubectl.json"

    def prepare(self) -> None:
        """Make the folders, readable for their owner only. May be called twice."""
        for folder in (self.root, self.credentials, self.pki, self.etcd, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def purge(self) -> None:
        """Delete the cluster for good. Nothing there is fine; a running hull must be stopped first."""
        if self.root.exists():
            shutil.rmtree(self.root)

    def lock(self) -> int | None:
        """Take the home for a hull: a descriptor to keep open, or None if a hull has it.

        Every process of a hull holds a copy, so the lock is free only after the last of them is gone.
        """
        file = self._lock_file()
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            os.close(file)
            return None
        return file

    def is_taken(self) -> bool:
        """Whether a hull, or a part of one, still runs here. Looks only, so it is never in a hull's way."""
        if not self.root.exists():
            return False
        file = self._lock_file()
        try:
            kind, *_ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))
        finally:
            os.close(file)
        return bool(kind != fcntl.F_UNLCK)

    def _lock_file(self) -> int:
        return os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def wait_until_free(self, seconds: float) -> None:
        """Return when the last process of the hull is gone."""
        deadline = time.monotonic() + seconds
        while self.is_taken():
            if time.monotonic() > deadline:
                raise NotRunning(f"The hull in {self.root} did not end within {seconds:.0f} s: see {self.logs}.")
            time.sleep(0.02)
