"""Servers with certificates of a company's own: believed where the Secret says so, also behind the gate."""

from __future__ import annotations

import datetime as dt
import ssl
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skysail.runtimes.fetch.errors import AccessDenied, TransientError
from tests.support.model_sources import Bucket, Files, Hub, Registry, serving
from tests.unit.runtimes.fetch.harness import content, fetch

_BODY = b"onnx" * 1000


@pytest.fixture(scope="module")
def certificate() -> tuple[bytes, bytes]:
    """Of an authority of its own; and one for 127.0.0.1 that it signed, with its key."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = _builder("authority", keys[0]).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    server = _builder("server", keys[1]).add_extension(address, critical=False)
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signed = [
        made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM) for made in (authority, server)
    ]
    return signed[0], signed[1] + private


def _builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    issuer, subject = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in ("authority", name))
    return x509.CertificateBuilder(
        issuer,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now - dt.timedelta(days=1),
        now + dt.timedelta(days=1),
    )


@pytest.fixture
def tls(tmp_path: Path, certificate: tuple[bytes, bytes]) -> ssl.SSLContext:
    (tmp_path / "pem").write_bytes(certificate[1])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "pem")
    return context


def _place(kind: str) -> tuple[Files, str, str]:
    """A server, the URI of a model there, and the key that names the server; "" where the URI does."""
    if kind == "s3":
        bucket = Bucket("models")
        bucket.files["/models/iris.onnx"] = _BODY
        return bucket, "s3://models/iris.onnx", "AWS_ENDPOINT_URL"
    if kind == "hf":
        hub = Hub("org/iris")
        hub.repository_files["iris.onnx"] = _BODY
        return hub, "hf://org/iris", "HF_ENDPOINT"
    if kind == "oci":
        registry = Registry()
        registry.push("org/iris", "v1", [(_BODY, "text/plain", {"org.opencontainers.image.title": "iris.onnx"})])
        return registry, "oci://{host}/org/iris:v1", ""
    files = Files()
    files.files["/iris.onnx"] = _BODY
    return files, "https://{host}/iris.onnx", ""


@pytest.mark.parametrize("kind", ["https", "s3", "hf", "oci"])
async def test_an_authority_of_the_secret_is_believed_and_no_other(tmp_path: Path, kind, tls, certificate):
    server, form, key = _place(kind)
    async with serving(server, tls=tls) as url:
        uri = form.format(host=url.removeprefix("https://"))
        secrets = {key: url} if key else {}
        with pytest.raises(TransientError) as raised:
            await fetch(uri, tmp_path / "m", secrets=secrets)
        await fetch(uri, tmp_path / "m", secrets={**secrets, "CA_CERTIFICATE": certificate[0].decode()})

    assert content(tmp_path / "m") == {"iris.onnx": _BODY}
    assert "CA_CERTIFICATE" in str(raised.value)


@pytest.mark.parametrize("kind", ["https", "s3", "hf", "oci"])
async def test_encrypted_or_not_what_is_inside_is_refused(tmp_path: Path, kind, tls, certificate):
    server, form, key = _place(kind)
    async with serving(server, tls=tls) as url:
        uri = form.format(host=url.removeprefix("https://"))
        secrets = {"CA_CERTIFICATE": certificate[0].decode(), **({key: url} if key else {})}
        with pytest.raises(AccessDenied) as raised:
            await fetch(uri, tmp_path / "m", secrets=secrets, allowed=())

    assert raised.value.reason == "AddressForbidden"
    assert server.requests == []


async def test_the_password_of_an_encrypted_registry_is_never_told_in_the_clear(tmp_path: Path, tls, certificate):
    registry, listener = Registry(login="me:hunter2"), Files()
    async with serving(registry, tls=tls) as url, serving(listener) as clear:
        registry.realm = f"{clear}/token"
        keys = {"OCI_USERNAME": "me", "OCI_PASSWORD": "hunter2", "CA_CERTIFICATE": certificate[0].decode()}
        with pytest.raises(AccessDenied) as raised:
            await fetch(f"oci://{url.removeprefix('https://')}/org/iris:v1", tmp_path / "m", secrets=keys)

    assert raised.value.reason == "AddressForbidden"
    assert listener.requests == []


async def test_what_is_no_certificate_is_told(tmp_path: Path):
    with pytest.raises(AccessDenied) as raised:
        await fetch("https://example.com/iris.onnx", tmp_path / "m", secrets={"CA_CERTIFICATE": "hunter2"})

    assert "CA_CERTIFICATE" in str(raised.value)
    assert "hunter2" not in str(raised.value)
