"""Programs of others, built from Go modules: once per version of their sources, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec

from skysail.local.control_plane import build, go_toolchain
from skysail.local.control_plane.file_lock import exclusive

_MAX_ATTEMPTS = 10
_MAX_BACKOFF = 60.0
# Nothing of the user's own settings may change what is built.
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false", "GOWORK": "off"}


class GoProgram(msgspec.Struct, frozen=True):
    """`folder` has the module with its pinned versions; `package` is the program, its own where none is named."""

    folder: Path
    package: str = "."

    @property
    def is_built(self) -> bool:
        """Whether it is in the cache."""
        return self._path.exists()

    def binary(self) -> Path:
        """At once where it is in the cache; some minutes where it is not."""
        binary = self._path
        kept = binary.parent
        kept.mkdir(parents=True, exist_ok=True)
        with exclusive(kept / "lock", waiting=_quietly):
            if not binary.exists():
                with tempfile.TemporaryDirectory(dir=kept) as scratch:
                    half = Path(scratch) / self.folder.name
                    self._go("build", "-ldflags", "-s -w", "-o", str(half), self.package)
                    half.replace(binary)
        return binary

    def sources(self, module: str) -> Path:
        """Of a module that the program is made from, as it was released."""
        self._go("mod", "download", module)
        return Path(self._go("list", "-m", "-f", "{{.Dir}}", module).strip())

    @property
    def _path(self) -> Path:
        cache = build.cache_folder(os.environ)
        return cache / self.folder.parent.name / self.folder.name / self._key() / self.folder.name

    def _key(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def _go(self, *arguments: str) -> str:
        """Retry transient failures of the module proxy. Downloads are kept between attempts."""
        go = go_toolchain.find(os.environ, build.cache_folder(os.environ), _quietly)
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            done = subprocess.run(
                [go, *arguments],
                cwd=self.folder,
                env={**os.environ, **_ENV},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            if "429 Too Many Requests" not in done.stderr:
                break
            time.sleep(min(5.0 * attempt, _MAX_BACKOFF))
        raise RuntimeError(f"go {' '.join(arguments)} in {self.folder}:\n{done.stderr[-4000:]}")


def _quietly(*_: str) -> None:
    """Nobody reads along."""
