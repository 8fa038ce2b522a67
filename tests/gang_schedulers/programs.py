"""Gang schedulers and training operators of others: their programs, and their kinds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tests.support.kubectl import ok
from tests.support.programs import GoProgram

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

_HERE = Path(__file__).parent


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` has the module with its pinned versions; `crds` are in the module that it is made from."""

    folder: str
    module: str
    crds: str

    def binary(self) -> Path:
        """At once where it is in the cache; some minutes where it is not."""
        return self._built.binary()

    def define(self, cluster: Cluster) -> None:
        """Install its CustomResourceDefinitions, as they were released. Returns when all are served."""
        folder = self._built.sources(self.module) / self.crds
        for line in ok(cluster, "apply", "--server-side", "-f", str(folder), "-o", "name").splitlines():
            _, kind = line.split("/")
            cluster.until(lambda: cluster.kubectl("get", kind).returncode == 0, f"{kind} to be served")  # noqa: B023 (called at once)

    @property
    def _built(self) -> GoProgram:
        return GoProgram(_HERE / self.folder)


KUEUE = Program(folder="kueue", module="sigs.k8s.io/kueue", crds="config/components/crd/bases")
# The module of its types is not in the public proxy in the same version, so that of the release before is taken.
VOLCANO = Program(folder="volcano", module="volcano.sh/volcano", crds="config/crd/volcano/bases")
TRAINING_OPERATOR = Program(
    folder="training_operator",
    module="github.com/kubeflow/training-operator",
    crds="manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
)
