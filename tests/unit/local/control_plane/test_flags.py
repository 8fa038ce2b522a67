"""Every flag of the plane, written out: whoever tunes it to make something pass has to say so here."""

from __future__ import annotations

from pathlib import Path

import pytest

from skysail.local.cluster.home import Home
from skysail.local.control_plane import flags, startup
from skysail.local.control_plane.binaries import Binaries
from skysail.local.control_plane.flags import Component, PlaneOptions

HOME = Home(Path("/home/ann/.skysail"))
PKI = "/home/ann/.skysail/pki"
LOGIN = "/home/ann/.skysail/credentials"

ETCD = (
    "--name=skysail",
    "--data-dir=/home/ann/.skysail/etcd",
    "--listen-client-urls=unix:///run/skysail/etcd.sock",
    "--advertise-client-urls=http://127.0.0.1:2379",
    "--listen-peer-urls=unix://etcd-peer.sock",
    "--initial-advertise-peer-urls=http://127.0.0.1:2380",
    "--initial-cluster=skysail=http://127.0.0.1:2380",
    "--log-level=warn",
)
API_SERVER = (
    "--etcd-servers=unix:///run/skysail/etcd.sock",
    "--advertise-address=10.244.0.1",
    "--secure-port=6443",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--authorization-mode=Node,RBAC",
    "--allow-privileged=true",
    f"--client-ca-file={PKI}/ca.crt",
    f"--tls-cert-file={PKI}/apiserver.crt",
    f"--tls-private-key-file={PKI}/apiserver.key",
    f"--kubelet-certificate-authority={PKI}/ca.crt",
    f"--kubelet-client-certificate={PKI}/apiserver-kubelet-client.crt",
    f"--kubelet-client-key={PKI}/apiserver-kubelet-client.key",
    "--kubelet-preferred-address-types=InternalIP",
    f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
    "--requestheader-allowed-names=front-proxy-client",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-username-headers=X-Remote-User",
    f"--proxy-client-cert-file={PKI}/front-proxy-client.crt",
    f"--proxy-client-key-file={PKI}/front-proxy-client.key",
    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
    f"--service-account-key-file={PKI}/sa.pub",
    f"--service-account-signing-key-file={PKI}/sa.key",
)
CONTROLLER_MANAGER = (
    f"--kubeconfig={LOGIN}/kube-controller-manager.kubeconfig",
    f"--authentication-kubeconfig={LOGIN}/kube-controller-manager.kubeconfig",
    f"--authorization-kubeconfig={LOGIN}/kube-controller-manager.kubeconfig",
    "--bind-address=127.0.0.1",
    "--leader-elect=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    f"--client-ca-file={PKI}/ca.crt",
    f"--requestheader-client-ca-file={PKI}/front-proxy-ca.crt",
    f"--root-ca-file={PKI}/ca.crt",
    f"--cluster-signing-cert-file={PKI}/ca.crt",
    f"--cluster-signing-key-file={PKI}/ca.key",
    f"--service-account-private-key-file={PKI}/sa.key",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--use-service-account-credentials=true",
    "--concurrent-job-syncs=20",
)
SCHEDULER = (
    f"--kubeconfig={LOGIN}/kube-scheduler.kubeconfig",
    f"--authentication-kubeconfig={LOGIN}/kube-scheduler.kubeconfig",
    f"--authorization-kubeconfig={LOGIN}/kube-scheduler.kubeconfig",
    "--bind-address=127.0.0.1",
    "--leader-elect=false",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
)


@pytest.mark.parametrize(
    ("component", "want"),
    [
        (Component.ETCD, ETCD),
        (Component.API_SERVER, API_SERVER),
        (Component.CONTROLLER_MANAGER, CONTROLLER_MANAGER),
        (Component.SCHEDULER, SCHEDULER),
    ],
)
def test_a_users_plane_has_exactly_these_flags(component, want):
    assert flags.of(component, HOME, PlaneOptions()) == want


def test_a_server_is_started_where_etcd_has_its_sockets():
    """Its name for the one where it waits for peers is relative, and no pod may see the file."""
    binaries = Binaries({Component.ETCD: ("etcd",)})
    assert startup.units(HOME, binaries, PlaneOptions())[Component.ETCD].folder == "/run/skysail"


def test_an_audit_log_is_written_on_request():
    want = (
        *API_SERVER,
        "--audit-policy-file=/home/ann/.skysail/audit-policy.yaml",
        "--audit-log-path=/home/ann/.skysail/logs/audit.jsonl",
    )
    assert flags.of(Component.API_SERVER, HOME, PlaneOptions(audit=True)) == want


def test_only_a_home_that_is_thrown_away_does_not_wait_for_the_disk():
    assert flags.of(Component.ETCD, HOME, PlaneOptions(durable=False)) == (*ETCD, "--unsafe-no-fsync")


def test_extra_flags_reach_their_component_and_no_other():
    options = PlaneOptions(extra={Component.SCHEDULER: ("--v=4",)})
    assert flags.of(Component.SCHEDULER, HOME, options) == (*SCHEDULER, "--v=4")
    assert flags.of(Component.CONTROLLER_MANAGER, HOME, options) == CONTROLLER_MANAGER
