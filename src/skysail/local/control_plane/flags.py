"""Command line of each component, as a pure function, so that a test can assert every flag.

Everything else is upstream's default: admission plugins (including Pod Security and ServiceAccount), priority and
fairness, timeouts. A control plane tuned until a test passes would prove nothing about a real cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from skysail.local import addresses
from skysail.local.cluster.home import Home


class Component(StrEnum):
    ETCD = "etcd"
    API_SERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBECTL = "kubectl"


class PlaneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one control plane.

    With `durable` off, etcd does not wait for the disk. After a crash of the machine (not of a process) the database
    may be unreadable, so use it only for temporary homes. `extra` has more flags, with which tests shorten upstream's
    delays.
    """

    audit: bool = False
    durable: bool = True
    extra: Mapping[str, tuple[str, ...]] = {}


# With the default of 20 requests per second, every measurement on a laptop would show this limit first.
_CLIENT_LIMITS = ("--kube-api-qps=1000", "--kube-api-burst=2000")


def of(component: Component, home: Home, options: PlaneOptions) -> tuple[str, ...]:
    """Return all flags of one server, in their order on the command line."""
    own = {
        Component.ETCD: _etcd,
        Component.API_SERVER: _api_server,
        Component.CONTROLLER_MANAGER: _controller_manager,
        Component.SCHEDULER: _scheduler,
    }[component](home, options)
    return (*own, *options.extra.get(component, ()))


def _etcd(home: Home, options: PlaneOptions) -> tuple[str, ...]:
    flags = (
        "--name=skysail",
        f"--data-dir={home.etcd}",
        f"--listen-client-urls={addresses.ETCD_SOCKET}",
        f"--advertise-client-urls={addresses.ETCD_CLIENT_URL}",
        f"--listen-peer-urls={addresses.ETCD_PEER_SOCKET}",
        f"--initial-advertise-peer-urls={addresses.ETCD_PEER_URL}",
        f"--initial-cluster=skysail={addresses.ETCD_PEER_URL}",
        "--log-level=warn",
    )
    return flags if options.durable else (*flags, "--unsafe-no-fsync")


def _api_server(home: Home, options: PlaneOptions) -> tuple[str, ...]:
    pki = home.pki
    flags = (
        f"--etcd-servers={addresses.ETCD_SOCKET}",
        f"--advertise-address={addresses.CLUSTER_IP}",
        f"--secure-port={addresses.API_PORT}",
        f"--service-cluster-ip-range={addresses.SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
    )
    if not options.audit:
        return flags
    return (*flags, f"--audit-policy-file={home.audit_policy}", f"--audit-log-path={home.audit_log}")


def _controller_manager(home: Home, _options: PlaneOptions) -> tuple[str, ...]:
    pki = home.pki
    return (
        *_client_of_api_server(home, Component.CONTROLLER_MANAGER),
        f"--client-ca-file={pki}/ca.crt",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--service-cluster-ip-range={addresses.SERVICE_RANGE}",
        "--use-service-account-credentials=true",
        "--concurrent-job-syncs=20",
    )


def _scheduler(home: Home, _options: PlaneOptions) -> tuple[str, ...]:
    return _client_of_api_server(home, Component.SCHEDULER)


def _client_of_api_server(home: Home, component: Component) -> tuple[str, ...]:
    login = home.credentials / f"{component}.kubeconfig"
    return (
        f"--kubeconfig={login}",
        f"--authentication-kubeconfig={login}",
        f"--authorization-kubeconfig={login}",
        "--bind-address=127.0.0.1",
        # There is one replica of each, so an election would only add a wait for the previous lease.
        "--leader-elect=false",
        *_CLIENT_LIMITS,
    )
