"""The MLModel operator's flow with a model that TensorFlow itself has written, from its download to its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cluster import Cluster
from tests.support.kubectl import apply, fresh_namespace, get, ok, pod
from tests.support.serving import condition, until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first time, environments of gigabytes are made.
SECONDS = 1800
pytestmark = pytest.mark.timeout(SECONDS)

# Two models that differ by a factor, each as an archive, and a file of weights alone, which cannot be served.
WRITES = """
import http.server, tarfile, tensorflow as tf
for factor in (2.0, 3.0):
    class Times(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": x * factor}
    model = Times()
    tf.saved_model.save(model, f"/tmp/times{factor:.0f}", signatures=model.__call__)
    with tarfile.open(f"/srv/times{factor:.0f}.tar.gz", "w:gz") as archive:
        archive.add(f"/tmp/times{factor:.0f}", ".")
open("/srv/tf_model.h5", "wb").write(bytes([0x89]) + b"HDF and weights")
http.server.test(lambda *a: http.server.SimpleHTTPRequestHandler(*a, directory="/srv"), port=8080)
"""
NAME = "mlmodel-sample"
ENDPOINT = "mlmodel-sample-service.{namespace}.svc.cluster.local:8501"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        cluster.start_operator(restart=True)
        yield cluster
        cluster.end_operator()


def manifest(namespace: str, file: str, **spec: Any) -> dict[str, Any]:
    wanted = {
        "modelURL": f"http://files.{namespace}.svc:8080/{file}",
        "storageSize": "1Gi",
        "framework": "tensorflow",
        "replicas": 1,
        "expose": True,
        **spec,
    }
    api = "oda.tmforum.org.oda.tmforum.org/v1beta1"
    return {"apiVersion": api, "kind": "MLModel", "metadata": {"name": NAME}, "spec": wanted}


@pytest.mark.on_demand
def test_a_model_of_tensorflow_is_downloaded_laid_out_served_and_updated(node: Cluster) -> None:
    with fresh_namespace(node) as namespace:
        offer(node, namespace)
        apply(node, namespace, manifest(namespace, "times2.tar.gz"))
        served = "--for=jsonpath={.status.phase}=Ready"
        ok(node, "wait", f"mlmodel/{NAME}", "-n", namespace, served, f"--timeout={SECONDS}s")
        model = until_ready(node, namespace, NAME, 1, "mlmodel")
        assert model["status"]["serviceEndpoint"] == ENDPOINT.format(namespace=namespace)
        assert answered(node, namespace) == {"predictions": [[2.0, 4.0], [6.0, 8.0]]}
        server = f"deployment/{NAME}-server"
        listed = ok(
            node, "exec", server, "-n", namespace, "--", "find", f"/mnt/models/{NAME}/1", "-name", "saved_model.pb"
        )
        assert listed == f"/mnt/models/{NAME}/1/saved_model.pb\n"

        apply(node, namespace, manifest(namespace, "tf_model.h5"))
        node.until(lambda: "failure" in get(node, namespace, "mlmodel", NAME)["status"], "the failure to be told")
        model = get(node, namespace, "mlmodel", NAME)
        failure = model["status"]["failure"]
        assert (failure["step"], failure["reason"]) == ("Layout", "UnsupportedFormat")
        assert "SavedModel" in failure["message"]
        assert (model["status"]["phase"], condition(model, "UpdateFailed")["status"]) == ("Ready", "True")
        assert answered(node, namespace) == {"predictions": [[2.0, 4.0], [6.0, 8.0]]}

        apply(node, namespace, manifest(namespace, "times3.tar.gz", replicas=2))
        until_ready(node, namespace, NAME, 2, "mlmodel")
        # A server that was told to go answers for as long as somebody has not heard of it.
        node.until(
            lambda: answered(node, namespace) == {"predictions": [[3.0, 6.0], [9.0, 12.0]]}, "the new one to answer"
        )

        ok(node, "delete", "mlmodel", NAME, "-n", namespace)
        kinds = "deployments,jobs,pvc,controllerrevisions"
        node.until(lambda: ok(node, "get", kinds, "-n", namespace, "-o", "name") == "", "its children to go")


def offer(node: Cluster, namespace: str) -> None:
    container = {
        "image": "tensorflow/tensorflow:latest",
        "volumeMounts": [{"name": "files", "mountPath": "/srv"}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    files = pod("files", "python", "-c", WRITES, container=container, volumes=[{"name": "files", "emptyDir": {}}])
    files["metadata"]["labels"] = {"app": "files"}
    ports = {"selector": {"app": "files"}, "ports": [{"port": 8080}]}
    apply(node, namespace, files, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "files"}, "spec": ports})
    ok(node, "wait", "pod/files", "-n", namespace, "--for=condition=Ready", f"--timeout={SECONDS}s")


def answered(node: Cluster, namespace: str) -> Any:
    """By its Service, from another pod."""
    script = (
        "import sys, urllib.request as u; "
        f"r = u.Request('http://{NAME}-service:8501/v1/models/{NAME}:predict', "
        "b'{\"instances\": [[1.0, 2.0], [3.0, 4.0]]}'); "
        "print(u.urlopen(r, timeout=600).read().decode())"
    )
    return json.loads(ok(node, "exec", "files", "-n", namespace, "--", "python", "-c", script))
