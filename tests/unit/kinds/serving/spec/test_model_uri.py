"""What the address of a model means, and what speaks against one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skysail.kinds.serving.spec import model_uri

GOOD = [
    "https://models.example.com/iris.onnx",
    "http://models.example.com:8080/a/b.tar.gz?version=2",
    "s3://bucket/models/iris",
    "gs://bucket/iris.onnx",
    "hf://org/name",
    "hf://org/name@main",
    "hf://org/name@v1/onnx/model.onnx",
    "hf://org/name/onnx/model.onnx",
    "oci://registry.example.com/team/iris:1",
    "oci://registry.example.com:5000/iris@sha256:" + "a" * 64,
    "pvc://claim",
    "pvc://my-claim/models/iris",
    "file:///opt/models/iris",
]
BAD = [
    ("iris.onnx", "s3://"),
    ("/opt/iris.onnx", "s3://"),
    ("ftp://host/iris", "s3://"),
    ("https:///iris", "https://host/path"),
    ("https://user:word@models.example.com/iris", "credentialsSecret"),
    ("http://169.254.169.254/latest", "credentials"),
    ("http://127.0.0.1/iris", "the pod itself"),
    ("http://10.1.2.3/iris", "allowed_model_hosts"),
    ("http://minio.storage.svc/iris", "allowed_model_hosts"),
    ("oci://10.1.2.3/iris:1", "allowed_model_hosts"),
    ("https://models.example.com/a b", "encode"),
    ("http://[::1", "cannot be parsed"),
    ("s3://bucket", "s3://bucket/path"),
    ("gs://bucket/", "gs://bucket/path"),
    ("s3:///models", "s3://name/path"),
    ("hf://name", "hf://owner/name"),
    ("hf://org/", "hf://owner/name"),
    ("oci://registry.example.com", "oci://registry/repository:tag"),
    ("pvc://My_Claim/models", "pvc://name/path"),
    ("pvc://claim/../other", "`..`"),
    ("file://opt/iris", "three slashes"),
    ("file:///", "three slashes"),
    ("file:///opt/../etc", "`..`"),
    ("file:///opt//iris", "`//`"),
    ("file:///opt/%2e%2e/etc", "`..`"),
]


@pytest.mark.parametrize("uri", GOOD)
def test_an_address_that_can_be_used_meets_no_objection(uri):
    assert model_uri.validate(uri, ()) is None


@pytest.mark.parametrize(("uri", "words"), BAD)
def test_an_address_that_cannot_be_used_is_told_with_the_fix(uri, words):
    found = model_uri.validate(uri, ())
    assert words in found
    assert found.endswith(".")


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [("http://10.1.2.3/iris", ("10.0.0.0/8",)), ("http://minio.storage.svc/iris", ("*.storage.svc",))],
)
def test_what_the_operator_was_told_to_allow_is_allowed(uri, allowed):
    assert model_uri.validate(uri, allowed) is None


@pytest.mark.parametrize(
    ("uri", "claim", "path", "suffix"),
    [
        ("pvc://claim/models/iris.PT", "claim", "", ".pt"),
        ("PVC://claim", "claim", "", ""),
        ("file:///opt/my%20models/iris.onnx", "", "/opt/my models/iris.onnx", ".onnx"),
        ("https://host/a.b/model.tar.gz?x=.h5", "", "", ".gz"),
        ("https://host/v1.2/model", "", "", ""),
    ],
)
def test_what_an_address_means(uri, claim, path, suffix):
    assert (model_uri.pvc_name(uri), model_uri.image_path(uri), model_uri.suffix(uri)) == (claim, path, suffix)


@pytest.mark.parametrize(
    ("script", "is_downloaded"),
    [("validate.py", False), ("/opt/validate.py", False), ("https://host/validate.py", True), ("s3://b/v.py", False)],
)
def test_a_script_with_an_address_is_downloaded(script, is_downloaded):
    assert model_uri.is_downloaded_script(script) is is_downloaded


@given(st.one_of(st.text(), st.from_regex(r"(https?|s3|hf|pvc|oci|file)://.*", fullmatch=True)))
def test_whatever_is_written_is_answered_by_a_sentence_and_never_by_a_crash(uri):
    found = model_uri.validate(uri, ())
    assert found is None or found.endswith(".")
    assert isinstance(model_uri.pvc_name(uri) + model_uri.image_path(uri) + model_uri.suffix(uri), str)
