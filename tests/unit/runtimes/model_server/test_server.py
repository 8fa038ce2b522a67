"""The server as a process: everything that a client, a probe and a kubelet see of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from skysail.kinds.serving.children import pod_templates
from skysail.runtimes.model_server import server as server_module
from skysail.runtimes.model_server.models.loader import load
from skysail.runtimes.model_server.settings import Settings
from tests.support import model_server, onnx_models
from tests.support.model_server import ModelServer, refusal, reply, serving
from tests.support.onnx_models import WIDTH, Network

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK = Network(seed=7)
LIMIT = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    file = NETWORK.save(tmp_path_factory.mktemp("model") / "model.onnx")
    with serving(file.parent, MODEL_VERSION="v3", MAX_BODY_BYTES=str(LIMIT)) as started:
        yield started


def rows_of(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def test_predictions_are_those_of_the_model(server):
    rows = rows_of(1, 5)
    answer = server.post("/predict", {"features": rows.tolist()})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    np.testing.assert_allclose(answer.json["predictions"], NETWORK.predict(rows), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("path", ["/v2/models/net/infer", "/v2/models/net/versions/v3/infer"])
@pytest.mark.parametrize("flat", [True, False])
def test_the_protocol_gives_the_same(server, path, flat):
    rows = rows_of(2, 3)
    data = rows.ravel().tolist() if flat else rows.tolist()
    tensor = {"name": "features", "shape": [3, WIDTH], "datatype": "FP32", "data": data}
    told = server.post(path, {"id": "a", "inputs": [tensor]}).json
    [output] = told.pop("outputs")
    assert told == {"model_name": "net", "model_version": "v3", "id": "a"}
    assert (output["name"], output["datatype"], output["shape"]) == ("scores", "FP32", [3, 4])
    np.testing.assert_allclose(output["data"], NETWORK.predict(rows).ravel(), rtol=1e-3, atol=1e-4)


def test_many_clients_at_once_each_get_their_own(server):
    def ask(seed: int) -> None:
        rows = rows_of(seed, 1 + seed % 3)
        found = server.post("/predict", {"features": rows.tolist()}).json["predictions"]
        np.testing.assert_allclose(found, NETWORK.predict(rows), rtol=1e-3, atol=1e-4)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(200)))


def test_what_the_server_and_the_model_are(server):
    assert server.get("/v2").json == {"name": "fastapi-pytorch", "version": "0.1.0", "extensions": []}
    wanted = {
        "name": "net",
        "versions": ["v3"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, WIDTH]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert server.get("/v2/models/net").json == wanted
    assert server.get("/v2/models/net/versions/v3").json == wanted
    assert server.get("/v2/health/live").json == {"live": True}
    for path in ("/v2/health/ready", "/v2/models/net/ready", "/v2/models/net/versions/v3/ready"):
        assert server.get(path).json["ready"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/net/versions/v3/ready",
        "/v2",
        "/v2/models/net",
        "/docs",
        "/no",
    ],
)
def test_head_is_answered_as_get_is_without_the_content(server, path):
    connection = server.connect()
    connection.request("HEAD", path)
    head = reply(connection)
    connection.request("GET", path)
    whole = reply(connection)
    connection.close()
    del head.headers["date"], whole.headers["date"]
    assert (head.status, head.headers, head.body) == (whole.status, whole.headers, b"")
    assert whole.body


def test_the_documentation_names_every_request(server):
    assert server.get("/docs").status == 200
    paths = server.get("/openapi.json").json["paths"]
    assert {"/predict", "/v2/models/{name}/infer", "/v2/health/ready", "/v2", "/metrics", "/stats"} <= paths.keys()


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/predict", b"{", 400, "cannot be parsed"),
        ("/predict", b"", 400, "cannot be parsed"),
        ("/predict", b'{"features": [[NaN]]}', 400, "cannot be parsed"),
        ("/predict", b'{"features": [[1]]}', 400, "the model takes [-1, 16]"),
        ("/predict", b'{"features": [[1], [1, 2]]}', 400, "different lengths"),
        ("/predict", b'{"features": []}', 400, "is empty"),
        ("/predict", json.dumps({"features": [[1e39] * WIDTH]}).encode(), 400, "too large for FP32"),
        ("/predict", json.dumps({"features": [[1] * WIDTH] * 1500}).encode(), 200, ""),
        ("/predict", b" " * (LIMIT + 1), 413, "longer than 100000 bytes"),
        ("/v2/models/net/infer", b" " * 10_000_000, 413, "longer than 100000 bytes"),
        ("/v2/models/net/infer", b'{"inputs": []}', 400, "the model takes features"),
        ("/v2/models/other/infer", b"{}", 404, "Model `other` does not exist: this server has `net`."),
        (
            "/v2/models/net/versions/v9/infer",
            b"{}",
            404,
            "Version `v9` of `net` does not exist: use `v3`.",
        ),
        ("/nowhere", b"{}", 404, "Not Found"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(server, path, body, status, sentence):
    answer = server.post(path, body)
    assert answer.status == status
    assert status == 200 or sentence in answer.json["error"]


def test_a_long_body_without_a_length_is_refused_as_well(server):
    connection = server.connect()
    connection.request("POST", "/predict", (b" " * 10_000 for _ in range(50)), encode_chunked=True)
    answer = reply(connection)
    connection.close()
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_connection_serves_many_requests(server):
    connection = server.connect()
    for body, status in [(b"{", 400), (json.dumps({"features": [[0] * WIDTH]}).encode(), 200), (b"", 400)]:
        connection.request("POST", "/predict", body)
        assert reply(connection).status == status
    connection.close()


def test_what_is_counted(tmp_path):
    """Of a server of its own: what others have asked may be counted a moment after its answer."""
    with serving(NETWORK.save(tmp_path / "model.onnx").parent) as server:
        requests, errors = counted(server)
        server.post("/predict", {"features": [[0] * WIDTH]})
        for _ in range(2):
            server.post("/predict", b"{")
        assert counted(server) == (requests + 3, errors + 2)
        stats = server.get("/stats").json
        assert (stats["interval_seconds"], len(stats["requests"])) == (10, 60)
        assert sum(stats["requests"]) == requests + 3


def counted(server: ModelServer) -> tuple[float, float]:
    page = server.get("/metrics").body.decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    errors = [each.value for each in families["inference_errors"].samples if each.labels["status"] == "400"]
    return families["inference_requests"].samples[0].value, sum(errors)


def test_every_type_goes_there_and_back(tmp_path):
    values: dict[str, list[Any]] = {
        "BOOL": [True, False],
        "UINT8": [0, 2**8 - 1],
        "UINT16": [0, 2**16 - 1],
        "UINT32": [0, 2**32 - 1],
        "UINT64": [0, 2**64 - 1],
        "INT8": [-(2**7), 2**7 - 1],
        "INT16": [-(2**15), 2**15 - 1],
        "INT32": [-(2**31), 2**31 - 1],
        "INT64": [-(2**63), 2**63 - 1],
        "FP16": [0.5, -65504.0],
        "FP32": [0.1, -3.4e38],
        "FP64": [0.1, -1.7e308],
    }
    inputs = [{"name": kind.lower(), "shape": [1, 2], "datatype": kind, "data": pair} for kind, pair in values.items()]
    with serving(onnx_models.save_echo(tmp_path / "model.onnx")) as server:
        told = server.post("/v2/models/net/infer", {"inputs": inputs[::-1]}).json
        one = server.post("/v2/models/net/infer", {"inputs": inputs, "outputs": [{"name": "same_int8"}]}).json
        predicted = server.post("/predict", {"features": [[1, 2]]})
    assert {output["datatype"]: output["data"] for output in told["outputs"]} == values
    assert [output["name"] for output in one["outputs"]] == ["same_int8"]
    assert "model_version" not in one
    assert predicted.status == 400


def test_the_model_s_own_mistake_is_told_to_whom_it_belongs(tmp_path):
    with serving(onnx_models.save_picky(tmp_path / "model.onnx")) as server:
        assert server.post("/predict", {"features": [2, 0]}).json == {"predictions": [[4, 5], [0, 1]]}
        answer = server.post("/predict", {"features": [99]})
        assert answer.status == 500
        assert "idx=99 must be within" in answer.json["error"]
        assert server.post("/predict", {"features": [1]}).status == 200


@pytest.mark.parametrize("version", ["v1.0+cu12", "2024/01", "v 2", "_x", "\u00e9", "50%25", "a?b#c"])
def test_a_version_of_any_name_is_in_the_paths_percent_encoded(tmp_path, version):
    with serving(NETWORK.save(tmp_path / "model.onnx"), MODEL_VERSION=version) as server:
        base = f"/v2/models/net/versions/{quote(version, safe='')}"
        row = {"name": "features", "shape": [1, WIDTH], "datatype": "FP32", "data": [1] * WIDTH}
        assert server.post(f"{base}/infer", {"inputs": [row]}).json["model_version"] == version
        assert server.get(f"{base}/ready").status == 200
        assert server.get(base).json["versions"] == [version]
        other = server.get(f"/v2/models/net/versions/{quote(version + '/x', safe='')}/ready")
        assert (other.status, f"Version `{version}/x` of" in other.json["error"]) == (404, True)


def test_a_model_with_branches_is_never_run_on_the_event_loop(tmp_path):
    for save, is_ever in [(onnx_models.save_branching, False), (NETWORK.save, True)]:
        loaded_model = load(Settings(model_path=str(save(tmp_path / "model.onnx")), threads=1))
        assert (server_module._pace(loaded_model).quick > 0) is is_ever


def test_a_model_that_never_worked_is_not_the_client_s_mistake(tmp_path):
    file = onnx_models.save_failing(tmp_path / "model.onnx")
    code, said = refusal(file)
    assert (code, said.count("\n")) == (65, 1)
    assert "ALLOW_UNTRIED=1" in said
    with serving(file, ALLOW_UNTRIED="1") as server:
        assert "The model failed with every tried input" in server.said
        assert server.post("/predict", {"features": [[1, 2]]}).status == 500


def test_a_request_that_is_under_way_is_finished_after_sigterm(tmp_path):
    body = json.dumps({"features": [[1] * WIDTH]}).encode()
    with serving(NETWORK.save(tmp_path / "model.onnx"), DRAIN_SECONDS="2") as server:
        connection = server.connect()
        connection.putrequest("POST", "/predict")
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body[:7])
        server.process.terminate()
        while is_ready(server):
            pass
        connection.send(body[7:])
        answer = reply(connection)
        assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_what_is_under_way_has_nearly_all_of_the_time_that_a_pod_has_for_its_end():
    lasts = Settings().drain_seconds + server_module._LAST_SECONDS
    assert 50 <= lasts < pod_templates._GRACE_SECONDS


def is_ready(server: ModelServer) -> bool:
    try:
        return server.get("/v2/health/ready").status == 200
    except ConnectionError:
        return False


def test_a_model_that_cannot_be_served_is_said_in_one_sentence(tmp_path):
    log = tmp_path / "termination-log"
    log.touch()
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")  # a graph, and nothing in it
    code, said = refusal(tmp_path, TERMINATION_LOG=str(log))
    assert code == 65
    assert said.startswith("model.onnx, which looks like ONNX, cannot be loaded: ")
    assert said.count("\n") == 1
    assert log.read_text() == said.strip()


def test_a_wrong_setting_is_said_in_one_sentence(tmp_path):
    assert refusal(tmp_path, MAX_ROWS="many") == (78, "MAX_ROWS=many is invalid: Expected `int`, got `str`.\n")
    code, said = refusal(tmp_path / "missing")
    assert (code, said.count("\n")) == (78, 1)


def test_a_port_that_is_taken_is_said_in_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = refusal(tmp_path, PORT=port)
    assert (code, said) == (78, f"The server cannot listen at 127.0.0.1:{port}: Address already in use.\n")


def test_it_is_alive_while_it_loads_and_can_be_stopped(tmp_path):
    """A library that is never loaded."""
    (tmp_path / "onnxruntime.py").write_text("import threading; threading.Event().wait()")
    port = free_port()
    source = f"{tmp_path}:{model_server.SOURCE}"
    process = model_server.begin(NETWORK.save(tmp_path / "model.onnx"), PORT=str(port), PYTHONPATH=source)
    server = ModelServer(process, "", port)
    while not is_alive(server):
        assert process.poll() is None
    ready = server.get("/v2/models/net/ready")
    predicted = server.post("/predict", {"features": [[1] * WIDTH]})
    process.terminate()
    process.communicate(timeout=model_server.SECONDS)
    assert (ready.status, ready.json["phase"]) == (503, "loading")
    assert (predicted.status, predicted.headers["retry-after"]) == (503, "1")
    assert process.returncode == 0


def free_port() -> int:
    """Of those that the kernel gives to nobody who asks for any: such a one may be gone a moment later."""
    for port in random.sample(range(10_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def is_alive(server: ModelServer) -> bool:
    try:
        return server.get("/v2/health/live").status == 200
    except ConnectionError:
        return False
