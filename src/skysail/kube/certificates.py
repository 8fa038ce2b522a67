"""Self-signed certificate authorities and their certificates, for webhooks and the local control plane.

Keys are elliptic-curve keys, which are generated in a millisecond. All interfaces take and return PEM bytes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Backdate certificates by this time, so that a machine whose clock is behind accepts a new one.
_CLOCK_SKEW = timedelta(minutes=10)


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate and its private key."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        """Parse the certificate. Raises ValueError if it is not a certificate."""
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def ends(self) -> datetime:
        return self.parsed.not_valid_after_utc

    @property
    def is_sound(self) -> bool:
        """Return whether both parts can be parsed and the key is the elliptic-curve key of the certificate."""
        try:
            certificate = self.parsed
            key = serialization.load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return False
        return isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()

    def is_signed_by(self, ca: KeyPair) -> bool:
        try:
            self.parsed.verify_directly_issued_by(ca.parsed)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def covers(self, names: Iterable[str]) -> bool:
        """Return whether the certificate is valid for each of these names."""
        alternatives = self.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return all(_alternative(name) in alternatives for name in names)

    def is_due(self, now: datetime) -> bool:
        """Return whether two thirds of the lifetime have passed, so that the certificate should be renewed."""
        begins = self.parsed.not_valid_before_utc
        return now > begins + (self.ends - begins) * 2 / 3


def certificate_authority(name: str, *, now: datetime, valid: timedelta) -> KeyPair:
    """Create a certificate authority that may sign leaf certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key.public_key(), now, now + valid)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def server(ca: KeyPair, names: Iterable[str], *, now: datetime, valid: timedelta) -> KeyPair:
    """Create a server certificate for these host names or addresses."""
    names = list(names)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    return _signed(ca, subject, ExtendedKeyUsageOID.SERVER_AUTH, now=now, valid=valid, alternatives=alternatives)


def client(ca: KeyPair, user: str, groups: Iterable[str] = (), *, now: datetime, valid: timedelta) -> KeyPair:
    """Create a client certificate for Kubernetes: the user is the common name, the groups are organisations."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user, _validate=False)])
    return _signed(ca, subject, ExtendedKeyUsageOID.CLIENT_AUTH, now=now, valid=valid)


def _signed(
    ca: KeyPair,
    subject: x509.Name,
    purpose: x509.ObjectIdentifier,
    *,
    now: datetime,
    valid: timedelta,
    alternatives: x509.SubjectAlternativeName | None = None,
) -> KeyPair:
    issuer = ca.parsed
    issuer_key = serialization.load_pem_private_key(ca.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    # Cap the lifetime at that of the authority: clients reject a certificate that outlives its authority.
    builder = _builder(subject, issuer.subject, key.public_key(), now, min(now + valid, ca.ends))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if alternatives:
        builder = builder.add_extension(alternatives, critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private_bytes(key))


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
