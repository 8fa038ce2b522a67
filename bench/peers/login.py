"""Who may do anything, from inside the local cluster, under a name by which the audit log knows them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from skysail.local.addresses import API_URL
from skysail.local.cluster.home import Home
from skysail.local.control_plane import credentials, pki
from skysail.local.control_plane.pki import Identity


def write(home: Home, user: str) -> Path:
    """A kubeconfig."""
    path, now = home.credentials / f"{user}.kubeconfig", datetime.now(UTC)
    credentials.write(path, pki.ensure(home.pki, now), Identity(user, ("system:masters",)), server=API_URL, now=now)
    return path
