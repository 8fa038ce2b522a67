"""Where no model comes from: forms that are refused when they are written, and addresses that are when connecting."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.runtimes.fetch.network.address_policy import SCHEMES, deny_reason, is_public, validate_uri

_REFUSED = (
    """
http://169.254.169.254/latest/meta-data/iam/security-credentials/
http://169.254.170.2/v2/credentials
http://169.254.170.23/v1/credentials
http://[fd00:ec2::254]/latest/meta-data
http://100.100.100.200/latest/meta-data
http://168.63.129.16/metadata
http://192.0.0.192/opc/v2/instance
http://metadata.google.internal/computeMetadata/v1/
http://metadata.google.internal./computeMetadata/v1/
http://METADATA.google.internal/
http://metadata/computeMetadata/v1/
http://instance-data/latest/meta-data
http://127.0.0.1/model.onnx
http://127.1/model.onnx
http://127.0.1/model.onnx
http://127.255.255.254:8080/model.onnx
http://2130706433/model.onnx
http://0x7f000001/model.onnx
http://0x7f.0.0.1/model.onnx
http://0177.0.0.1/model.onnx
http://017700000001/model.onnx
http://127.0.0.1./model.onnx
http://0/model.onnx
http://0.0.0.0/model.onnx
http://localhost/model.onnx
http://LOCALHOST./model.onnx
http://models.localhost/model.onnx
http://[::1]/model.onnx
http://[::]/model.onnx
http://[0:0:0:0:0:0:0:1]/model.onnx
http://[::ffff:127.0.0.1]/model.onnx
http://[::ffff:7f00:1]/model.onnx
http://[::ffff:169.254.169.254]/latest
http://[::127.0.0.1]/model.onnx
http://[2002:7f00:1::]/model.onnx
http://[2002:a9fe:a9fe::1]/latest
http://[64:ff9b::127.0.0.1]/model.onnx
http://[64:ff9b::a9fe:a9fe]/latest
http://[64:ff9b:1::a9fe:a9fe]/latest
http://[2001:0:7f00:1:0:0:5601:5601]/model.onnx
http://[2001:0:808:808:0:0:f7f7:f7f7]/model.onnx
http://[2001::1]/model.onnx
http://[2606:4700::5efe:10.0.0.1]/model.onnx
http://[2606:4700::200:5efe:169.254.169.254]/latest
http://[::ffff:0:10.0.0.1]/model.onnx
http://[2001:db8::1]/model.onnx
http://[3fff::1]/model.onnx
http://[5f00::1]/model.onnx
http://[2001:2::1]/model.onnx
http://192.0.2.1/model.onnx
http://198.51.100.1/model.onnx
http://203.0.113.1/model.onnx
http://192.0.0.8/model.onnx
http://192.88.99.1/model.onnx
http://[fe80::1]/model.onnx
http://[fe80::1%25eth0]/model.onnx
http://[fe80::5efe:10.0.0.1]/model.onnx
http://[fd12:3456::1]/model.onnx
http://[fec0::1]/model.onnx
http://[ff02::1]/model.onnx
http://10.0.0.1/model.onnx
http://172.16.0.1/model.onnx
http://192.168.1.1/model.onnx
http://100.64.0.1/model.onnx
http://198.18.0.1/model.onnx
http://224.0.0.1/model.onnx
http://240.0.0.1/model.onnx
http://255.255.255.255/model.onnx
http://user:password@example.com/model.onnx
http://example.com@127.0.0.1/model.onnx
http://example.com:80@169.254.169.254/
http://example.com\\@169.254.169.254/
http://example.com#@169.254.169.254@/
http://169.254.169.254%2f@example.com/
http://%31%32%37.0.0.1/model.onnx
http://\uff11\uff12\uff17.0.0.1/model.onnx
http://127\u30020\u30020\u30021/model.onnx
http://\u24db\u24de\u24d2\u24d0\u24dbhost/model.onnx
http://exam ple.com/model.onnx
http://example.com/a\tb
http://example.com\r\nHost: evil/
http://[127.0.0.1/model.onnx
http://example.com:99999/model.onnx
http://example.com:port/model.onnx
http:///model.onnx
http:model.onnx
http://..example.com/model.onnx
http://-/model.onnx
http://kubernetes/api
http://kubernetes.default/api
http://kubernetes.default.svc/api
https://kubernetes.default.svc.cluster.local/api
https://kubernetes.default.svc.cluster.local./api
http://minio.storage.svc/model.onnx
http://printer.local/model.onnx
http://host.docker.internal/model.onnx
http://ip-10-0-0-1.ec2.internal/model.onnx
http://router.home.arpa/model.onnx
oci://127.0.0.1:5000/models/iris:1
oci://registry.kube-system.svc/models/iris:1
oci://user:password@registry.example.com/models/iris
s3://key:secret@bucket/model.onnx
s3:///model.onnx
hf://me:token@org/name
gopher://example.com/model
ftp://example.com/model
dict://127.0.0.1:11211/stats
ldap://example.com/
jar:http://example.com!/
data:text/plain,model
javascript:alert(1)
unix:///var/run/docker.sock
file://host/etc/passwd
file://localhost/etc/passwd
pvc://claim/../other
FILE:/etc/shadow@
model.onnx
/etc/passwd
""".strip()
    .replace("\\t", "\t")
    .replace("\\r\\n", "\r\n")
    .split("\n")
)

_TAKEN = (
    "https://example.com/model.onnx",
    "http://example.com:8080/models/iris.tar.gz?X-Amz-Signature=abc&e=1",
    "https://xn--mnchen-3ya.example/model.onnx",
    "https://example.com./model.onnx",
    "https://8.8.8.8/model.onnx",
    "https://[2606:4700::1111]/model.onnx",
    "https://[64:ff9b::8.8.8.8]/model.onnx",
    "https://dummy.com/dummy_model.pt",
    "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/tf_model.h5",
    "s3://bucket/models/iris",
    "s3://127.0.0.1/is-a-bucket",
    "gs://bucket",
    "hf://org/name@main/model.onnx",
    "oci://ghcr.io/org/model:v1",
    "oci://registry.example.com:5000/org/model@sha256:0123",
    "pvc://claim/models/iris",
    "file:///models/iris",
)


@pytest.mark.parametrize("uri", _REFUSED)
def test_forms_that_lead_inside_are_refused(uri):
    sentence = validate_uri(uri, ())

    assert sentence is not None
    assert sentence.endswith(".")


@pytest.mark.parametrize("uri", _TAKEN)
def test_forms_that_lead_outside_are_taken(uri):
    assert validate_uri(uri, ()) is None


def test_there_are_at_least_forty_forms():
    assert len(set(_REFUSED)) >= 40


@pytest.mark.parametrize(
    "uri", ["https://me:hunter2@example.com/x", "https://me:hunter2/x", "me:hunter2@example.com/x"]
)
def test_passwords_in_an_address_are_not_repeated(uri):
    sentence = validate_uri(uri, ())

    assert sentence is not None
    assert "hunter2" not in sentence


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("http://10.1.2.3/m", "10.1.0.0/16"),
        ("http://127.0.0.1:8000/m", "127.0.0.0/8"),
        ("http://[::ffff:10.1.2.3]/m", "10.1.0.0/16"),
        ("http://[fd12::1]/m", "fd12::/16"),
        ("http://minio.storage.svc/m", "minio.storage.svc"),
        ("http://MinIO.storage.svc./m", "*.storage.svc"),
        ("http://models/m", "models"),
        ("http://169.254.169.254/m", "169.254.169.254"),
        ("oci://registry.kube-system.svc/m", "*.svc"),
    ],
)
def test_what_is_allowed_is_open(uri, allowed):
    assert validate_uri(uri, ()) is not None
    assert validate_uri(uri, (allowed,)) is None


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("http://169.254.169.254/m", "169.254.0.0/16"),
        ("http://169.254.169.254/m", "0.0.0.0/0"),
        ("http://[fd00:ec2::254]/m", "fc00::/7"),
        ("http://metadata.google.internal/m", "*.internal"),
        ("http://localhost/m", "*"),
        ("http://0x7f000001/m", "127.0.0.0/8"),
        ("http://10.1.2.3/m", "10.2.0.0/16"),
        ("http://10.1.2.3/m", "*"),
        ("http://minio.storage.svc/m", "storage.svc"),
        ("http://evil.com.storage.svc/m", "evil.com"),
        ("gopher://example.com/m", "*"),
    ],
)
def test_what_is_allowed_opens_nothing_else(uri, allowed):
    assert validate_uri(uri, (allowed,)) is not None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"]
)
def test_a_public_name_does_not_open_what_it_is_pointed_at(address):
    assert deny_reason(address, "models.example.com", ()) is not None


def test_a_name_that_is_allowed_opens_private_addresses_behind_it_and_nothing_else():
    allowed = ("*.storage.svc",)

    assert deny_reason("10.96.0.7", "minio.storage.svc", allowed) is None
    assert deny_reason("10.96.0.7", "other.example.com", allowed) is not None
    assert deny_reason("127.0.0.1", "minio.storage.svc", allowed) is not None
    assert deny_reason("169.254.169.254", "minio.storage.svc", allowed) is not None


@given(st.text(max_size=60), st.sampled_from(["", *(f"{scheme}://" for scheme in SCHEMES)]))
def test_no_text_makes_it_fail(text, scheme):
    sentence = validate_uri(scheme + text, ())

    assert sentence is None or sentence.endswith(".")


def test_what_this_python_calls_private_is_not_public():
    """The list of our own is at least as strict as the standard library's, for the ends of each of its networks."""
    known = [network for kind in (IPv4Address, IPv6Address) for network in kind._constants._private_networks]
    ends = [end for network in known for end in (network[0], network[-1])]

    assert [str(end) for end in ends if is_public(end)] == []


@pytest.mark.parametrize("opened", ["2001::/16", "2000::/3", "::/0"])
def test_a_network_that_is_allowed_does_not_open_what_is_embedded_in_it(opened):
    for address in ("2001:0:7f00:1:0:0:5601:5601", "2002:a9fe:a9fe::1", "2606:4700::5efe:10.0.0.1"):
        assert deny_reason(address, "", (opened,)) is not None


@given(st.ip_addresses(v=4))
def test_all_ways_to_wrap_an_address_are_judged_like_itself(address):
    plain = deny_reason(str(address), "", ()) is not None
    wrapped = [f"::ffff:{address}", f"64:ff9b::{address}"]

    assert [deny_reason(form, "", ()) is not None for form in wrapped] == [plain, plain]
