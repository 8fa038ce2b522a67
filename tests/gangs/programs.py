"""Gang schedulers of others, built from Go modules: once per version of their sources, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skysail.local.plane import build, toolchain
from skysail.local.plane.turns import alone
from tests.support.kubectl import ok

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

_HERE = Path(__file__).parent
_TRIES = 10
_LONGEST_PAUSE = 60.0
# Nothing of the user's own settings may change what is built.
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false", "GOWORK": "off"}


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` has the module with its pinned versions; `crds` are in the module that it is made from."""

    folder: str
    module: str
    crds: str

    def binary(self) -> Path:
        """At once where it is in the cache; some minutes where it is not."""
        folder = build.cache_folder(os.environ) / "gangs" / self.folder / self._key()
        binary = folder / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / "lock", waiting=_quietly):
            if not binary.exists():
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    half = Path(scratch) / self.folder
                    self._go("build", "-ldflags", "-s -w", "-o", str(half), ".")
                    half.replace(binary)
        return binary

    def define(self, cluster: Cluster) -> None:
        """Install its CustomResourceDefinitions, as they were released. Returns when all are served."""
        self._go("mod", "download", self.module)
        folder = Path(self._go("list", "-m", "-f", "{{.Dir}}", self.module).strip()) / self.crds
        for line in ok(cluster, "apply", "--server-side", "-f", str(folder), "-o", "name").splitlines():
            _, kind = line.split("/")
            cluster.until(lambda: cluster.kubectl("get", kind).returncode == 0, f"{kind} to be served")  # noqa: B023 (called at once)

    def _key(self) -> str:
        digest = hashlib.sha256()
        for path in sorted((_HERE / self.folder).iterdir()):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def _go(self, *arguments: str) -> str:
        """Try until it is done: the module proxy asks for patience now and then. Downloads are kept between tries."""
        go = toolchain.find(os.environ, build.cache_folder(os.environ), _quietly)
        for attempt in range(1, _TRIES + 1):
            done = subprocess.run(
                [go, *arguments],
                cwd=_HERE / self.folder,
                env={**os.environ, **_ENV},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            if "429 Too Many Requests" not in done.stderr:
                break
            time.sleep(min(5.0 * attempt, _LONGEST_PAUSE))
        raise AssertionError(f"go {' '.join(arguments)} in {self.folder}:\n{done.stderr[-4000:]}")


def _quietly(*_: str) -> None:
    """Nobody reads along."""


KUEUE = Program(folder="kueue", module="sigs.k8s.io/kueue", crds="config/components/crd/bases")
# Its scheduler needs a module that is not in the public proxy in the same version; its kinds do not.
VOLCANO = Program(folder="volcano", module="volcano.sh/volcano", crds="config/crd/volcano/bases")
