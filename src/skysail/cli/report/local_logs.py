"""Logs of a local cluster, whose operator, node agent and control plane are processes and no pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skysail.kube.client import kubeconfig
from skysail.kube.client.kubeconfig import Access
from skysail.local.cluster.home import Home

_MAX_BYTES = 1_000_000


def collect(home: Home, access: Access) -> dict[str, str]:
    """Return the end of each log by its name in the report. Returns none if another cluster is meant."""
    if not home.is_taken() or kubeconfig.from_file(home.kubeconfig).server != access.server:
        return {}
    return dict(_ends(home.logs))


def _ends(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("*.log")):
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _MAX_BYTES))
            text = log.read().decode(errors="replace")
        # The first line may be cut.
        yield f"logs/local/{path.name}", text.partition("\n")[2] if size > _MAX_BYTES else text
