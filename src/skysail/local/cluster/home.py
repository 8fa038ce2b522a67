"""SKYSAIL_HOME: the folder with the data, certificates, logs, sockets and lock of one local cluster.

A local cluster writes to no other folder, in particular not to ~/.kube. The lock file also marks a folder as a home: in
a folder without it nothing is written and nothing is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from skysail.local.errors import Misused, Refused
from skysail.local.files import remove_tree

# The local cluster mounts its own file systems here, so a home below one of them would be invisible inside.
_HIDDEN_INSIDE = ("/proc", "/sys", "/run", "/dev")
# `struct flock`: type, whence, start, length, pid. It belongs to the open file, so forks share it.
_LOCK = struct.Struct("hhqqi4x")
_MARK = "This folder is a cluster of Skysail; `skysail down --purge` deletes it.\n"
_WHOLE_FILE = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Home(msgspec.Struct, frozen=True):
    """Paths of one home. Creating this object does no I/O."""

    root: Path

    @classmethod
    def of(cls, path: Path | None, env: Mapping[str, str]) -> Self:
        """Return the given home, else SKYSAIL_HOME, else ~/.skysail. Raises Misused if the folder cannot be a home."""
        root = (path or Path(env.get("SKYSAIL_HOME") or Path.home() / ".skysail")).expanduser().absolute()
        if any(root.resolve().is_relative_to(hidden) for hidden in _HIDDEN_INSIDE):
            raise Misused(f"SKYSAIL_HOME {root} cannot be below {', '.join(_HIDDEN_INSIDE)}: choose another folder.")
        return cls(root)

    @property
    def mark(self) -> Path:
        """The lock file. A folder that has this file is a home."""
        return self.root / "skysail.lock"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the admin for this machine, through the port on 127.0.0.1."""
        return self.root / "kubeconfig"

    @property
    def credentials(self) -> Path:
        """Folder of the kubeconfigs of clients inside the local cluster."""
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
    def cluster_log(self) -> Path:
        return self.logs / "cluster.log"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.jsonl"

    @property
    def audit_policy(self) -> Path:
        return self.root / "audit-policy.yaml"

    @property
    def failure(self) -> Path:
        """File with the error of the last start, for the process that asked for the start."""
        return self.root / "failure"

    @property
    def pid(self) -> Path:
        """File with the pid of the outer process of the last local cluster."""
        return self.root / "pid"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def simulated_clouds(self) -> Path:
        """Socket of the simulated clouds.

        A unix socket, because pods share the network of the cluster but not its folders.
        """
        return self.root / "clouds.sock"

    @property
    def simulated_cloud_token_file(self) -> Path:
        return self.root / "simulated" / "token"

    @property
    def audit_token(self) -> Path:
        """Token of clients that ask the operator to compare its caches with the API server."""
        return self.credentials / "audit-token"

    @property
    def api_port_file(self) -> Path:
        """File with the API port of the last start, which is used again so that copies of the kubeconfig stay valid."""
        return self.root / "door-port"

    @property
    def kubectl_cache(self) -> Path:
        return self.root / "kubectl-cache"

    @property
    def kubectl(self) -> Path:
        """File with the argv prefix of this cluster's kubectl, as JSON."""
        return self.root / "kubectl.json"

    def prepare(self) -> None:
        """Create the folders, readable for their owner only.

        Idempotent. Raises Misused if the folder is in other use.
        """
        with self._translate_errors():
            self.root.resolve().mkdir(mode=0o700, parents=True, exist_ok=True)
            found = {entry.name for entry in self.root.iterdir()}
            if found and self.mark.name not in found:
                raise Misused(
                    f"{self.root} is not empty and not a home of Skysail: choose a new folder with --home "
                    "or SKYSAIL_HOME."
                )
            if not found:
                self.mark.touch(mode=0o600)
                self.mark.write_text(_MARK)
            for folder in (self.credentials, self.pki, self.etcd, self.logs):
                folder.mkdir(mode=0o700, exist_ok=True)

    def purge(self) -> None:
        """Delete the cluster and its data. Does nothing if the folder does not exist.

        The lock file is deleted last, so that an interrupted purge can be repeated.
        Raises Misused if the folder is not a home.
        Raises Refused if the local cluster is running.
        """
        with self._translate_errors():
            root = self.root.resolve()
            if not root.exists():
                return
            if not self.mark.exists():
                raise Misused(f"{self.root} is not a home of Skysail, so nothing was deleted.")
            lock = self.lock()
            if lock is None:
                raise Refused(f"A local cluster runs in {self.root}: `skysail down` stops it.")
            try:
                _empty(root, but=self.mark.name)
                self.mark.unlink()
            finally:
                os.close(lock)
            with contextlib.suppress(OSError):  # a mount point stays, and so do files that were just added
                root.rmdir()

    def lock(self) -> int | None:
        """Lock the prepared home, and return the descriptor to keep open.

        Returns None if a local cluster holds the lock. Every process of a local cluster inherits the descriptor, so the
        lock is free only after the last process has ended.
        """
        with self._translate_errors():
            file = os.open(self.mark, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except BlockingIOError:
            os.close(file)
            return None
        return file

    def is_held(self, lock: int) -> bool:
        """Return whether this lock is still the lock of the home. False after the folder was deleted or replaced."""
        try:
            return os.path.samestat(os.fstat(lock), self.mark.stat())
        except OSError:
            return False

    def is_taken(self) -> bool:
        """Return whether any process of a local cluster still runs here.

        Read-only, and never blocks a local cluster.
        """
        with self._translate_errors():
            try:
                file = os.open(self.mark, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        try:
            kind, *_ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))
        finally:
            os.close(file)
        return bool(kind != fcntl.F_UNLCK)

    def wait_until_free(self, seconds: float, nudge: Callable[[], None] = lambda: None) -> None:
        """Return when the last process of the local cluster has ended. Calls `nudge` repeatedly meanwhile."""
        deadline = time.monotonic() + seconds
        while self.is_taken():
            if time.monotonic() > deadline:
                raise Refused(
                    f"The local cluster in {self.root} did not end within {seconds:.0f} s. `kill -9 {self._pid()}` "
                    f"ends it with all its processes; {self.cluster_log} may have the cause."
                )
            nudge()
            time.sleep(0.02)

    def _pid(self) -> str:
        try:
            return self.pid.read_text().strip()
        except OSError:
            return "PID"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise Misused for an OSError: an unusable folder is an error of the user, not a bug."""
        try:
            yield
        except OSError as error:
            raise Misused(
                f"The home {self.root} cannot be used ({error.strerror}: {error.filename}): change its owner, or name "
                "another folder with --home or SKYSAIL_HOME."
            ) from error


def _empty(folder: Path, *, but: str) -> None:
    for entry in folder.iterdir():
        if entry.name == but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink()
