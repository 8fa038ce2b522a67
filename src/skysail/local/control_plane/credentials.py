"""Who may speak with the API server: a kubeconfig for each, rewritten at every start from the cluster's authority."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from skysail.local import files
from skysail.local.addresses import API_URL
from skysail.local.cluster.home import Home
from skysail.local.control_plane import kubeconfig
from skysail.local.control_plane.flags import Component
from skysail.local.control_plane.pki import (
    ADMIN,
    CONTROLLER_MANAGER,
    DISK_MAKER,
    NODE_AGENT,
    SCHEDULER,
    SERVICE_PROXY,
    Identity,
    Pki,
)

# As the service account of the chart, so that the operator has here exactly the rights that it has in a cluster.
OPERATOR = Identity(
    "system:serviceaccount:skysail-system:skysail", ("system:serviceaccounts", "system:serviceaccounts:skysail-system")
)


def write_all(home: Home, pki: Pki, door: str, now: datetime) -> None:
    """The admin's kubeconfig for this machine, and one for each client inside."""
    write(home.kubeconfig, pki, ADMIN, server=door, now=now)
    inside = {
        "admin": ADMIN,
        Component.CONTROLLER_MANAGER: CONTROLLER_MANAGER,
        Component.SCHEDULER: SCHEDULER,
        "operator": OPERATOR,
        "node": NODE_AGENT,
        "proxy": SERVICE_PROXY,
        "disks": DISK_MAKER,
    }
    for name, identity in inside.items():
        write(inside_path(home, name), pki, identity, server=API_URL, now=now)


def inside_path(home: Home, name: str) -> Path:
    return home.credentials / f"{name}.kubeconfig"


def write(path: Path, pki: Pki, identity: Identity, *, server: str, now: datetime) -> None:
    """A kubeconfig for anybody: RBAC says what they may."""
    login = pki.cluster.client(identity, now)
    files.write_private(path, kubeconfig.render(server=server, authority=pki.authority, login=login).encode())
