"""ModalEndpoints and ModalFunctions as deployed Apps: the SDK in the operator, and the stand-in for the service."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from skysail.app import stand_ins
from skysail.cloud.simulated import billing
from skysail.local import addresses
from skysail.local.cluster.supervisor import Unit
from skysail.local.control_plane import credentials
from tests.e2e.test_endpoints import resource, run_client
from tests.e2e.test_modal import NODE, flags, is_node_ready, rows
from tests.support.clouds import claims, is_bridge_ready
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

LOCAL = {"nodeSelector": {"kubernetes.io/hostname": "local"}}


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    env = dict(stand_ins.environment(cluster.home, "modal"))
    cluster.start_operator(flags=flags(cluster), env=env, restart=True)
    login = credentials.inside_path(cluster.home, "bridge")
    options = (f"--kubeconfig={login}", f"--host={addresses.CLUSTER_IP}", "--drain-seconds=0")
    argv = (sys.executable, "-P", "-m", "skysail", "bridge", *options)
    cluster.control.start_unit(Unit(name="bridge", argv=argv, env=env))
    cluster.until(lambda: is_bridge_ready(cluster), "the bridge to be ready")
    cluster.until(lambda: is_node_ready(cluster), "node modal.com to be ready")
    cluster.until_asking()
    yield cluster
    cluster.stop("bridge")
    cluster.stop("operator")
    cluster.remove_agent()
    ok(cluster, "delete", "node", NODE, "--ignore-not-found")


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
        ok(node, "delete", "modalfunctions,modalendpoints", "--all", "-n", name, TIMEOUT)
        node.until(lambda: claims(node, name) == [], f"the claims of {name} to be gone")
        node.until(lambda: live_apps(node) == [], "all Apps to be stopped")
        node.until(lambda: billing.billable(rows(node)) == (), "all containers to be ended")


def live_apps(node: Cluster) -> list[str]:
    """Names of the Apps of the account, as an unmodified SDK lists them."""
    script = "import modal; print('\\n'.join(app.name for app in modal.Environment.from_context().apps.list()))"
    return [line for line in run_sdk(node, script).split() if line.startswith("ow-")]


def run_sdk(node: Cluster, script: str) -> str:

    env = {**os.environ, **stand_ins.environment(node.home, "modal")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def condition(node: Cluster, namespace: str, what: str, type_: str) -> dict:
    found = get(node, namespace, *what.split("/"))["status"]["conditions"]
    return next(row for row in found if row["type"] == type_)


def test_function_and_endpoint_are_apps_that_survive_updates_under_load(node, namespace):
    nonce, next_nonce = secrets.token_hex(8), secrets.token_hex(8)
    code = "def process_data(x='', y=0):\n    return {{'nonce': '{}', 'x': x, 'y': y}}\n"
    spec = {"handler": "processor.process_data", "timeout": 60, "concurrency": 4, "env": {"KEY": "v"}}

    def function(text: str) -> dict:
        return resource("ModalFunction", "data-processor", **spec, code={"inline": text})

    apply(node, namespace, function(code.format(nonce)))
    server = {"handler": "serve", "port": 8123, "command": ["python", "-m", "http.server", "8123"]}
    apply(node, namespace, resource("ModalEndpoint", "inference-api", **server, min_replicas=0, max_replicas=2))
    until_condition(node, namespace, "modalfunction/data-processor", "Deployed")
    shown = get(node, namespace, "modalfunction", "data-processor")["status"]
    assert shown["function_url"].startswith("https://127.0.0.1:")
    assert shown["modal_app_id"].startswith("ap-")
    url = f"http://data-processor.{namespace}.svc.cluster.local"
    calls = (
        "import json, urllib.request, urllib.error\n"
        f"def fetch(target, body=None): return json.load(urllib.request.urlopen('{url}' + target, body, timeout=60))\n"
        "print(json.dumps([fetch('/?x=a'), fetch('', b'{\"x\": 1, \"y\": [2]}'), fetch('/', b'[3]')]))\n"
    )
    expected = [{"x": "a", "y": 0}, {"x": 1, "y": [2]}, {"x": [3], "y": 0}]
    assert json.loads(run_client(node, namespace, calls)) == [{"nonce": nonce, **row} for row in expected]
    traffic = (
        "import http.client, json, time\n"
        "seen = set()\n"
        "print('began', flush=True)\n"
        f"while '{next_nonce}' not in seen:\n"
        "    line = http.client.HTTPConnection('data-processor', 80, timeout=60)\n"
        "    line.request('GET', '/?x=1'); reply = line.getresponse(); body = reply.read()\n"
        "    assert reply.status == 200, (reply.status, body)\n"
        "    seen.add(json.loads(body)['nonce']); line.close(); time.sleep(0.02)\n"
        "print(len(seen))\n"
    )
    apply(node, namespace, pod("traffic", "python", "-u", "-c", traffic, container={"image": "python:3"}, **LOCAL))
    node.until(lambda: "began" in node.kubectl("logs", "traffic", "-n", namespace).stdout, "traffic")
    apply(node, namespace, function("import no_such_module"))
    until_condition(node, namespace, "modalfunction/data-processor", "UpdateFailed")
    failed = condition(node, namespace, "modalfunction/data-processor", "UpdateFailed")
    assert failed["reason"] == "HandlerNotFound"
    assert "no_such_module" in failed["message"]
    assert condition(node, namespace, "modalfunction/data-processor", "Deployed")["status"] == "True"
    apply(node, namespace, function(code.format(next_nonce)))
    until_phase(node, namespace, "traffic", "Succeeded")
    assert ok(node, "logs", "traffic", "-n", namespace).split() == ["began", "2"]
    assert get(node, namespace, "modalfunction", "data-processor")["status"]["function_url"] == shown["function_url"]
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready")
    listing = "import urllib.request\nprint(urllib.request.urlopen('http://inference-api/', timeout=60).status)"
    assert run_client(node, namespace, listing) == "200\n"
    node.until(lambda: len(live_apps(node)) == 2, "one App for each object")


def test_endpoint_scales_without_a_deploy(node, namespace):
    nonce = secrets.token_hex(8)
    code = {"inline": f"import os\ndef handler(request):\n    return '{nonce} ' + os.environ['MODAL_TASK_ID']\n"}

    def endpoint(least: int, most: int) -> dict:
        return resource(
            "ModalEndpoint", "inference-api", handler="app.handler", code=code, min_replicas=least, max_replicas=most
        )

    apply(node, namespace, endpoint(1, 1))
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready")
    before = get(node, namespace, "modalendpoint", "inference-api")["status"]
    fetch = "import urllib.request\nprint(urllib.request.urlopen('http://inference-api/', timeout=60).read().decode())"
    first = run_client(node, namespace, fetch)
    assert first.startswith(nonce)
    assert {claim["spec"]["members"] for claim in claims(node, namespace)} == {1}
    apply(node, namespace, endpoint(1, 3))
    node.until(
        lambda: {claim["spec"]["members"] for claim in claims(node, namespace)} == {3}, "the claim of three containers"
    )
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready")
    # The same container answers: nothing was deployed again.
    assert run_client(node, namespace, fetch) == first
    after = get(node, namespace, "modalendpoint", "inference-api")["status"]
    assert (after["endpoint_url"], after["modal_app_id"]) == (before["endpoint_url"], before["modal_app_id"])
