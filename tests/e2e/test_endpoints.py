"""ModalEndpoints and ModalFunctions on the real plane: pods at the simulated Modal serve them at Service names."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.support.clouds import NODES, Books, start_bridge, start_operator
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster, restart=True)
    start_bridge(cluster)
    cluster.until_asking()
    yield cluster
    cluster.stop("bridge")
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
        books.check()
        ok(node, "delete", "modalfunctions,modalendpoints", "--all", "-n", name, TIMEOUT)
        ok(node, "delete", "pods", "--all", "-n", name, TIMEOUT)
        books.until_let_go(name)


def resource(kind: str, name: str, **spec: object) -> dict:
    wanted = {"image": "python:3.11-slim", **spec}
    return {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": wanted,
    }


def run_client(node: Cluster, namespace: str, script: str, image: str = "python:3") -> str:
    spec = {"nodeSelector": {"kubernetes.io/hostname": "local"}}
    apply(node, namespace, pod("client", "python", "-u", "-c", script, container={"image": image}, **spec))
    until_phase(node, namespace, "client", "Succeeded")
    printed = ok(node, "logs", "client", "-n", namespace)
    ok(node, "delete", "pod", "client", "-n", namespace, TIMEOUT)
    return printed


def test_function_is_called_by_its_service_and_updates_fail_no_request(node, namespace, books):
    nonce, next_nonce = secrets.token_hex(8), secrets.token_hex(8)
    code = (
        "import os\n"
        "def process_data(x='', y=0):\n"
        "    return {{'nonce': '{}', 'key': os.environ['KEY'], 'x': x, 'y': y}}\n"
    )
    spec = {"handler": "processor.process_data", "env": {"KEY": "v"}, "timeout": 60, "concurrency": 4}
    first = resource("ModalFunction", "data-processor", **spec, code={"inline": code.format(nonce)})
    apply(node, namespace, first)
    until_condition(node, namespace, "modalfunction/data-processor", "Deployed")
    shown = get(node, namespace, "modalfunction", "data-processor")["status"]
    url = f"http://data-processor.{namespace}.svc.cluster.local"
    assert (shown["phase"], shown["function_url"], shown["simulated"]) == ("Deployed", url, True)
    calls = (
        "import json, urllib.request\n"
        f"def fetch(target, body=None): return json.load(urllib.request.urlopen('{url}' + target, body, timeout=60))\n"
        "print(json.dumps([fetch('/?x=a'), fetch('', b'{\"x\": 1, \"y\": [2]}'), fetch('/', b'[3]')]))\n"
    )
    same = {"nonce": nonce, "key": "v"}
    expected = [{**same, "x": "a", "y": 0}, {**same, "x": 1, "y": [2]}, {**same, "x": [3], "y": 0}]
    assert json.loads(run_client(node, namespace, calls)) == expected
    # Under traffic: a broken update changes nothing, and a good one fails no request.
    traffic = (
        "import http.client, json, time\n"
        "seen = set()\n"
        f"print('began', flush=True)\n"
        f"while '{next_nonce}' not in seen:\n"
        "    line = http.client.HTTPConnection('data-processor', 80, timeout=60)\n"
        "    line.request('GET', '/?x=1'); reply = line.getresponse(); body = reply.read()\n"
        "    assert reply.status == 200, (reply.status, body)\n"
        "    seen.add(json.loads(body)['nonce']); line.close(); time.sleep(0.02)\n"
        "print(len(seen))\n"
    )
    hosted = {"nodeSelector": {"kubernetes.io/hostname": "local"}}
    apply(node, namespace, pod("traffic", "python", "-u", "-c", traffic, container={"image": "python:3"}, **hosted))
    node.until(lambda: "began" in node.kubectl("logs", "traffic", "-n", namespace).stdout, "traffic")
    broken = resource("ModalFunction", "data-processor", **spec, code={"inline": "import no_such_module"})
    apply(node, namespace, broken)
    until_condition(node, namespace, "modalfunction/data-processor", "UpdateFailed")
    rows = get(node, namespace, "modalfunction", "data-processor")["status"]["conditions"]
    (failed,) = [row for row in rows if row["type"] == "UpdateFailed"]
    assert failed["reason"] == "HandlerNotFound"
    assert "no_such_module" in failed["message"]
    assert [row["status"] for row in rows if row["type"] == "Deployed"] == ["True"]
    apply(
        node, namespace, resource("ModalFunction", "data-processor", **spec, code={"inline": code.format(next_nonce)})
    )
    until_phase(node, namespace, "traffic", "Succeeded")
    assert ok(node, "logs", "traffic", "-n", namespace).split() == ["began", "2"]


def test_endpoint_serves_code_of_a_config_map_and_scales_without_new_containers(node, namespace, books):
    nonce = secrets.token_hex(8)
    code = f"def handler(request):\n    return '{nonce} ' + request.method + ' ' + request.path\n"
    ok(node, "create", "configmap", "code", f"--from-literal=app.py={code}", "-n", namespace)
    spec = {"handler": "app.handler", "code": {"configMapRef": {"name": "code"}}}
    apply(node, namespace, resource("ModalEndpoint", "inference-api", **spec, min_replicas=1, max_replicas=3))
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready")
    url = get(node, namespace, "modalendpoint", "inference-api")["status"]["endpoint_url"]
    fetch = f"import urllib.request\nprint(urllib.request.urlopen('{url}/a/b', timeout=60).read().decode())"
    assert run_client(node, namespace, fetch) == f"{nonce} GET /a/b\n"
    before = {row["metadata"]["uid"] for row in get(node, namespace, "pods")["items"]}
    apply(node, namespace, resource("ModalEndpoint", "inference-api", **spec, min_replicas=2, max_replicas=3))
    node.until(
        lambda: get(node, namespace, "modalendpoint", "inference-api")["status"]["ready_replicas"] == 2, "two replicas"
    )
    assert before < {row["metadata"]["uid"] for row in get(node, namespace, "pods")["items"]}


def test_endpoint_without_its_module_says_so(node, namespace):
    apply(node, namespace, resource("ModalEndpoint", "inference-api", handler="app.handler"))
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready=false")
    node.until(
        lambda: get(node, namespace, "modalendpoint", "inference-api")["status"].get("phase") == "Failed", "the failure"
    )
    (row,) = [
        row
        for row in get(node, namespace, "modalendpoint", "inference-api")["status"]["conditions"]
        if row["type"] == "Ready"
    ]
    assert row["reason"] == "HandlerNotFound"
    assert "No module named 'app'" in row["message"]
