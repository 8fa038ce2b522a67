from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from skysail.kube.client import kubeconfig
from skysail.local.cluster.home import Home
from skysail.local.control_plane import credentials, pki

NOW = datetime.now(UTC)
DOOR = "https://127.0.0.1:4711"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    credentials.write_all(home, pki.ensure(home.pki, NOW), DOOR, NOW)
    return home


def subject(path: Path) -> str:
    user = yaml.safe_load(path.read_text())["users"][0]["user"]
    return x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"])).subject.rfc4514_string()


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("admin", "CN=skysail:admin,O=system:masters"),
        ("kube-controller-manager", "CN=system:kube-controller-manager"),
        ("kube-scheduler", "CN=system:kube-scheduler"),
        (
            "operator",
            (
                "CN=system:serviceaccount:skysail-system:skysail,O=system:serviceaccounts:skysail-system,"
                "O=system:serviceaccounts"
            ),
        ),
    ],
)
def test_each_client_inside_has_its_own_identity_at_the_clusters_address(home, name, want):
    path = credentials.inside_path(home, name)
    assert subject(path) == want
    assert kubeconfig.from_file(path).server == "https://10.244.0.1:6443"


def test_people_come_in_by_the_door_as_admin(home):
    assert kubeconfig.from_file(home.kubeconfig).server == DOOR
    assert subject(home.kubeconfig) == "CN=skysail:admin,O=system:masters"


def test_kubeconfigs_are_readable_for_their_owner_only(home):
    files = [home.kubeconfig, *home.credentials.iterdir()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
