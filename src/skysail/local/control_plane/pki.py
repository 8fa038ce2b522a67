"""Certificates of the cluster: created once, kept, and renewed at `up` before they expire.

The front proxy has a CA of its own, because its certificate may impersonate any user.
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
    """Subject of a client certificate: user name and groups."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("skysail:admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")
SCHEDULER = Identity("system:kube-scheduler")
NODE_AGENT = Identity(f"system:node:{NODE}", ("system:nodes",))
VOLUME_PROVISIONER = Identity("skysail:disks")
SERVICE_PROXY = Identity("system:kube-proxy")
KUBELET_CLIENT = Identity("kube-apiserver-kubelet-client", ("system:masters",))
FRONT_PROXY = Identity("front-proxy-client")


class Authority(msgspec.Struct, frozen=True):
    """A CA that signs certificates with the lifetime of a local cluster's."""

    pair: KeyPair

    @classmethod
    def create(cls, name: str, now: datetime) -> Self:
        return cls(certificates.certificate_authority(name, now=now, valid=_AUTHORITY_LIVES))

    def client(self, identity: Identity, now: datetime) -> KeyPair:
        """Return a client certificate."""
        return certificates.client(self.pair, identity.name, identity.groups, now=now, valid=_LIVES)

    def server(self, names: tuple[str, ...], now: datetime) -> KeyPair:
        """Return a server certificate for these names and addresses."""
        return certificates.server(self.pair, names, now=now, valid=_LIVES)


class Pki(msgspec.Struct, frozen=True):
    """Certificates of one cluster, in its folder."""

    folder: Path
    cluster: Authority

    @property
    def authority(self) -> bytes:
        return self.cluster.pair.certificate


def ensure(folder: Path, now: datetime) -> Pki:
    """Create missing certificates, and renew those that expire soon. Idempotent."""
    cluster = _authority(folder, "ca", "skysail", now)
    front_proxy = _authority(folder, "front-proxy-ca", "skysail-front-proxy", now)
    _keep(folder, "apiserver", cluster.server(_API_NAMES, now), now)
    _keep(folder, "apiserver-kubelet-client", cluster.client(KUBELET_CLIENT, now), now)
    _keep(folder, "node", cluster.server(_NODE_NAMES, now), now)
    _keep(folder, "front-proxy-client", front_proxy.client(FRONT_PROXY, now), now)
    _ensure_service_account_key(folder)
    return Pki(folder, cluster)


def read(folder: Path, name: str) -> KeyPair | None:
    """Return the pair. Returns None if it is missing, or incomplete because a start was interrupted."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    if not (certificate.exists() and key.exists()):
        return None
    key_pair = KeyPair(certificate.read_bytes(), key.read_bytes())
    return key_pair if _belong_together(key_pair) else None


def write(folder: Path, name: str, key_pair: KeyPair) -> None:
    files.write_private(folder / f"{name}.crt", key_pair.certificate)
    files.write_private(folder / f"{name}.key", key_pair.key)


def _keep(folder: Path, name: str, fresh: KeyPair, now: datetime) -> None:
    """Write `fresh`, unless the existing pair has the same signer and names and does not expire soon."""
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
    """Create the key that signs service account tokens.

    It never expires, because a new key would invalidate every token in the cluster.
    """
    if (folder / "sa.key").exists() and (folder / "sa.pub").exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files.write_private(folder / "sa.key", certificates.private_bytes(key))
    files.write_private(folder / "sa.pub", public)
