"""ModalEndpoints and ModalFunctions as deployed Apps: the SDK in the operator, and the stand-in for the service."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import ssl
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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

SAMPLES = Path(__file__).parents[2] / "config" / "samples"
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


# Ten callers send five requests a second each, on a new connection every time. A caller ends with its first failed
# request after the file `/tmp/deleting` exists. Replies that differ from the one before are printed.
TRAFFIC = """
import http.client, os, threading, time
count, until, failures, last = 0, 0.0, [], ""
lock = threading.Lock()
def fetch():
    line = http.client.HTTPConnection("inference-api", 80, timeout=60)
    line.request("GET", "/"); reply = line.getresponse(); body = reply.read().decode(); line.close()
    assert reply.status == 200, (reply.status, body)
    return body
def call():
    global count, until, last
    due = time.monotonic()
    while True:
        time.sleep(max(0.0, due - time.monotonic())); due += 0.2
        try: body = fetch()
        except Exception as error:
            if os.path.exists("/tmp/deleting"): return
            failures.append(repr(error)); continue
        with lock:
            count += 1
            if body != last: print("saw", body, flush=True)
            last, until = body, time.monotonic()
began = time.monotonic()
callers = [threading.Thread(target=call) for _ in range(10)]
for caller in callers: caller.start()
for caller in callers: caller.join()
print("requests", count, "seconds", int(until - began), "failed", len(failures), *failures[:3])
"""


@pytest.mark.on_demand
def test_endpoint_updated_rolled_back_and_scaled_under_traffic_fails_no_request(node, namespace, capsys):
    nonce, next_nonce = secrets.token_hex(8), secrets.token_hex(8)

    def endpoint(code: str, most: int = 2) -> dict:
        spec = {"handler": "app.handler", "code": {"inline": code}, "min_replicas": 1, "max_replicas": most}
        return resource("ModalEndpoint", "inference-api", **spec)

    def seen(text: str) -> int:
        return node.kubectl("logs", "traffic", "-n", namespace).stdout.count(f"saw {text}\n")

    good, better = (f"def handler(request):\n    return '{text}'\n" for text in (nonce, next_nonce))
    apply(node, namespace, endpoint(good))
    until_condition(node, namespace, "modalendpoint/inference-api", "Ready")
    apply(node, namespace, pod("traffic", "python", "-u", "-c", TRAFFIC, container={"image": "python:3"}, **LOCAL))
    node.until(lambda: seen(nonce) > 0, "traffic")
    apply(node, namespace, endpoint(better))
    node.until(lambda: seen(next_nonce) > 0, "the update to be served")
    apply(node, namespace, endpoint("import no_such_module"))
    until_condition(node, namespace, "modalendpoint/inference-api", "UpdateFailed")
    before = seen(nonce)
    apply(node, namespace, endpoint(good))
    node.until(lambda: seen(nonce) > before, "the first revision to be served again")
    until_condition(node, namespace, "modalendpoint/inference-api", "UpdateFailed=false")
    apply(node, namespace, endpoint(good, most=3))
    node.until(lambda: {row["spec"]["members"] for row in claims(node, namespace)} == {3}, "the claim of three")
    ok(node, "exec", "traffic", "-n", namespace, "--", "touch", "/tmp/deleting")
    ok(node, "delete", "modalendpoint", "inference-api", "-n", namespace, TIMEOUT)
    until_phase(node, namespace, "traffic", "Succeeded")
    summary = ok(node, "logs", "traffic", "-n", namespace).splitlines()[-1]
    with capsys.disabled():
        print(f"\n{summary}")  # noqa: T201 (the result)
    assert summary.endswith(" failed 0")


def test_manifests_of_the_modal_operator_answer_at_their_service_and_url(node):
    nonce = secrets.token_hex(8)
    code = (
        "import hashlib, os\n"
        "def {}:\n"
        "    text = '{}' + os.environ['{}']\n"
        "    return {{'hash': hashlib.sha256(text.encode()).hexdigest()}}\n"
    )
    sources = {
        "modalendpoint": ("inference-api", code.format("handler(request)", nonce, "MODEL_PATH")),
        "modalfunction": ("data-processor", code.format("process()", nonce, "LOG_LEVEL")),
    }
    for kind, (_, text) in sources.items():
        # The manifest is applied byte by byte; its spec comes last, so the code is appended to it.
        written = (SAMPLES / f"modal_v1alpha1_{kind}.yaml").read_text()
        code_field = f"  code: {json.dumps({'inline': text})}\n"
        ok(node, "apply", "--validate=strict", "-f", "-", stdin=written + code_field)
    add_image(node, "team/client", "requests")
    try:
        until_condition(node, "default", "modalfunction/data-processor", "Deployed")
        call = (
            "import requests\n"
            'response = requests.get("http://data-processor.default.svc.cluster.local")\n'
            "print(response.json()['hash'])\n"
        )
        assert run_client(node, "default", call, image="team/client") == f"{digest(nonce + 'INFO')}\n"
        until_condition(node, "default", "modalendpoint/inference-api", "Ready")
        url = ok(node, "get", "modalendpoint", "inference-api", "-o", "jsonpath={.status.endpoint_url}")
        assert get_by_url(node, url, {})[0] == 401, "not open to the internet"
        expected = {"hash": digest(nonce + "/models/latest")}
        status, body = get_by_url(node, url, proxy_token(node))
        assert (status, json.loads(body)) == (200, expected)
    finally:
        for kind, (name, _) in sources.items():
            ok(node, "delete", kind, name, "-n", "default", TIMEOUT)
    node.until(lambda: claims(node, "default") == [], "the claims to be gone")
    node.until(lambda: live_apps(node) == [], "all Apps to be stopped")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def add_image(node: Cluster, name: str, package: str) -> None:
    program = str(Path(sys.executable).with_name("skysail"))
    command = [program, "image", "add", name, "--with", package, "--home", str(node.home.root)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def proxy_token(node: Cluster) -> dict[str, str]:
    """Headers of a caller with a proxy token of the workspace, as a user makes one."""
    script = (
        "import modal; token = modal.Workspace.from_context().proxy_tokens.create(name='caller')\n"
        "print(token.token_id, token.token_secret)"
    )
    token_id, secret = run_sdk(node, script).split()
    return {"Modal-Key": token_id, "Modal-Secret": secret}


def get_by_url(node: Cluster, url: str, headers: dict[str, str]) -> tuple[int, str]:
    """Request a URL of the stand-in from outside of the local cluster."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    trust = ssl.create_default_context(cafile=str(stand_ins.ca_file(node.home)))
    line = HTTPConnection(place.hostname, place.port)
    line.sock = trust.wrap_socket(node.dial(place.port, place.hostname), server_hostname=place.hostname)
    try:
        line.request("GET", "/", headers=headers)
        reply = line.getresponse()
        return reply.status, reply.read().decode()
    finally:
        line.close()
