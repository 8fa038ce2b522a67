"""Services of pods at simulated clouds on the real plane: pods of this cluster reach them through the bridge."""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
from typing import TYPE_CHECKING

import pytest

from skysail.app import manifests
from skysail.local.addresses import CLUSTER_IP
from skysail.local.cluster.supervisor import Unit
from tests.support import documents
from tests.support.clouds import NODES, Books, at, claims, is_bridge_ready, let_go, start_bridge, start_operator
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

# Answers with a hash of its secret and the path, and echoes the body of a POST.
SERVER = """
import hashlib, http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(hashlib.sha256((os.environ["NONCE"] + self.path).encode()).hexdigest().encode())
    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
# No HTTP: reads to the end of the input, then answers with its secret and the length of the input.
TCP_SERVER = """
import os, socket, threading
def serve(connection):
    size = 0
    while data := connection.recv(65536): size += len(data)
    connection.sendall(f"{os.environ['NONCE']} {size}".encode()); connection.close()
listener = socket.create_server(("0.0.0.0", 7000))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""


# Address of a second bridge. A bridge's ports are the same everywhere, so each one needs an address of its own.
SECOND_HOST = "10.244.255.200"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """An operator and two bridges."""
    cluster.start_agent()
    start_operator(cluster, restart=True, flags=(f"--bridge-address={CLUSTER_IP},{SECOND_HOST}",))
    start_bridge(cluster)
    address = ("ip", "address", "replace", f"{SECOND_HOST}/32", "dev", "lo")
    cluster.control.start_unit(Unit(name="second-address", argv=address, restart=False))
    start_bridge(cluster, "second-bridge", host=SECOND_HOST)
    cluster.until_asking()
    apply(cluster, "default", manifests.default_policy())
    yield cluster
    cluster.stop("bridge")
    cluster.stop("second-bridge")
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
        books.check()
        let_go(node, name)
        books.until_let_go(name)


@pytest.fixture
def other_namespace(node: Cluster) -> Iterator[str]:
    with fresh_namespace(node) as name:
        yield name
        let_go(node, name)


def server(name: str, nonce: str, *, program: str = SERVER, port: int = 8000, cloud: str = "modal") -> dict:
    """A pod at a cloud, ready when its server listens."""
    container = {
        "image": "python:3",
        "env": [{"name": "NONCE", "value": nonce}],
        "ports": [{"name": "main", "containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }
    manifest = at(cloud, pod(name, "python", "-u", "-c", program, container=container))
    manifest["metadata"]["labels"] = {"app": name}
    return manifest


def service(name: str, **spec: object) -> dict:
    wanted = {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "main"}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": wanted}


def run_client(node: Cluster, namespace: str, script: str, name: str = "client") -> str:
    """Run a program in a pod on node `local`. Returns its output."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": "local"}}
    apply(node, namespace, pod(name, "python", "-u", "-c", script, container={"image": "python:3"}, **spec))
    until_phase(node, namespace, name, "Succeeded")
    printed = ok(node, "logs", name, "-n", namespace)
    ok(node, "delete", "pod", name, "-n", namespace, TIMEOUT)
    return printed


def slices(node: Cluster, namespace: str) -> list[dict]:
    own = ("-l", "endpointslice.kubernetes.io/managed-by=skysail.dev")
    return get(node, namespace, "endpointslices", *own)["items"]


def until_routed(node: Cluster, namespace: str, count: int = 1) -> list[dict]:
    def are_ready() -> bool:
        found = slices(node, namespace)
        return len(found) == count and all(row["endpoints"][0]["conditions"]["ready"] for row in found)

    node.until(are_ready, f"{count} ready slices")
    return slices(node, namespace)


def digest(nonce: str, path: str) -> str:
    return hashlib.sha256(f"{nonce}{path}".encode()).hexdigest()


def test_bridge_service_of_pods_at_two_clouds_answers_pods_of_this_cluster(node, namespace):
    nonces = {cloud: secrets.token_hex(16) for cloud in NODES}
    for cloud, nonce in nonces.items():
        manifest = server(f"web-{cloud}", nonce, cloud=cloud)
        manifest["metadata"]["labels"] = {"app": "web"}
        apply(node, namespace, manifest)
    apply(node, namespace, service("web"))
    for row in until_routed(node, namespace, 2):
        assert 20000 <= row["ports"][0]["port"] <= 29999
        assert row["metadata"]["ownerReferences"][0]["kind"] == "Service"
    fetch = (
        "import urllib.request\n"
        "for n in range(4): print(urllib.request.urlopen(f'http://web/{n}', timeout=60).read().decode())\n"
        f"big = b'x' * 5_000_000\n"
        f"print(urllib.request.urlopen('http://web.{namespace}.svc.cluster.local/', data=big).read() == big)\n"
    )
    printed = run_client(node, namespace, fetch).split()
    for number, line in enumerate(printed[:4]):
        assert line in {digest(nonce, f"/{number}") for nonce in nonces.values()}
    assert printed[4] == "True", "a large body comes back"
    both = [digest(nonce, f"/{number}") for nonce in nonces.values() for number in range(4)]
    assert len({both.index(line) // 4 for line in printed[:4]}) == 2, "both pods are used"
    ok(node, "delete", "pod", "web-modal", "web-runpod", "-n", namespace, TIMEOUT)
    node.until(lambda: slices(node, namespace) == [], "no slices without pods")
    ok(node, "delete", "service", "web", "-n", namespace)


def test_bridge_plain_tcp_passes_with_half_closed_connections(node, namespace):
    nonce = secrets.token_hex(16)
    apply(node, namespace, server("tcp", nonce, program=TCP_SERVER, port=7000))
    apply(node, namespace, service("tcp", ports=[{"port": 5432, "targetPort": 7000}]))
    until_routed(node, namespace)
    dial = (
        "import socket\n"
        "line = socket.create_connection(('tcp', 5432), timeout=60)\n"
        "line.sendall(b'y' * 3_000_000); line.shutdown(socket.SHUT_WR)\n"
        "print(b''.join(iter(lambda: line.recv(65536), b'')).decode())\n"
    )
    assert run_client(node, namespace, dial) == f"{nonce} 3000000\n"
    pages = [node.get("/metrics", 8083, host) for host in (CLUSTER_IP, SECOND_HOST)]
    assert [status for status, _ in pages] == [200, 200]
    page = "".join(text for _, text in pages).replace("3000000.0", "3e+06")
    labels = f'namespace="{namespace}",owner="tcp",port="7000"'
    assert f'skysail_bridge_bytes_total{{direction="in",{labels}}} 3e+06' in page
    assert f'skysail_bridge_requests_total{{namespace="{namespace}",outcome="ok",owner="tcp",port="7000"}} 1.0' in page
    assert f"skysail_bridge_connect_seconds_count{{{labels}}} 1.0" in page
    assert nonce not in node.log("bridge") + node.log("second-bridge"), "no content in logs"


def test_bridge_killed_under_traffic_fails_only_open_connections(node, namespace):
    nonce = secrets.token_hex(16)
    apply(node, namespace, server("web", nonce), service("web"))
    until_routed(node, namespace)
    # Each request is repeated on a broken connection, as a client does with idempotent methods. Others are not.
    traffic = (
        "import hashlib, http.client, os\n"
        "broken = 0\n"
        "def fetch(path):\n"
        "    global broken\n"
        "    while True:\n"
        "        try:\n"
        "            line = http.client.HTTPConnection('web', 80, timeout=60); line.request('GET', path)\n"
        "            reply = line.getresponse(); return reply.status, reply.read().decode()\n"
        "        except (OSError, http.client.HTTPException): broken += 1\n"
        "print('began', flush=True)\n"
        "n = 0\n"
        "while n < 300 or not os.path.exists('/tmp/end'):\n"
        "    status, body = fetch(f'/{n}')\n"
        f"    expected = hashlib.sha256(f'{nonce}/{{n}}'.encode()).hexdigest()\n"
        "    assert (status, body) == (200, expected), (n, status, body)\n"
        "    n += 1\n"
        "print('broken', broken)\n"
    )
    spec = {"nodeSelector": {"kubernetes.io/hostname": "local"}}
    apply(node, namespace, pod("client", "python", "-u", "-c", traffic, container={"image": "python:3"}, **spec))
    node.until(lambda: "began" in node.kubectl("logs", "client", "-n", namespace).stdout, "traffic")
    before = node.unit("bridge").restarts
    node.signal("bridge", signal.SIGKILL)
    node.until(lambda: node.unit("bridge").restarts > before and is_bridge_ready(node), "the next bridge")
    ok(node, "exec", "client", "-n", namespace, "--", "touch", "/tmp/end")
    until_phase(node, namespace, "client", "Succeeded")
    said = ok(node, "logs", "client", "-n", namespace).split()
    # The one request that was open may break. New connections go to the other bridge.
    assert said in (["began", "broken", "0"], ["began", "broken", "1"])


def test_bridge_tenants_who_edit_slices_get_no_traffic_of_others(node, namespace, other_namespace):
    nonces = {name: secrets.token_hex(16) for name in (namespace, other_namespace)}
    for name, nonce in nonces.items():
        apply(node, name, server("web", nonce), service("web"))
    (own,), (other,) = until_routed(node, namespace), until_routed(node, other_namespace)
    assert own["ports"][0]["port"] != other["ports"][0]["port"]
    # The tenant of `namespace` claims the other one's port, its name, and its pod.
    forged = {**own, "ports": other["ports"], "endpoints": other["endpoints"]}
    ok(node, "replace", "-n", namespace, "-f", "-", stdin=json.dumps(forged))
    stranger = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "forged", "labels": dict(own["metadata"]["labels"])},
        "addressType": "IPv4",
        "endpoints": own["endpoints"],
        "ports": other["ports"],
    }
    apply(node, namespace, stranger)
    fetch = "import urllib.request\nprint(urllib.request.urlopen('http://web/a', timeout=60).read().decode())"
    for _ in range(3):
        assert run_client(node, other_namespace, fetch) == digest(nonces[other_namespace], "/a") + "\n"
    node.until(
        lambda: (
            {row["ports"][0]["port"] for row in slices(node, namespace) if row["metadata"]["name"] != "forged"}
            == {own["ports"][0]["port"]}
        ),
        "the slice to be restored",
    )
    (claim,) = claims(node, other_namespace)
    assert [entry["port"] for entry in claim["status"]["bridgePorts"]] == [other["ports"][0]["port"]]
    ok(node, "delete", "service,pod", "web", "-n", other_namespace, TIMEOUT)


# Answers with its rank and a secret.
RANK_SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(f"{os.environ['NONCE']} {sys.argv[1]}".encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 6006), Handler).serve_forever()
"""


def test_bridge_modal_job_with_tunnel_and_a_service_of_one_rank(node, namespace):
    nonce = secrets.token_hex(16)
    job = {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "metadata": {"name": "pair"},
        "spec": {
            "image": "python:3",
            "command": ["python3", "-c", RANK_SERVER, "{rank}"],
            "memory": "64Mi",
            "env": {"NONCE": nonce},
            "replicas": 2,
            "enable_i6pn": True,
            "tunnel_enabled": True,
            "tunnel_port": 6006,
        },
    }
    rank = {"job-name": "pair-modaljob-worker-0", "batch.kubernetes.io/job-completion-index": "1"}
    apply(node, namespace, job, service("second", selector=rank, ports=[{"port": 80, "targetPort": 6006}]))
    # Two ports of two tunnels, and the Service of the second rank.
    until_routed(node, namespace, 5)
    node.until(lambda: get(node, namespace, "modaljob", "pair")["status"].get("tunnel_url"), "the URL of the tunnel")
    url = get(node, namespace, "modaljob", "pair")["status"]["tunnel_url"]
    assert ".svc.cluster.local" in url
    (claim,) = claims(node, namespace)
    assert [(row.get("rank", 0), row["targetPort"]) for row in claim["status"]["bridgePorts"]] == [(0, 6006), (1, 6006)]
    fetch = (
        "import time, urllib.request\n"
        "def fetch(url):\n"
        "    while True:\n"
        "        try: return urllib.request.urlopen(url, timeout=60).read().decode()\n"
        "        except OSError: time.sleep(0.1)\n"  # no readiness probe: the program may not listen yet
        f"print(fetch({url!r}), *(fetch('http://second') for _ in range(4)))\n"
    )
    assert run_client(node, namespace, fetch).split() == [nonce, "0", *[nonce, "1"] * 4]
    ok(node, "delete", "modaljob", "pair", "-n", namespace, TIMEOUT)
    node.until(lambda: slices(node, namespace) == [], "no slices without pods")


def test_bridge_deployment_offloaded_whole_answers_and_its_node_tells_what_it_knows(node, namespace):
    nonce = secrets.token_hex(16)
    template = server("web", nonce)
    spec = {**template["spec"], "restartPolicy": "Always"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec},
        },
    }
    apply(node, namespace, deployment, service("web"))
    until_routed(node, namespace, 2)
    fetch = "import urllib.request\nprint(urllib.request.urlopen('http://web/a', timeout=60).read().decode())"
    assert run_client(node, namespace, fetch) == digest(nonce, "/a") + "\n"
    pages = {
        page: ok(node, "get", "--raw", f"/api/v1/nodes/{NODES['modal']}/proxy/{page}")
        for page in ("stats/summary", "runningpods/", "metrics/resource")
    }
    names = {row["metadata"]["name"] for row in get(node, namespace, "pods", "-l", "app=web")["items"]}
    running = [row["metadata"] for row in json.loads(pages["runningpods/"])["items"]]
    assert names == {row["name"] for row in running if row["namespace"] == namespace}
    shown = {row["podRef"]["name"]: row for row in json.loads(pages["stats/summary"])["pods"]}
    assert names <= shown.keys()
    assert all("startTime" in shown[name] and "cpu" not in shown[name] for name in names), "unknown is not zero"
    for name in names:
        labels = f'{{container="main",namespace="{namespace}",pod="{name}"}}'
        assert f"container_start_time_seconds{labels}" in pages["metrics/resource"]
    assert "resource_scrape_error 0" in pages["metrics/resource"]
    top = ok(node, "top", "node")
    assert NODES["modal"] in top
    assert "<unknown>" in top
    ok(node, "delete", "deployment", "web", "-n", namespace, TIMEOUT)
    node.until(lambda: slices(node, namespace) == [], "no slices without pods")


def test_bridge_examples_of_the_document_answer(node, namespace):
    kinds = {"Pod", "Service"}
    shown = [found for page, found in documents.manifests() if "services.md" in page and found["kind"] in kinds]
    assert [found["metadata"]["name"] for found in shown] == ["hello", "hello", "train"]
    apply(node, namespace, *shown)
    until_routed(node, namespace, 3)
    fetch = (
        "import time, urllib.request\n"
        "def fetch(url):\n"
        "    while True:\n"
        "        try: return urllib.request.urlopen(url, timeout=60).status\n"
        "        except OSError: time.sleep(0.1)\n"  # no readiness probe: the program may not listen yet
        "print(fetch('http://hello'), fetch('http://train-tunnel'), fetch('http://train-tunnel:6006'))\n"
    )
    assert run_client(node, namespace, fetch) == "200 200 200\n"


def test_bridge_headless_service_says_why_it_leads_nowhere(node, namespace):
    apply(node, namespace, server("web", "n"), service("web", clusterIP="None"))
    until_condition(node, namespace, "pod/web", "Ready")
    until_condition(node, namespace, "service/web", "skysail.dev/CloudEndpoints=false")
    (row,) = get(node, namespace, "service", "web")["status"]["conditions"]
    assert row["reason"] == "HeadlessService"
    assert "clusterIP: None" in row["message"]
    assert slices(node, namespace) == []
    node.until(
        lambda: "CloudEndpointsFailed" in ok(node, "get", "events", "-n", namespace), "an event about the Service"
    )


@pytest.mark.parametrize("how", ["tunnel", "function"])
def test_bridge_tunnel_reaches_the_pod_by_a_service_of_its_own(node, namespace, how):
    nonce = secrets.token_hex(16)
    manifest = server("p", nonce, port=8000)
    asked = {"tunnel": "true", "tunnel-port": "8000"} if how == "tunnel" else {"workload-type": "function"}
    annotations = {f"modal-operator.io/{name}": value for name, value in asked.items()}
    manifest["metadata"] = {"name": "p", "annotations": annotations}
    apply(node, namespace, manifest)
    until_routed(node, namespace, 2)
    url = get(node, namespace, "pod", "p")["metadata"]["annotations"]["modal-operator.io/tunnel-url"]
    assert url == f"http://p-tunnel.{namespace}.svc.cluster.local"
    fetch = f"import urllib.request\nprint(urllib.request.urlopen('{url}/x', timeout=60).read().decode())"
    assert run_client(node, namespace, fetch) == digest(nonce, "/x") + "\n"
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    node.until(lambda: "p-tunnel" not in ok(node, "get", "services", "-n", namespace), "no Service without its pod")
