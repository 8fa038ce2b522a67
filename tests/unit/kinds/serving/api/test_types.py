"""The statuses of both kinds, and what the schema of their fields takes."""

from __future__ import annotations

import re

import msgspec
import pytest

from skysail.kinds.serving.api.types import (
    ML_MODEL,
    MODEL_DEPLOYMENT,
    Download,
    Failure,
    MLModelStatus,
    ModelDeploymentStatus,
)
from skysail.kube.api import crd

SHARED = {"conditions", "revision", "candidate", "digest", "replicas", "readyReplicas", "download", "failure"}


def schema(kind, part):
    (version,) = crd.manifest(kind)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"][part]


@pytest.mark.parametrize("kind", [MODEL_DEPLOYMENT, ML_MODEL], ids=lambda kind: kind.resource.kind)
def test_both_statuses_tell_the_same_of_their_revisions(kind):
    assert schema(kind, "status")["properties"].keys() >= SHARED | {"phase", "message", "observedGeneration"}


def test_an_ml_models_status_has_what_its_schema_requires_from_the_first_write_on():
    written = msgspec.to_builtins(MLModelStatus(phase="Pending", observed_generation=0))
    assert written == {"phase": "Pending", "observedGeneration": 0}
    assert schema(ML_MODEL, "status")["required"] == ["phase", "observedGeneration"]


def test_nothing_is_written_that_nobody_knows():
    assert msgspec.to_builtins(ModelDeploymentStatus()) == {}
    assert msgspec.to_builtins(Download(bytes=5)) == {"bytes": 5}
    assert msgspec.to_builtins(Failure(step="Download", reason="NotFound")) == {
        "step": "Download",
        "reason": "NotFound",
    }


@pytest.mark.parametrize("kind", [MODEL_DEPLOYMENT, ML_MODEL], ids=lambda kind: kind.resource.kind)
@pytest.mark.parametrize(
    ("sha256", "is_taken"),
    [
        ("ab" * 32, True),
        ("sha256:" + "0" * 64, True),
        ("AB" * 32, False),
        ("ab" * 31, False),
        ("md5:" + "a" * 64, False),
    ],
)
def test_a_checksum_is_hexadecimal(kind, sha256, is_taken):
    field = schema(kind, "spec")["properties"]["sha256"]
    assert bool(re.search(field["pattern"], sha256)) is is_taken
    assert not is_taken or len(sha256) <= field["maxLength"]


@pytest.mark.parametrize("kind", [MODEL_DEPLOYMENT, ML_MODEL], ids=lambda kind: kind.resource.kind)
def test_what_was_added_is_asked_of_nobody(kind):
    required = schema(kind, "spec")["required"]
    assert not {"sha256", "credentialsSecret", "rollbackTo"} & {*required}
