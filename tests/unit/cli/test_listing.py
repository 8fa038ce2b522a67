"""Rows of `skysail get` without a name."""

from datetime import UTC, datetime

import msgspec

from skysail.cli import listing
from skysail.kinds.serving.api.types import MODEL_DEPLOYMENT, ModelDeployment
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
MADE = "2026-01-01T00:00:00Z"
MODEL = MODEL_DEPLOYMENT.resource
CLOUD = {"provider": "modal", "usdPerHour": 3.5, "usdTotal": 1.25}
NAME = "a-name-that-is-long-and-must-never-be-cut-in-the-middle"


def job(**status):
    spec = {"framework": "pytorch", "image": "i", "command": ["x"]}
    meta = {"name": NAME, "namespace": "ml", "creationTimestamp": MADE}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, TrainingJob)


def model(**status):
    spec = {"modelURI": "https://example.com/m.onnx", "runtime": "triton"}
    meta = {"name": "iris", "namespace": "ml", "creationTimestamp": MADE}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, ModelDeployment)


def test_render_shows_phase_progress_and_the_message_of_what_does_not_run():
    rows = [
        listing.row(TRAINING_JOB.resource, job(phase="Running", progress={"percent": 40}, cloud=CLOUD)),
        listing.row(
            MODEL_DEPLOYMENT.resource, model(phase="Ready", replicas=2, readyReplicas=1, message="All is well.")
        ),
        listing.row(MODEL, model(phase="Failed", message="word " * 40)),
        listing.row(
            MODEL_DEPLOYMENT.resource, model(phase="Validating", download={"percent": 7}, message="Downloading.")
        ),
    ]
    header, *lines = [line.split() for line in listing.render(rows, NOW, with_namespace=True)]
    assert header == ["NAMESPACE", "KIND", "NAME", "PHASE", "PROGRESS", "COST", "AGE", "MESSAGE"]
    assert lines[0] == ["ml", "TrainingJob", NAME, "Running", "40%", "3.5", "USD/h,", "1.25", "USD", "60m"]
    assert lines[1] == ["ml", "ModelDeployment", "iris", "Ready", "1/2", "ready", "-", "60m"]
    assert lines[2][-1] == "…"
    assert lines[3][3:5] == ["Validating", "7%"]


def test_row_has_the_name_that_kubectl_takes():
    assert listing.row(MODEL, model()).resource == "modeldeployment.mlops.sathvik.dev/iris"
