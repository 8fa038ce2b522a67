"""Messages of `skysail predict`."""

import msgspec
import pytest

from skysail.cli.commands import predict
from skysail.kinds.serving.api.types import ModelDeployment

NO_ENDPOINTS = 'no endpoints available for service "iris-service"'


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (
            {"readyReplicas": 1, "url": "http://iris-service.ml.svc:8000"},
            NO_ENDPOINTS,
            "`skysail open iris-service -n ml`",
        ),
        ({"readyReplicas": 0, "message": "Downloading."}, NO_ENDPOINTS, "No server of iris is ready: Downloading."),
        ({"readyReplicas": 1}, "busy", "The model answered 503: busy"),
    ],
)
def test_refusal_says_how_to_reach_the_model(status, answer, words):
    metadata, spec = {"name": "iris", "namespace": "ml"}, {"modelURI": "https://x/m.onnx", "runtime": "triton"}
    model = msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, ModelDeployment)
    assert words in predict._refusal(model, 503, answer)
