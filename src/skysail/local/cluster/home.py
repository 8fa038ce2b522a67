"""SKYSAIL_HOME: the folder that holds one cluster's data, certificates, logs and sockets, and its lock.

Nothing of a cluster is written anywhere else, least of all to ~/.kube. The lock file is also the mark of a home: a
folder without it is somebody else's, so nothing is written there and nothing deleted.
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

# The hull mounts its own over these, so a home below them would be invisible inside.
_HIDDEN_INSIDE = ("/proc", "/sys", "/run", "/dev")
# `struct flock`: type, whence, start, length, pid. It belongs to the open file, so forks share it.
_LOCK = struct.Struct("hhqqi4x")
_MARK = "This folder is a cluster of Skysail; `skysail down --purge` deletes it.\n"
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
    def mark(self) -> Path:
        """The lock file. Where it is, the folder is a home."""
        return self.root / "skysail.lock"

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
        """Why the last start failed, for the one who asked for it."""
        return self.root / "failure"

    @property
    def pid(self) -> Path:
        """Holds the number of the last hull's outer process."""
        return self.root / "pid"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    @property
    def simulated_clouds(self) -> Path:
        """The socket of the simulated clouds: pods share the network of the cluster, and none of its folders."""
        return self.root / "clouds.sock"

    @property
    def simulated_cloud_token_file(self) -> Path:
        return self.root / "simulated" / "token"

    @property
    def audit_token(self) -> Path:
        """For whoever asks the operator to compare its caches with the API server."""
        return self.credentials / "audit-token"

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
        """Make the folders, readable for their owner only. May be called twice. A folder in other use is `Misused`."""
        with self._translate_errors():
            self.root.resolve().mkdir(mode=0o700, parents=True, exist_ok=True)
            found = {entry.name for entry in self.root.iterdir()}
            if found and self.mark.name not in found:
                raise Misused(
                    f"{self.root} is not empty and no home of Skysail: name a new folder with --home or SKYSAIL_HOME."
                )
            if not found:
                self.mark.touch(mode=0o600)
                self.mark.write_text(_MARK)
            for folder in (self.credentials, self.pki, self.etcd, self.logs):
                folder.mkdir(mode=0o700, exist_ok=True)

    def purge(self) -> None:
        """Delete the cluster for good. Nothing there is fine; a running hull must be stopped first.

        The mark goes last, so that what was interrupted can be finished by asking again.
        """
        with self._translate_errors():
            root = self.root.resolve()
            if not root.exists():
                return
            if not self.mark.exists():
                raise Misused(f"{self.root} is no home of Skysail, so nothing in it is deleted.")
            lock = self.lock()
            if lock is None:
                raise Refused(f"A hull runs in {self.root}: `skysail down` stops it.")
            try:
                _empty(root, but=self.mark.name)
                self.mark.unlink()
            finally:
                os.close(lock)
            with contextlib.suppress(OSError):  # a mount point stays, and so does what somebody just put there
                root.rmdir()

    def lock(self) -> int | None:
        """Take the home for a hull: a descriptor to keep open, or None if a hull has it. The home must be prepared.

        Every process of a hull holds a copy, so the lock is free only after the last of them is gone.
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
        """Whether this lock is still the home's. Not so after somebody deleted the folder under a hull."""
        try:
            return os.path.samestat(os.fstat(lock), self.mark.stat())
        except OSError:
            return False

    def is_taken(self) -> bool:
        """Whether a hull, or a part of one, still runs here. Looks only: writes nothing, is never in a hull's way."""
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
        """Return when the last process of the hull is gone. Calls `nudge` again and again meanwhile."""
        deadline = time.monotonic() + seconds
        while self.is_taken():
            if time.monotonic() > deadline:
                raise Refused(
                    f"The hull in {self.root} did not end within {seconds:.0f} s. `kill -9 {self._pid()}` ends it with "
                    f"all that runs in it; {self.cluster_log} tells what it waits for."
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
        """A folder that cannot be used is the user's to change, not a defect."""
        try:
            yield
        except OSError as error:
            raise Misused(
                f"The home {self.root} cannot be used ({error.strerror}: {error.filename}): make it yours, or name "
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
