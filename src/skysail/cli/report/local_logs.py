"""Logs of a local cluster, whose operator, node agent and control plane are processes and no pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skysail.base.errors import UserError
from skysail.kube.client import kubeconfig
from skysail.kube.client.kubeconfig import Access
from skysail.local.cluster.home import Home

_MAX_BYTES = 1_000_000


class UnreadableLog(UserError):
    """A log of the local cluster cannot be read. The message names the file."""


def collect(home: Home, access: Access) -> dict[str, str]:
    """Return the end of each log by its name in the report. Returns none if another cluster is meant.

    Raises UnreadableLog.
    """
    if not home.is_taken() or kubeconfig.from_file(home.kubeconfig).server != access.server:
        return {}
    return dict(_ends(home.logs))


def _ends(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("*.log")):
        try:
            with path.open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(0, size - _MAX_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            raise UnreadableLog(
                f"{path} cannot be read: {error.strerror}. Run the command as the user who has run `skysail up`."
            ) from error
        # The first line may be cut.
        yield f"logs/local/{path.name}", text.partition("\n")[2] if size > _MAX_BYTES else text
