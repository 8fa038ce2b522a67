"""Kubeconfigs of all clients of the API server, written at every start with certificates of the cluster's CA."""

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
    NODE_AGENT,
    SCHEDULER,
    SERVICE_PROXY,
    VOLUME_PROVISIONER,
    Identity,
    Pki,
)

# The chart's service account, so that the operator has exactly the same permissions here as in a real cluster.
OPERATOR = Identity(
    "system:serviceaccount:skysail-system:skysail", ("system:serviceaccounts", "system:serviceaccounts:skysail-system")
)

BRIDGE = Identity(
    "system:serviceaccount:skysail-system:skysail-bridge",
    ("system:serviceaccounts", "system:serviceaccounts:skysail-system"),
)


def write_all(home: Home, pki: Pki, server: str, now: datetime) -> None:
    """Write the admin's kubeconfig for this machine, and one for each client inside the local cluster."""
    write(home.kubeconfig, pki, ADMIN, server=server, now=now)
    inside = {
        "admin": ADMIN,
        Component.CONTROLLER_MANAGER: CONTROLLER_MANAGER,
        Component.SCHEDULER: SCHEDULER,
        "operator": OPERATOR,
        "bridge": BRIDGE,
        "node": NODE_AGENT,
        "proxy": SERVICE_PROXY,
        "disks": VOLUME_PROVISIONER,
    }
    for name, identity in inside.items():
        write(inside_path(home, name), pki, identity, server=API_URL, now=now)


def inside_path(home: Home, name: str) -> Path:
    return home.credentials / f"{name}.kubeconfig"


def write(path: Path, pki: Pki, identity: Identity, *, server: str, now: datetime) -> None:
    """Write a kubeconfig for an identity. RBAC decides its permissions."""
    login = pki.cluster.client(identity, now)
    files.write_private(path, kubeconfig.render(server=server, authority=pki.authority, login=login).encode())
