"""The node's API as kubectl and the API server use it: on every protocol that may arrive, by everybody who may call."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import http.server
import json
import os
import re
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from skysail.kube import certificates
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.local import addresses
from skysail.local.control_plane import pki
from skysail.local.control_plane.flags import Component
from skysail.node.log_store import LogStore
from skysail.node.server import routes, tls
from skysail.node.server.authentication import Authenticator
from skysail.node.server.authorization import Authorizer
from skysail.node.server.backend import PodRef
from skysail.node.server.routes import AccessGate, KubeletApi
from tests.support.node_backend import ProcessBackend
from tests.support.terminal import Terminal

NODE = "served"
# Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT_SECONDS = 600.0
NAMESPACE = "node-server"
WEBSOCKET_FEATURE = "ExtendWebSocketsToKubelet"
SPDY_ONLY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
MAIN = ("sh", "-c", "echo one; echo two >&2; echo three; exec cat")
# What arrives at the node, by what the node declares and what kubectl is told to speak.
PATHS = {
    "websocket": ("declared", {}, {"websocket"}),
    "translated": ("undeclared", {}, {"spdy/3.1"}),
    "spdy": ("undeclared", SPDY_ONLY, {"spdy/3.1"}),
    "spdy-though-declared": ("declared", SPDY_ONLY, {"spdy/3.1"}),
}


class Witness(AccessGate, frozen=True):
    """The real gate, which remembers what came."""

    upgrades: list[str]

    async def check(self, request):
        self.upgrades.append(request.headers.get("Upgrade", "").lower())
        await super().check(request)


class Served:
    """The server in a thread of this process, on a socket inside the local cluster."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.listener = cluster.listen()
        self.port = self.listener.getsockname()[1]
        self.backend = ProcessBackend(LogStore(folder))
        self.do(self._start())

    async def _start(self):
        self._transport = HttpTransport(kubeconfig.from_file(self.cluster.kubeconfig))
        client = Client(self._transport)
        clock = time.monotonic
        self.gate = Witness(Authenticator(client, clock), Authorizer(client, NODE, clock), [])
        api = KubeletApi(NODE, self.backend, self.gate, metrics=lambda: b"own 1\n", clock=time.time)
        authority = (self.cluster.home.pki / "ca.crt").read_text()
        context = tls.context(self.cluster.certificate(addresses.CLUSTER_IP), authority, ssl.CERT_OPTIONAL)
        self._runner = await routes.serve(api, self.listener, context)

    async def stop_serving(self):
        await self._runner.cleanup()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_SECONDS)

    def start(self, pod, command=MAIN):
        pod_ref = PodRef(namespace=NAMESPACE, pod=pod.name, uid=pod.uid)
        return self.do(self.backend.start(pod_ref, command))

    def close(self):
        self.do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self):
        await self._runner.cleanup()
        await self.backend.close()
        await self._transport.close()
        # The API server does not close a connection whose upgrade was refused; TLS would wait half a minute for it.
        for transport in list(self._loop._transports.values()):
            transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


class Pod:
    def __init__(self, cluster, name, node):
        self.name = name
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "nodeName": node,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "any", "stdin": True}],
            },
        }
        ask(cluster, "apply", "-f", "-", stdin=json.dumps(manifest))
        status = {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "any",
                    "imageID": "any",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}},
                }
            ],
        }
        patch(cluster, "pod", name, {"status": status})
        self.uid = ask(cluster, "get", "pod", name, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}")


def ask(cluster, *arguments, stdin=None):
    done = cluster.kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def patch(cluster, kind, name, change):
    change = json.dumps(change)
    ask(cluster, "patch", kind, name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", change)


def add_node(cluster, name, port, features):
    ask(
        cluster, "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    )
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": now, "lastTransitionTime": now}
    status = {
        "addresses": [{"type": "InternalIP", "address": addresses.CLUSTER_IP}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "declaredFeatures": features,
        "conditions": [ready],
    }
    patch(cluster, "node", name, {"status": status})


@pytest.fixture(scope="module")
def served(cluster, tmp_path_factory):
    served = Served(cluster, tmp_path_factory.mktemp("logs"))
    ask(cluster, "create", "namespace", NAMESPACE)
    cluster.until(
        lambda: cluster.kubectl("get", "serviceaccount", "default", "-n", NAMESPACE).returncode == 0, "service account"
    )
    add_node(cluster, "declared", served.port, [WEBSOCKET_FEATURE])
    add_node(cluster, "undeclared", served.port, [])
    yield served
    served.close()
    for node in ("declared", "undeclared"):
        ask(cluster, "delete", "node", node)
    ask(cluster, "delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module")
def pods(cluster, served):
    pods = {node: Pod(cluster, f"on-{node}", node) for node in ("declared", "undeclared")}
    for pod in pods.values():
        served.start(pod)
    return pods


class Kubectl:
    """kubectl on one path."""

    def __init__(self, cluster, pod, env):
        self.pod = pod
        self.command = cluster.binaries.commands[Component.KUBECTL]
        cache = str(cluster.home.kubectl_cache)
        self.env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": cache, **env}

    def argv(self, *arguments):
        return [*self.command, f"--namespace={NAMESPACE}", *arguments]

    def run(self, *arguments, stdin=b""):
        return subprocess.run(
            self.argv(*arguments), env=self.env, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )

    def exec(self, *command, stdin=None):
        flags = ("-i",) if stdin is not None else ()
        return self.run("exec", *flags, self.pod.name, "--", *command, stdin=stdin or b"")

    @contextmanager
    def background(self, *arguments, **options):
        process = subprocess.Popen(
            self.argv(*arguments), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=TIMEOUT_SECONDS)


@pytest.fixture(params=PATHS)
def path(request):
    return PATHS[request.param]


@pytest.fixture
def kubectl(cluster, served, pods, path):
    """On each path; afterwards, that it was this path."""
    node, env, expected = path
    served.gate.upgrades.clear()
    yield Kubectl(cluster, pods[node], env)
    assert set(served.gate.upgrades) == expected


@pytest.fixture
def plain(cluster, served, pods):
    """For what has one path only."""
    return Kubectl(cluster, pods["declared"], {})


EXITS = [
    ("true", 0, b"", b""),
    ("echo out; echo err >&2; exit 7", 7, b"out\n", b"err\n"),
    ("kill -9 $$", 137, b"", b""),
    ("kill -TERM $$", 143, b"", b""),
    ("seq 1 20000; exit 255", 255, b"".join(b"%d\n" % n for n in range(1, 20001)), b""),
]


@pytest.mark.parametrize(("script", "code", "out", "err"), EXITS, ids=[row[0][:12] for row in EXITS])
def test_exec_brings_back_output_and_exit_code(kubectl, script, code, out, err):
    done = kubectl.exec("sh", "-c", script)
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(err)


def test_exec_takes_its_input_to_the_end(kubectl):
    data = os.urandom(3_000_000)
    done = kubectl.exec("sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a_command_that_ends_before_its_input_keeps_output_and_exit_code(kubectl):
    for _ in range(3):
        done = kubectl.exec("sh", "-c", "head -c 3; exit 9", stdin=b"x" * 5_000_000)
        assert (done.returncode, done.stdout) == (9, b"xxx"), done.stderr


def test_a_command_that_cannot_start_says_why(kubectl):
    done = kubectl.exec("no-such-program")
    assert done.returncode == 1
    assert b'exec: "no-such-program": executable file not found in $PATH' in done.stderr


def test_a_terminal_has_a_size_and_takes_ctrl_c(kubectl):
    terminal = Terminal(kubectl.argv("exec", "-it", kubectl.pod.name, "--", "env", "PS1=$ ", "sh"), kubectl.env)
    terminal.resize(101, 33)
    terminal.until(rb"[$#] $")
    terminal.ask_until(b"stty size\r", rb"33 101")
    terminal.resize(122, 44)
    terminal.ask_until(b"stty size\r", rb"44 122")
    # A program of its own: a shell that is interrupted just before it starts one may miss it.
    terminal.type(b"sh -c 'echo be\"\"gun; exec sleep 1000'\r")
    terminal.until(rb"begun")
    terminal.type(b"\x03")
    terminal.until(rb"\^C\s+[$#] $")
    terminal.type(b"echo $((6*7))\r")
    terminal.until(rb"[\r\n ]42\r")
    terminal.type(b"exit 5\r")
    assert terminal.end() == 5


def test_ten_megabytes_are_copied_there_and_back(kubectl, tmp_path):
    (tmp_path / "here").write_bytes(os.urandom(10_000_000))
    there, back = tmp_path / "there", tmp_path / "back"
    up = kubectl.run("cp", str(tmp_path / "here"), f"{kubectl.pod.name}:{there}")
    assert up.returncode == 0, up.stderr
    down = kubectl.run("cp", f"{kubectl.pod.name}:{there}", str(back))
    assert down.returncode == 0, down.stderr
    wanted = hashlib.sha256((tmp_path / "here").read_bytes()).hexdigest()
    assert [hashlib.sha256(file.read_bytes()).hexdigest() for file in (there, back)] == [wanted, wanted]


def test_attach_talks_to_the_container_until_it_ends(cluster, served, kubectl):
    served.start(kubectl.pod, ("cat",))  # which says nothing that somebody who comes early could hear
    with kubectl.background("attach", "-i", kubectl.pod.name, stdin=subprocess.PIPE) as process:
        cluster.until(lambda: served.backend.containers[kubectl.pod.uid].listeners, "somebody to be attached")
        out, _ = process.communicate(b"hello\nworld\n", timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0
    assert out == b"hello\nworld\n"
    served.start(kubectl.pod)


class _Pages(http.server.BaseHTTPRequestHandler):
    big = os.urandom(5_000_000)

    def do_GET(self):
        body = self.big if self.path == "/big" else self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def web_port():
    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def forwarded(kubectl, port):
    with kubectl.background("port-forward", f"pod/{kubectl.pod.name}", f":{port}") as process:
        local = re.search(rb"127.0.0.1:(\d+)", process.stdout.readline())
        assert local, process.stderr.read()
        yield process, int(local[1])


def fetch(port, page):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=TIMEOUT_SECONDS) as reply:
        return reply.read()


def test_port_forward_carries_many_connections(kubectl, web_port):
    with forwarded(kubectl, web_port) as (_, port):
        assert [fetch(port, f"/{n}") for n in range(10)] == [b"/%d" % n for n in range(10)]
        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(lambda n: fetch(port, f"/{n}"), range(20))) == [b"/%d" % n for n in range(20)]
        assert fetch(port, "/big") == _Pages.big


def test_a_port_where_nobody_listens_is_told_by_kubectl(kubectl):
    with forwarded(kubectl, 1) as (process, port):
        with pytest.raises((ConnectionError, urllib.error.URLError)):
            fetch(port, "/")
        said = process.stderr.read()
    assert b"error forwarding port 1 to pod" in said
    assert b"nothing listens on port 1" in said


def test_logs_take_every_option(served, plain):
    def logs(*options):
        done = plain.run("logs", plain.pod.name, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    served.start(plain.pod, ("sh", "-c", "seq 1 3; exec cat"))
    served.cluster.until(lambda: logs() == b"1\n2\n3\n", "the run before to have printed")
    served.start(plain.pod, ("sh", "-c", "seq 11 14; exec cat"))
    served.cluster.until(lambda: logs() == b"11\n12\n13\n14\n", "the container to have printed")
    assert logs("--tail=2") == b"13\n14\n"
    assert logs("--tail=0") == b""
    assert logs("--limit-bytes=4") == b"11\n1"
    assert logs("-p") == b"1\n2\n3\n"
    assert logs("--since=1h") == b"11\n12\n13\n14\n"
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert logs(f"--since-time={later}") == b""
    for line, number in zip(logs("--timestamps").splitlines(), range(11, 15), strict=True):
        assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z %d" % number, line)


def test_logs_are_followed_to_the_end_of_the_container(served, plain):
    container = served.start(plain.pod, ("sh", "-c", "echo first; read line; echo got $line"))
    with plain.background("logs", "-f", plain.pod.name) as process:
        assert process.stdout.readline() == b"first\n"
        served.do(container.talk.write(b"it\n"))
        assert process.stdout.read() == b"got it\n"
        assert process.wait(TIMEOUT_SECONDS) == 0
    served.start(plain.pod)


def test_a_previous_run_that_was_not_is_told(cluster, served, plain):
    pod = Pod(cluster, "once", "declared")
    served.start(pod)
    done = plain.run("logs", "-p", pod.name)
    assert done.returncode == 1
    assert b'previous terminated container "main" in pod "once" not found' in done.stderr


def test_a_container_that_waits_is_told(cluster, served, plain):
    pod = Pod(cluster, "waits", "declared")
    served.backend.uids[NAMESPACE, pod.name] = pod.uid
    sentence = b'container "main" in pod "waits" is waiting to start'
    for arguments in (("logs", pod.name), ("exec", pod.name, "--", "true"), ("attach", pod.name)):
        done = plain.run(*arguments)
        assert done.returncode == 1
        assert sentence in done.stderr, arguments


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_what_a_provider_cannot_do_is_told(cluster, served, pods, path):
    kubectl = Kubectl(cluster, pods[path[0]], path[1])
    able, served.backend.features = served.backend.features, type(served.backend.features)()
    try:
        done = kubectl.exec("true")
        assert done.returncode == 1
        assert b"this provider cannot run commands in a container" in done.stderr
        done = kubectl.run("attach", kubectl.pod.name)
        assert b"this provider cannot attach" in done.stderr
    finally:
        served.backend.features = able


def test_pages_through_the_proxy_of_the_api_server(cluster, served, pods):
    def page(name):
        return ask(cluster, "get", "--raw", f"/api/v1/nodes/declared/proxy/{name}")

    assert page("healthz") == "ok"
    assert page("metrics") == "own 1\n"
    assert {pod["metadata"]["name"] for pod in json.loads(page("pods"))["items"]} >= {"on-declared", "on-undeclared"}
    assert json.loads(page("runningpods/"))["kind"] == "PodList"
    summary = json.loads(page("stats/summary"))
    assert summary["node"]["cpu"]["usageCoreNanoSeconds"] == 100 * 10**9
    assert {pod["podRef"]["name"] for pod in summary["pods"]} >= {"on-declared"}
    metrics = page("metrics/resource")
    assert "node_cpu_usage_seconds_total 100.0 " in metrics
    assert (
        f'container_memory_working_set_bytes{{container="main",namespace="{NAMESPACE}",pod="on-declared"}} 1048576 '
        in metrics
    )


# --- callers

ROUTES = {
    "/exec/{pod}/main?command=true&output=1": ("GET", "POST"),
    "/attach/{pod}/main?output=1": ("GET", "POST"),
    "/portForward/{pod}": ("GET", "POST"),
    "/containerLogs/{pod}/main": ("GET",),
    "/pods": ("GET",),
    "/runningpods/": ("GET",),
    "/stats/summary": ("GET",),
    "/metrics/resource": ("GET",),
    "/metrics": ("GET",),
    "/healthz": ("GET",),
    "/configz": ("GET",),
    "/no/such/path": ("GET", "DELETE"),
}


class Caller:
    """Calls the node directly, with a certificate, a token, or nothing."""

    def __init__(self, cluster, served, *, user=None, token=None, authority=None):
        self._cluster = cluster
        self._served = served
        self._token = token
        self._tls = ssl.create_default_context(cafile=cluster.home.pki / "ca.crt")
        if user:
            authority = authority or pki.ensure(cluster.home.pki, datetime.now(UTC)).cluster.pair
            own = certificates.client(authority, user, now=datetime.now(UTC), valid=timedelta(hours=1))
            kubeconfig.load_certificate(self._tls, own.certificate, own.key)

    def call(self, method, path):
        connection = http.client.HTTPSConnection(addresses.CLUSTER_IP, self._served.port)
        raw = self._cluster.dial(self._served.port)
        connection.sock = self._tls.wrap_socket(raw, server_hostname=addresses.CLUSTER_IP)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            reply.read()
            return reply.status
        finally:
            connection.close()

    def table(self, pod):
        """The answers to every route, counted."""
        counts = {}
        for path, methods in ROUTES.items():
            for method in methods:
                status = self.call(method, path.format(pod=f"{NAMESPACE}/{pod.name}"))
                counts[status] = counts.get(status, 0) + 1
        return counts


@pytest.fixture(scope="module")
def rights(cluster, served, pods):
    ask(cluster, "create", "clusterrole", "node-stats", "--verb=get", "--resource=nodes/stats,nodes/metrics,nodes/pods")
    ask(cluster, "create", "clusterrolebinding", "node-stats", "--clusterrole=node-stats", "--user=watcher")
    ask(cluster, "create", "clusterrole", "node-proxy", "--verb=get,create", "--resource=nodes/proxy")
    ask(
        cluster,
        "create",
        "clusterrolebinding",
        "node-proxy",
        "--clusterrole=node-proxy",
        f"--serviceaccount={NAMESPACE}:default",
        "--user=prober",
    )
    # The API server learns of a right later, and the node remembers for a while what it was refused.
    for user, part in (
        ("watcher", "stats"),
        ("prober", "proxy"),
        (f"system:serviceaccount:{NAMESPACE}:default", "proxy"),
    ):
        asks = ("auth", "can-i", "get", "nodes", f"--subresource={part}", f"--as={user}")
        cluster.until(lambda asks=asks: cluster.kubectl(*asks).returncode == 0, f"{user} to have its right")
    yield
    ask(cluster, "delete", "clusterrole,clusterrolebinding", "node-stats", "node-proxy")


ALL = sum(len(methods) for methods in ROUTES.values())


def test_callers_without_rights_are_refused_on_every_route(cluster, served, pods, rights):
    pod = pods["declared"]
    stranger = certificates.certificate_authority("stranger", now=datetime.now(UTC), valid=timedelta(hours=1))
    assert Caller(cluster, served).table(pod) == {401: ALL}
    assert Caller(cluster, served, token="invented").table(pod) == {401: ALL}
    assert Caller(cluster, served, user="nobody-special").table(pod) == {403: ALL}
    forged = Caller(cluster, served, user="system:admin", authority=stranger)
    for path in ROUTES:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            forged.call("GET", path)


def test_a_right_opens_its_own_routes_only(cluster, served, pods, rights):
    watcher = Caller(cluster, served, user="watcher")
    # stats, both metrics, pods and running pods; nothing else.
    assert watcher.table(pods["declared"]) == {200: 5, 403: ALL - 5}
    token = ask(cluster, "create", "token", "default", "-n", NAMESPACE).strip()
    for caller in (Caller(cluster, served, token=token), Caller(cluster, served, user="prober")):
        # 400: exec, attach and port-forward pass the gate, and then lack an upgrade. 404: no such pages.
        assert caller.call("GET", "/healthz") == 200
        assert caller.call("GET", f"/containerLogs/{NAMESPACE}/on-declared/main") == 200
        assert caller.call("POST", f"/portForward/{NAMESPACE}/on-declared") == 400
        assert caller.call("GET", "/stats/summary") == 403
        assert caller.call("DELETE", "/pods") == 403


def test_the_users_of_a_node_that_stops_are_told(cluster, tmp_path, served, pods):
    """kubectl takes silence on the error stream for success, so a fault must be said."""
    other = Served(cluster, tmp_path)
    for path, (node, _, _) in PATHS.items():
        name = f"stops-{path}"
        add_node(cluster, name, other.port, [WEBSOCKET_FEATURE] if node == "declared" else [])
        pod = Pod(cluster, name, name)
        other.start(pod)
    started = {}
    try:
        for path, (_, env, _) in PATHS.items():
            kubectl = Kubectl(cluster, Pod(cluster, f"stops-{path}", f"stops-{path}"), env)
            started[path] = subprocess.Popen(
                kubectl.argv("exec", kubectl.pod.name, "--", "sh", "-c", "echo begun; exec sleep 1000"),
                env=kubectl.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert started[path].stdout.readline() == b"begun\n"
        other.do(other.stop_serving())
        for path, process in started.items():
            _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
            assert (path, process.returncode) == (path, 1)
            assert b"the node is shutting down" in errors
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.communicate()
        other.close()
        for path in PATHS:
            ask(cluster, "delete", "node", f"stops-{path}")
