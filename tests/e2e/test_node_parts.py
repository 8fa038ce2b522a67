"""Parts of the node on a real plane: every field of a pod, rights, probes, full volumes, daemons, and figures."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from skysail.base import clock
from skysail.cloud.provider import Features, RuntimeListing
from skysail.kube import certificates
from skysail.kube.client import kubeconfig
from skysail.kube.client.client import Client
from skysail.kube.client.http_transport import HttpTransport
from skysail.kube.events import Broadcaster
from skysail.local.addresses import CLUSTER_IP, NODE
from skysail.node.config.references import NodeInfo
from skysail.node.kubelet import Kubelet, KubeletDependencies
from skysail.node.log_store import LogStore
from skysail.node.registration.registrar import NodeDescription, NodeRegistrar
from tests.support.kubectl import TIMEOUT, apply, get, ok, pod, status, until_condition, until_phase
from tests.unit.node.probes.test_grpc_health import SERVING, SETTINGS
from tests.unit.node.sync.test_unsupported_fields import FATES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skysail.kube.certificates import KeyPair
    from tests.support.cluster import Cluster


def events(node: Cluster, namespace: str, name: str) -> dict[str, str]:
    """By reason: the last note about an object."""
    rows = get(node, namespace, "events")["items"]
    return {row["reason"]: row["message"] for row in rows if row["involvedObject"]["name"] == name}


def condition(shown: dict, name: str) -> dict:
    return next((row for row in shown.get("conditions", ()) if row["type"] == name), {})


@pytest.mark.parametrize("kind", FATES)
def test_every_field_that_this_kubernetes_knows_has_a_fate(cluster, kind):
    described = json.loads(ok(cluster, "get", "--raw", "/openapi/v3/api/v1"))
    fields = described["components"]["schemas"][f"io.k8s.api.core.v1.{kind}"]["properties"]
    assert set(FATES[kind]) == set(fields)


def test_a_pod_that_cannot_be_carried_is_told_why_and_not_run(node, namespace):
    apply(node, namespace, pod("a", "true", hostPID=True, container={"securityContext": {"privileged": True}}))
    node.until(lambda: condition(status(node, namespace, "a"), "skysail.dev/Supported"), "a condition")
    shown = status(node, namespace, "a")
    assert (shown["phase"], condition(shown, "skysail.dev/Supported")["reason"]) == ("Pending", "Unsupported")
    for text in (
        condition(shown, "skysail.dev/Supported")["message"],
        shown["containerStatuses"][0]["state"]["waiting"]["message"],
    ):
        assert "spec.hostPID: " in text
        assert "spec.containers[0].securityContext.privileged: " in text
    node.until(lambda: "Unsupported" in events(node, namespace, "a"), "an event")
    assert "spec.hostPID: " in events(node, namespace, "a")["Unsupported"]


def test_a_pod_that_can_do_without_something_runs_and_is_told(node, namespace):
    apply(node, namespace, pod("a", "true", container={"ports": [{"containerPort": 80, "hostPort": 8080}]}))
    shown = until_phase(node, namespace, "a", "Succeeded")
    told = condition(shown, "skysail.dev/Supported")
    assert (told["reason"], told["message"].split(":")[0]) == ("FieldsIgnored", "spec.containers[0].ports.hostPort")
    node.until(lambda: "FieldsIgnored" in events(node, namespace, "a"), "an event")


SAY_RIGHTS = """
echo $(id -u) $(id -g) $(grep CapEff /proc/self/status | cut -f2)
touch /here 2>/dev/null && echo root || echo no-root
touch /tmp/here 2>/dev/null && echo tmp || echo no-tmp
touch /data/here 2>/dev/null && echo data || echo no-data
sleep 1000
"""
NO_RIGHTS = "0" * 16


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"runAsUser": 1234, "runAsGroup": 2345}, ["1234 2345 " + NO_RIGHTS, "root", "tmp", "data"]),
        ({"runAsNonRoot": True}, ["65532 0 " + NO_RIGHTS, "root", "tmp", "data"]),
        ({"readOnlyRootFilesystem": True, "runAsUser": 7}, ["7 0 " + NO_RIGHTS, "no-root", "no-tmp", "data"]),
        ({"capabilities": {"drop": ["ALL"]}}, ["0 0 " + NO_RIGHTS, "root", "tmp", "data"]),
        (
            {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
            ["0 0 0000000000000400", "root", "tmp", "data"],
        ),
    ],
)
def test_a_container_has_the_rights_that_it_asks_for(node, namespace, context, said):
    main = {"securityContext": context, "volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    apply(node, namespace, pod("a", "sh", "-c", SAY_RIGHTS, container=main, volumes=volumes))
    until_condition(node, namespace, "pod/a", "Ready")
    node.until(lambda: ok(node, "logs", "a", "-n", namespace).count("\n") == 4, "four lines")
    assert ok(node, "logs", "a", "-n", namespace).splitlines() == said
    beside = ok(
        node, "exec", "a", "-n", namespace, "--", "sh", "-c", "echo $(id -u) $(id -g) $(grep CapEff /proc/self/status)"
    )
    assert beside.replace("CapEff: ", "").strip() == said[0]


def test_an_environment_runs_also_in_a_root_that_is_read_only(node, namespace):
    main = {"image": "python:3", "securityContext": {"readOnlyRootFilesystem": True, "runAsNonRoot": True}}
    apply(node, namespace, pod("a", "python", "-c", "import sys; print(sys.prefix != '/usr')", container=main))
    until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-n", namespace) == "True\n"


def test_a_pod_whose_volume_outgrows_its_limit_is_evicted(node, namespace):
    main = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]
    script = "head -c 500000 /dev/zero > /data/a; sleep 1; head -c 3000000 /dev/zero > /data/b; sleep 600"
    apply(node, namespace, pod("a", "sh", "-c", script, restart="Always", container=main, volumes=volumes))
    shown = until_phase(node, namespace, "a", "Failed")
    assert shown["reason"] == "Evicted"
    assert '"v" exceeds the limit "1Mi".' in shown["message"]
    assert condition(shown, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    node.until(lambda: "Evicted" in events(node, namespace, "a"), "an event")


SERVE = """
import socket, sys
answers = {80: b"HTTP/1.1 200 OK\\r\\n\\r\\n", 81: bytes.fromhex(sys.argv[1])}
port = int(sys.argv[2])
with socket.create_server((sys.argv[3], port)) as server:
    while True:
        line, _ = server.accept()
        line.recv(65536)
        line.sendall(answers[port])
        line.close()
"""


@pytest.mark.parametrize(
    ("port", "probe"),
    [(80, {"httpGet": {"port": 80}}), (80, {"tcpSocket": {"port": 80}}), (81, {"grpc": {"port": 81}})],
)
def test_a_pod_is_ready_when_its_probe_says_so(node, namespace, port, probe):
    """Who listens on the pod's loopback only is found by nobody, and so is not ready."""
    command = ("/usr/bin/python3", "-c", SERVE, (SETTINGS + SERVING).hex(), str(port))
    asked = {"readinessProbe": {**probe, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 600}}
    apply(node, namespace, pod("open", *command, "", container=asked))
    apply(node, namespace, pod("shut", *command, "127.0.0.1", container=asked))
    until_condition(node, namespace, "pod/open", "Ready")
    until_phase(node, namespace, "shut", "Running")
    assert condition(status(node, namespace, "shut"), "Ready")["status"] == "False"
    assert condition(status(node, namespace, "open"), "Ready")["status"] == "True"


def test_what_is_used_now_is_in_the_summary(node, namespace):
    apply(node, namespace, pod("busy", "sh", "-c", "while true; do :; done"))
    until_condition(node, namespace, "pod/busy", "Ready")

    def busy() -> dict:
        page = json.loads(ok(node, "get", "--raw", f"/api/v1/nodes/{NODE}/proxy/stats/summary"))
        rows = [row for row in page["pods"] if row["podRef"]["namespace"] == namespace]
        return rows[0]["containers"][0]["cpu"] if rows else {}

    # A sample that was taken late makes two of them wrong; the next one is right again.
    node.until(lambda: 10_000_000 < busy().get("usageNanoCores", 0) < 2 * 10**9, "the use of a busy pod")


class Cloud:
    """A provider at which nothing may be run."""

    name = "cloud"
    features = Features()

    async def list(self) -> RuntimeListing:
        return RuntimeListing(runs={}, pods={})

    async def changes(self):
        await asyncio.Event().wait()
        yield

    async def remove_sandbox(self, pod: str) -> None:
        pass


@contextmanager
def virtual_node(cluster: Cluster, name: str, folder: Path, *, port: int = 10999) -> Iterator[None]:
    """A node that stands for a cloud, kept in this process."""
    described = NodeDescription(
        name=name,
        address=CLUSTER_IP,
        port=port,
        provider_id=f"skysail://test/{name}",
        kubelet_version="v1.36.3",
        capacity={"cpu": "4", "memory": "4Gi", "pods": "10"},
        taints=({"key": "skysail.dev/virtual", "effect": "NoSchedule"},),
        is_virtual=True,
    )
    loop = asyncio.new_event_loop()

    async def run() -> None:
        transport = HttpTransport(kubeconfig.from_file(cluster.kubeconfig))
        client, rng = Client(transport), random.Random(1)
        broadcaster = Broadcaster(client, instance=name, now=clock.now)
        here = NodeInfo(name=name, address=described.address, allocatable=described.capacity, is_virtual=True)
        around = KubeletDependencies(broadcaster, time.time, clock.boottime, rng)
        kubelet = Kubelet(client, Cloud(), here, LogStore(folder), deps=around)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(NodeRegistrar(client, described, now=clock.now, rng=rng).run())
                tasks.create_task(broadcaster.run())
                tasks.create_task(kubelet.run())
        finally:
            await transport.close()

    task = loop.create_task(run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
        cluster.kubectl("delete", "node", name)


def test_a_daemon_set_rolls_out_over_machines_and_clouds(node, namespace, tmp_path):
    labels = {"app": "agent"}
    template = {"metadata": {"labels": labels}, "spec": pod("", "sleep", "600", restart="Always")["spec"]}
    template["spec"]["tolerations"] = [{"operator": "Exists"}]
    # Nodes that another test left are none of its business.
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE, "cloud.example"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    template["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    agent = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}, "spec": spec}
    with virtual_node(node, "cloud.example", tmp_path):
        node.until(lambda: "cloud.example" in ok(node, "get", "nodes", "-o", "name"), "a virtual node")
        apply(node, namespace, agent)
        node.until(
            lambda: get(node, namespace, "ds", "agent")["status"]["desiredNumberScheduled"] == 2, "both to be wanted"
        )
        ok(node, "rollout", "status", "ds/agent", "-n", namespace, TIMEOUT)
        shown = {row["spec"]["nodeName"]: row for row in get(node, namespace, "pods")["items"]}
        assert set(shown) == {NODE, "cloud.example"}
        marks = {
            name: (row["metadata"].get("annotations") or {}).get("skysail.dev/placeholder")
            for name, row in shown.items()
        }
        assert marks == {NODE: None, "cloud.example": "true"}
        assert "podIP" not in shown["cloud.example"]["status"]
        ok(node, "delete", "ds/agent", "-n", namespace, TIMEOUT)
        node.until(lambda: not get(node, namespace, "pods")["items"], "both pods to be gone")


@contextmanager
def https_server(cluster: Cluster, own: KeyPair) -> Iterator[int]:
    """Answers `ok` to everything, inside the local cluster; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    kubeconfig.load_certificate(tls, own.certificate, own.key)
    server = HTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = tls.wrap_socket(cluster.listen(), server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("is_known", [True, False])
def test_the_api_server_believes_a_node_by_its_certificate_only(cluster, tmp_path, is_known):
    stranger = certificates.certificate_authority("stranger", now=clock.now(), valid=timedelta(hours=1))
    false = certificates.server(stranger, [CLUSTER_IP], now=clock.now(), valid=timedelta(hours=1))
    with (
        https_server(cluster, cluster.certificate(CLUSTER_IP) if is_known else false) as port,
        virtual_node(cluster, "other.example", tmp_path, port=port),
    ):
        cluster.until(lambda: "other.example" in ok(cluster, "get", "nodes", "-o", "name"), "a node")
        path = "/api/v1/nodes/other.example/proxy/healthz"
        cluster.until(
            lambda: "no preferred addresses" not in cluster.kubectl("get", "--raw", path).stderr, "an address"
        )
        asked = cluster.kubectl("get", "--raw", path)
        assert (asked.stdout, "certificate" in asked.stderr) == (("ok", False) if is_known else ("", True))


LOOK_UP = """
import socket
print(*(socket.gethostbyname(name) for name in ("nobody", "nobody.default.svc.cluster.local")))
try:
    socket.create_connection(("nobody", 80), timeout=20)
except OSError as error:
    print(type(error).__name__)
"""


def test_a_shell_knows_names_as_a_pod_does_and_a_service_without_endpoints_refuses(node):
    argv = [sys.executable, "-m", "skysail", "shell", f"--home={node.home.root}", "--", sys.executable, "-c", LOOK_UP]
    ok(node, "create", "service", "clusterip", "nobody", "--tcp=80:80", "-n", "default")
    try:
        address = ok(node, "get", "service", "nobody", "-n", "default", "-o", "jsonpath={.spec.clusterIP}")
        node.until(
            lambda: inside(argv) == f"{address} {address}\nConnectionRefusedError\n", "the name, and nobody there"
        )
    finally:
        ok(node, "delete", "service", "nobody", "-n", "default")


def inside(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def test_kubectl_debug_of_a_running_pod_ends_with_the_reason(node, namespace):
    apply(node, namespace, pod("a", "sleep", "1000"))
    until_phase(node, namespace, "a", "Running")
    done = node.kubectl("debug", "a", "-n", namespace, "-i", "--image=busybox", "-c", "debugger", "--", "true")
    assert "ephemeral containers are not supported; use exec" in done.stdout + done.stderr
