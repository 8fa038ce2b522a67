import base64
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from skysail.kube import certificates
from skysail.kube.client import kubeconfig
from skysail.kube.client.kubeconfig import ConfigError, TokenFile

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CA = certificates.certificate_authority("test", now=NOW, valid=timedelta(days=1))
USER = certificates.client(
    CA, "system:serviceaccount:skysail-system:skysail", ["a", "b"], now=NOW, valid=timedelta(days=1)
)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def config(cluster: dict | None = None, user: dict | None = None, **changes) -> dict:
    base = {"server": "https://127.0.0.1:6443", "certificate-authority-data": b64(CA.certificate)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {**base, **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
            {"name": "broken", "context": {"cluster": "nowhere", "user": "u"}},
        ],
        "current-context": "x",
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def write(content: dict | str):
        path = tmp_path / "config"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def test_the_current_context_is_read(write):
    access = kubeconfig.from_file(write(config()))
    assert access.server == "https://127.0.0.1:6443"
    assert access.token() == "secret"
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert access.tls.check_hostname


def test_client_certificates_inline_and_as_files(write, tmp_path):
    inline = {"client-certificate-data": b64(USER.certificate), "client-key-data": b64(USER.key)}
    kubeconfig.from_file(write(config(user=inline)))
    (tmp_path / "u.crt").write_bytes(USER.certificate)
    (tmp_path / "u.key").write_bytes(USER.key)
    access = kubeconfig.from_file(write(config(user={"client-certificate": "u.crt", "client-key": "u.key"})))
    assert access.token() is None


def test_a_token_file_is_read_again_when_it_rotates(tmp_path):
    path = tmp_path / "token"
    path.write_text("one\n")
    token = TokenFile(path)
    assert token() == "one"
    (tmp_path / "next").write_text("two\n")
    (tmp_path / "next").replace(path)
    assert token() == "two"
    path.unlink()
    assert token() == "two"


def test_a_pod_uses_its_service_account(tmp_path):
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(CA.certificate)
    access = kubeconfig.from_pod("fd00::1", "443", tmp_path)
    assert access.server == "https://[fd00::1]:443"
    assert access.token() == "t"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (config(**{"current-context": "nope"}), ["no context 'nope'", "broken, x"]),
        (config(**{"current-context": "broken"}), ["no cluster 'nowhere'", "Choose one of: c"]),
        (config(cluster={"server": "http://x"}), ["http://x", "https URL"]),
        (
            config(cluster={"insecure-skip-tls-verify": True}),
            ["insecure-skip-tls-verify", "certificate-authority-data"],
        ),
        (config(cluster={"proxy-url": "http://p"}), ["proxy-url"]),
        (config(user={"auth-provider": {"name": "gcp"}}), ["kubectl create token"]),
        (config(user={"username": "u", "password": "p"}), ["kubectl create token"]),
        (config(cluster={"certificate-authority-data": "%%%"}), ["not base64"]),
        (config(cluster={"certificate-authority-data": b64(b"junk")}), ["cannot be read"]),
        (config(user={"client-certificate": "gone.crt", "client-key": "gone.key"}), ["gone.crt", "cannot be read"]),
        ("clusters: 3", ["is not a kubeconfig"]),
        ("{", ["is not a kubeconfig"]),
    ],
)
def test_what_cannot_be_used_is_said_with_the_fix(write, content, words):
    with pytest.raises(ConfigError) as caught:
        kubeconfig.from_file(write(content))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_names_the_ways_out(tmp_path):
    with pytest.raises(ConfigError, match="skysail up"):
        kubeconfig.from_file(tmp_path / "none")


def test_the_order_in_which_a_configuration_is_looked_for(write, monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(write(config())))
    assert kubeconfig.find().server == "https://127.0.0.1:6443"
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"\.kube/config"):
        kubeconfig.find()
