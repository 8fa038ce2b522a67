from __future__ import annotations

import io
import tarfile

import pytest

from skysail.cli.report import contents

CANARY = "canary-c0ffee-secret"


def test_object_row_has_neither_spec_nor_annotations():
    manifest = {
        "metadata": {"name": "a", "namespace": "n", "annotations": {"x": CANARY}, "labels": {"y": CANARY}},
        "spec": {"env": [{"name": "TOKEN", "value": CANARY}]},
        "status": {"phase": "Failed"},
    }
    assert contents.object_row(manifest) == {
        "metadata": {"name": "a", "namespace": "n"},
        "status": {"phase": "Failed"},
    }


@pytest.mark.parametrize(
    "secret",
    [
        "ak-0123456789abcdef",
        "as-0123456789abcdef",
        "rpa_0123456789ABCDEF",
        "hf_0123456789abcdef",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
        "-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----",
        CANARY,
    ],
)
def test_masked_text_has_no_credential(secret):
    text = contents.masked(f"error: {secret} was refused", {"MODAL_TOKEN_SECRET": CANARY, "EMPTY": ""})
    assert secret not in text
    assert text == "error: [masked] was refused"


def test_masked_bearer_keeps_the_word_before_it():
    assert contents.masked("Authorization: Bearer abcdef0123456789", {}) == "Authorization: Bearer [masked]"


def test_archive_has_every_file_below_one_folder():
    data = contents.archive({"versions.json": "{}\n", "logs/a.log": "x\n"})
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["skysail-report/logs/a.log", "skysail-report/versions.json"]
        assert {member.mode for member in tar.getmembers()} == {0o600}
