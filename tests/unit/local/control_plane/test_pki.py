from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from skysail.local.control_plane import pki
from skysail.local.control_plane.pki import Authority, Identity

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LEAVES = ("apiserver", "apiserver-kubelet-client", "front-proxy-client", "node")


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def authority_of(folder, name):
    return pki.read(folder, name).parsed


def test_a_second_start_changes_no_byte(tmp_path):
    pki.ensure(tmp_path, NOW)
    before = snapshot(tmp_path)
    pki.ensure(tmp_path, NOW + timedelta(days=300))
    assert snapshot(tmp_path) == before


def test_certificates_near_their_end_are_renewed_by_the_same_authority(tmp_path):
    pki.ensure(tmp_path, NOW)
    before = snapshot(tmp_path)
    pki.ensure(tmp_path, NOW + timedelta(days=600))
    after = snapshot(tmp_path)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {f"{leaf}.{kind}" for leaf in LEAVES for kind in ("crt", "key")}


def test_an_authority_that_could_not_outlive_its_certificates_is_renewed_with_them(tmp_path):
    pki.ensure(tmp_path, NOW)
    before = snapshot(tmp_path)
    pki.ensure(tmp_path, NOW + timedelta(days=3000))
    after = snapshot(tmp_path)
    assert {name for name in after if after[name] == before[name]} == {"sa.key", "sa.pub"}
    pki.read(tmp_path, "apiserver").parsed.verify_directly_issued_by(authority_of(tmp_path, "ca"))


@pytest.mark.parametrize(
    ("leaf", "authority"),
    [("apiserver", "ca"), ("apiserver-kubelet-client", "ca"), ("front-proxy-client", "front-proxy-ca")],
)
def test_each_certificate_has_the_right_signer(tmp_path, leaf, authority):
    pki.ensure(tmp_path, NOW)
    other = {"ca": "front-proxy-ca", "front-proxy-ca": "ca"}[authority]
    certificate = authority_of(tmp_path, leaf)
    certificate.verify_directly_issued_by(authority_of(tmp_path, authority))
    with pytest.raises(ValueError, match="Issuer"):
        certificate.verify_directly_issued_by(authority_of(tmp_path, other))


def test_the_api_server_is_known_by_every_name_that_people_and_pods_use(tmp_path):
    pki.ensure(tmp_path, NOW)
    names = authority_of(tmp_path, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    }
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {
        "127.0.0.1",
        "10.244.0.1",
        "10.96.0.1",
    }


def test_a_certificate_for_other_names_is_replaced(tmp_path):
    cluster = pki.ensure(tmp_path, NOW).cluster
    pki.write(tmp_path, "apiserver", cluster.server(("localhost",), NOW))
    pki.ensure(tmp_path, NOW)
    names = authority_of(tmp_path, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_a_login_carries_name_and_groups(tmp_path):
    login = Authority.create("any", NOW).client(Identity("ann", ("red", "blue")), NOW).parsed
    assert login.subject.rfc4514_string() == "CN=ann,O=blue,O=red"
    usage = login.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [purpose.dotted_string for purpose in usage] == ["1.3.6.1.5.5.7.3.2"]


def test_nothing_is_readable_for_others(tmp_path):
    pki.ensure(tmp_path, NOW)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["apiserver", "ca"])
def test_a_certificate_whose_key_is_another_ones_is_made_anew(tmp_path, name):
    """A start that was interrupted between the two files."""
    pki.ensure(tmp_path, NOW)
    other = Authority.create("any", NOW).pair
    (tmp_path / f"{name}.key").write_bytes(other.key)
    assert pki.read(tmp_path, name) is None
    pki.ensure(tmp_path, NOW)
    assert pki.read(tmp_path, name) is not None
    authority_of(tmp_path, "apiserver").verify_directly_issued_by(authority_of(tmp_path, "ca"))


@pytest.mark.parametrize("kind", ["crt", "key"])
def test_a_file_that_is_no_certificate_or_key_is_made_anew(tmp_path, kind):
    pki.ensure(tmp_path, NOW)
    (tmp_path / f"apiserver.{kind}").write_bytes(b"")
    pki.ensure(tmp_path, NOW)
    assert pki.read(tmp_path, "apiserver") is not None
