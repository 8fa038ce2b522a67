"""The cluster's certificates: made once, kept, and renewed at `up` when their end comes near.

Two authorities, because a certificate of the front proxy may name any user: the cluster's own, and that one's.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skysail.kube import certificates
from skysail.kube.certificates import KeyPair
from skysail.local import files
from skysail.local.addresses import API_SERVICE, CLUSTER_IP, METRICS_SERVICE, NODE

_AUTHORITY_LIVES = timedelta(days=3650)
_LIVES = timedelta(days=730)
_RENEWED_BEFORE_END = timedelta(days=180)

_API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    CLUSTER_IP,
    API_SERVICE,
)


_NODE_NAMES = (CLUSTER_IP, NODE, f"{METRICS_SERVICE[1]}.{METRICS_SERVICE[0]}.svc")


class Identity(msgspec.Struct, frozen=True):
    """Who a certificate speaks for: the user name, and the groups."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("skysail:admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")
SCHEDULER = Identity("system:kube-scheduler")
NODE_AGENT = Identity(f"system:node:{NODE}", ("system:nodes",))
DISK_MAKER = Identity("skysail:disks")
SERVICE_PROXY = Identity("system:kube-proxy")
KUBELET_CLIENT = Identity("kube-apiserver-kubelet-client", ("system:masters",))
FRONT_PROXY = Identity("front-proxy-client")


class Authority(msgspec.Struct, frozen=True):
    """Signs certificates, for as long as a local cluster's live."""

    pair: KeyPair

    @classmethod
    def create(cls, name: str, now: datetime) -> Self:
        return cls(certificates.certificate_authority(name, now=now, valid=_AUTHORITY_LIVES))

    def client(self, identity: Identity, now: datetime) -> KeyPair:
        """A certificate to log in with."""
        return certificates.client(self.pair, identity.name, identity.groups, now=now, valid=_LIVES)

    def server(self, names: tuple[str, ...], now: datetime) -> KeyPair:
        """A certificate to be reached with, under these names and addresses."""
        return certificates.server(self.pair, names, now=now, valid=_LIVES)


class Pki(msgspec.Struct, frozen=True):
    """The certificates of one cluster, in its folder."""

    folder: Path
    cluster: Authority

    @property
    def authority(self) -> bytes:
        return self.cluster.pair.certificate


def ensure(folder: Path, now: datetime) -> Pki:
    """Make what is missing, renew what ends soon, keep the rest. May be called at every start."""
    cluster = _authority(folder, "ca", "skysail", now)
    front_proxy = _authority(folder, "front-proxy-ca", "skysail-front-proxy", now)
    _keep(folder, "apiserver", cluster.server(_API_NAMES, now), now)
    _keep(folder, "apiserver-kubelet-client", cluster.client(KUBELET_CLIENT, now), now)
    _keep(folder, "node", cluster.server(_NODE_NAMES, now), now)
    _keep(folder, "front-proxy-client", front_proxy.client(FRONT_PROXY, now), now)
    _ensure_service_account_key(folder)
    return Pki(folder, cluster)


def read(folder: Path, name: str) -> KeyPair | None:
    """None where there is none, or where a start was interrupted between the certificate and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    if not (certificate.exists() and key.exists()):
        return None
    key_pair = KeyPair(certificate.read_bytes(), key.read_bytes())
    return key_pair if _belong_together(key_pair) else None


def write(folder: Path, name: str, key_pair: KeyPair) -> None:
    files.write_private(folder / f"{name}.crt", key_pair.certificate)
    files.write_private(folder / f"{name}.key", key_pair.key)


def _keep(folder: Path, name: str, fresh: KeyPair, now: datetime) -> None:
    """Leave the pair that is there if it is as good as a fresh one: same signer, same names, and long to live."""
    kept = read(folder, name)
    if kept is None or kept.ends < now + _RENEWED_BEFORE_END or not _is_alike(kept.parsed, fresh.parsed):
        write(folder, name, fresh)


def _authority(folder: Path, file: str, name: str, now: datetime) -> Authority:
    kept = read(folder, file)
    if kept is not None and kept.ends > now + _LIVES:
        return Authority(kept)
    authority = Authority.create(name, now)
    write(folder, file, authority.pair)
    return authority


def _belong_together(key_pair: KeyPair) -> bool:
    try:
        key = serialization.load_pem_private_key(key_pair.key, password=None)
        return key.public_key() == key_pair.parsed.public_key()
    except ValueError:
        return False


def _is_alike(one: x509.Certificate, other: x509.Certificate) -> bool:
    return one.subject == other.subject and all(
        _extension(one, kind) == _extension(other, kind)
        for kind in (x509.AuthorityKeyIdentifier, x509.SubjectAlternativeName)
    )


def _extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.ExtensionType | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _ensure_service_account_key(folder: Path) -> None:
    """Signs the tokens of service accounts. It has no end: a new one would void every token in the cluster."""
    if (folder / "sa.key").exists() and (folder / "sa.pub").exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files.write_private(folder / "sa.key", certificates.private_bytes(key))
    files.write_private(folder / "sa.pub", public)
