"""Messages of `skysail predict`."""

import msgspec
import pytest

from skysail.cli.commands import predict
from skysail.kinds.serving.api.types import ModelDeployment
from skysail.kinds.serving.spec.desired import RevisionSpec

NO_ENDPOINTS = 'no endpoints available for service "iris-service"'


URL = {"readyReplicas": 1, "url": "http://iris-service.ml.svc:8000"}
AT_CLOUD = {"skysail.dev/offload": "modal"}


@pytest.mark.parametrize(
    ("offload", "status", "answer", "words"),
    [
        (AT_CLOUD, URL, NO_ENDPOINTS, "ask http://iris-service.ml.svc:8000 from a pod"),
        (AT_CLOUD, URL, NO_ENDPOINTS, "`skysail open iris-service -n ml`"),
        (AT_CLOUD, {"readyReplicas": 1}, NO_ENDPOINTS, "The Service of iris leads to no server yet"),
        ({}, URL, NO_ENDPOINTS, "The Service of iris leads to no server yet: try again."),
        ({}, {"readyReplicas": 0, "message": "Downloading."}, NO_ENDPOINTS, "No server of iris is ready: Downloading."),
        ({}, {"readyReplicas": 1}, "busy", "The model answered 503: busy"),
    ],
)
def test_refusal_says_how_to_reach_the_model(offload, status, answer, words):
    metadata, spec = {"name": "iris", "namespace": "ml"}, {"modelURI": "https://x/m.onnx", "runtime": "triton"}
    model = msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, ModelDeployment)
    served = RevisionSpec(uri="https://x/m.onnx", version="1", runtime="triton", image="i", offload=offload)
    assert words in predict._refusal(model, served, 503, answer)
