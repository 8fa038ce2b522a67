"""The cluster's certificates: made once, kept, and renewed at `up` when their end comes near.

Two authorities, because a certificate of the front proxy may name any user: the cluster's own, and that one's.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skysail.local.addresses import API_SERVICE, HULL

_AUTHORITY_LIVES = timedelta(days=3650)
_LIVES = timedelta(days=730)
_RENEWED_BEFORE_END = timedelta(days=180)
# A certificate that begins now is not valid yet for a reader whose clock is a little behind.
_BACKDATED = timedelta(minutes=5)

_API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    HULL,
    API_SERVICE,
)


class Identity(msgspec.Struct, frozen=True):
    """Who a certificate speaks for: the user name, and the groups."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("skysail:admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")
SCHEDULER = Identity("system:kube-scheduler")
KUBELET_CLIENT = Identity("kube-apiserver-kubelet-client", ("system:masters",))
FRONT_PROXY = Identity("front-proxy-client")


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path, name: str) -> Self | None:
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        if not (certificate.exists() and key.exists()):
            return None
        return cls(certificate.read_bytes(), key.read_bytes())

    def write(self, folder: Path, name: str) -> None:
        _write(folder / f"{name}.crt", self.certificate)
        _write(folder / f"{name}.key", self.key)

    @property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    def serves_until(self, moment: datetime) -> bool:
        return self.parsed.not_valid_after_utc > moment


class Authority(msgspec.Struct, frozen=True):
    """Signs certificates."""

    pair: Pair

    @classmethod
    def create(cls, name: str, now: datetime) -> Self:
        key = _new_key()
        subject = _subject(Identity(name))
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(subject, subject, key.public_key(), now, now + _AUTHORITY_LIVES)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(_pair(certificate, key))

    def client(self, identity: Identity, now: datetime) -> Pair:
        """A certificate to log in with."""
        return self._issue(identity, now, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, names: tuple[str, ...], now: datetime) -> Pair:
        """A certificate to be reached with, under these names and addresses."""
        return self._issue(Identity(name), now, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def _issue(self, identity: Identity, now: datetime, usage: x509.ObjectIdentifier, names: tuple[str, ...]) -> Pair:
        own = self.pair.parsed
        signer = serialization.load_pem_private_key(self.pair.key, None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey), "this module makes no other keys"
        key = _new_key()
        end = min(now + _LIVES, own.not_valid_after_utc)
        builder = (
            _builder(_subject(identity), own.subject, key.public_key(), now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        return _pair(builder.sign(signer, hashes.SHA256()), key)


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
    _keep(folder, "apiserver", cluster.server("kube-apiserver", _API_NAMES, now), now)
    _keep(folder, "apiserver-kubelet-client", cluster.client(KUBELET_CLIENT, now), now)
    _keep(folder, "front-proxy-client", front_proxy.client(FRONT_PROXY, now), now)
    _ensure_service_account_key(folder)
    return Pki(folder, cluster)


def _keep(folder: Path, name: str, fresh: Pair, now: datetime) -> None:
    """Leave the pair that is there if it is as good as a fresh one: same signer, same names, and long to live."""
    kept = Pair.read(folder, name)
    if kept is None or not kept.serves_until(now + _RENEWED_BEFORE_END) or not _is_alike(kept.parsed, fresh.parsed):
        fresh.write(folder, name)


def _authority(folder: Path, file: str, name: str, now: datetime) -> Authority:
    kept = Pair.read(folder, file)
    if kept is not None and kept.serves_until(now + _LIVES):
        return Authority(kept)
    authority = Authority.create(name, now)
    authority.pair.write(folder, file)
    return authority


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
    key = _new_key()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write(folder / "sa.key", _key_bytes(key))
    _write(folder / "sa.pub", public)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
    )


def _subject(identity: Identity) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), _key_bytes(key))


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Readable for the owner only, and never half written."""
    half = path.with_name(f".{path.name}.new")
    half.touch(mode=0o600)
    half.write_bytes(content)
    half.replace(path)
