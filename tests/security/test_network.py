"""Pods of a tenant against the network of the cluster: its ports and sockets, its addresses, and its own network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from skysail.app.local_cluster import OPERATOR_PORTS
from skysail.local.addresses import CLUSTER_IP
from skysail.local.control_plane.flags import Component
from skysail.local.errors import Refused
from skysail.local.network import host_network
from tests.security.samples import ON_DEMAND
from tests.support import arp
from tests.support.clouds import at
from tests.support.kubectl import get, pod, until_condition, until_phase

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.tenant import Tenant

PYTHON = {"image": "python:3"}
SLEEP = ("sleep", "1000")

# Tries each row of its argument, and prints what came of it: the status of an answer, or the error.
KNOCK = """
import http.client, json, socket, ssl, sys
trusting = ssl._create_unverified_context()
for name, kind, where, method, path, headers in json.loads(sys.argv[1]):
    try:
        if kind == "unix":
            line = socket.socket(socket.AF_UNIX)
            line.connect(where.replace("@", "\\0"))
            said = "connected"
        elif kind == "tcp":
            socket.create_connection((where[0], where[1]), 10).close()
            said = "connected"
        else:
            make = http.client.HTTPSConnection if kind == "https" else http.client.HTTPConnection
            options = {"context": trusting} if kind == "https" else {}
            connection = make(where[0], where[1], timeout=10, **options)
            connection.request(method, path, headers=headers)
            said = str(connection.getresponse().status)
    except OSError as error:
        said = "error " + type(error).__name__
    print(json.dumps([name, said]), flush=True)
print("done", flush=True)
"""


def knocks(cluster: Cluster, tenant: Tenant) -> dict[str, tuple[list[Any], set[str]]]:
    """What a pod tries, and the answers that hold it off."""
    home = cluster.home
    bearer = {"Authorization": f"Bearer {tenant.token}"}
    refused = {"error ConnectionRefusedError", "error TimeoutError", "error OSError"}
    absent = {"error FileNotFoundError", "error PermissionError", "error ConnectionRefusedError"}
    denied, encrypted = (
        {"401", "403"},
        {"401", "403", "error SSLError", "error ConnectionResetError", "error RemoteDisconnected"},
    )
    guesses = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer guessed",
        "bearer x",
        "Basic eDp4",
        f"Bearer {'x' * 4000}",
        "Bearer \u00e9",
    ]
    rows: dict[str, tuple[list[Any], set[str]]] = {
        "simulated clouds, port": (["tcp", [CLUSTER_IP, 10252], "", "", {}], refused),
        "etcd, client port": (["tcp", [CLUSTER_IP, 2379], "", "", {}], refused),
        "etcd, peer port": (["tcp", [CLUSTER_IP, 2380], "", "", {}], refused),
        "socket of the simulated clouds": (["unix", str(home.simulated_clouds), "", "", {}], absent),
        "control socket": (["unix", str(home.control), "", "", {}], absent),
        "socket of etcd": (["unix", "/run/skysail/etcd.sock", "", "", {}], absent),
        "abstract socket": (["unix", "@skysail", "", "", {}], absent),
        "audit with the tenant's token": (["http", [CLUSTER_IP, 8080], "POST", "/audit", bearer], denied),
        "pods of the node": (["https", [CLUSTER_IP, 10250], "GET", "/pods", {}], denied),
        "pods of the node, as tenant": (["https", [CLUSTER_IP, 10250], "GET", "/pods", bearer], denied),
        "pods of modal": (["https", [CLUSTER_IP, 10260], "GET", "/pods", bearer], denied),
        "pods of runpod": (["https", [CLUSTER_IP, 10261], "GET", "/runningpods", bearer], denied),
        "exec at modal": (
            ["https", [CLUSTER_IP, 10260], "POST", "/exec/default/p/c?command=id&output=1", bearer],
            denied,
        ),
        "metrics of pods": (
            ["https", [CLUSTER_IP, 10251], "GET", "/apis/metrics.k8s.io/v1beta1/pods", bearer],
            encrypted,
        ),
        "report of progress": (["https", [CLUSTER_IP, 8082], "POST", "/apis/x", bearer], {*denied, "404"}),
    }
    for port in (8080, 8081):
        for guess in guesses:
            headers = {"Authorization": guess} if guess else {}
            rows[f"audit at {port} with {guess[:20]!r}"] = (
                ["http", [CLUSTER_IP, port], "POST", "/audit", headers],
                denied,
            )
    return rows


def test_a_pod_reaches_no_port_and_no_socket_that_is_not_for_it(node, namespace, tenant, attempts):
    rows = knocks(node, tenant)
    argument = json.dumps([[name, *row] for name, (row, _) in rows.items()])
    manifest = pod("knocks", "python", "-c", KNOCK, argument, container=PYTHON)
    assert tenant.apply(manifest).returncode == 0
    until_phase(node, namespace, "knocks", "Succeeded")
    said = dict(json.loads(line) for line in node.kubectl("logs", "knocks", "-n", namespace).stdout.splitlines()[:-1])
    for name, (_, holds) in rows.items():
        attempts.record("ports and sockets from a pod", name, held=said.get(name) in holds, detail=said.get(name))


@pytest.mark.parametrize("port", [8080, pytest.param(8081, marks=ON_DEMAND)])
def test_the_proxy_of_the_api_server_asks_for_no_audit(node, namespace, tenant, attempts, port):
    assert tenant.apply(pod("p", *SLEEP)).returncode == 0
    until_condition(node, namespace, "pod/p", "Ready")
    targets = [
        f"/api/v1/namespaces/{namespace}/pods/p:{port}/proxy/audit",
        f"/api/v1/namespaces/{namespace}/pods/{CLUSTER_IP}:{port}/proxy/audit",
        f"/api/v1/nodes/local:{port}/proxy/audit",
        f"/api/v1/nodes/modal.com:{port}/proxy/audit",
        f"/api/v1/namespaces/default/services/https:kubernetes:{port}/proxy/audit",
        f"/api/v1/namespaces/kube-system/services/skysail-metrics:{port}/proxy/audit",
    ]
    for target in targets:
        done = tenant.kubectl("create", "--raw", target, "-f", "-", stdin="{}")
        attempts.record("audit through the proxy", target, held=done.returncode != 0, detail=done.stdout)
    # An administrator reaches the operator's port this way, and still needs the token.
    done = node.kubectl("create", "--raw", f"/api/v1/nodes/local:{port}/proxy/audit", "-f", "-", stdin="{}")
    attempts.record("audit through the proxy", f"administrator, {port}", held=done.returncode != 0, detail=done.stdout)


def shared_network() -> dict[str, dict[str, Any]]:
    ports = {"ports": [{"containerPort": 8080, "hostPort": 8080}]}
    raw = {"securityContext": {"capabilities": {"add": ["NET_RAW"]}}}
    low = {"securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}}
    return {
        "plain": pod("p0", *SLEEP, hostNetwork=True),
        "with a port of the machine": pod("p1", *SLEEP, hostNetwork=True, container=ports),
        "with raw sockets": pod("p2", *SLEEP, hostNetwork=True, container=raw),
        "as a user without rights": pod("p3", *SLEEP, hostNetwork=True, container=low),
        "bound by its own manifest": pod("p4", *SLEEP, hostNetwork=True, nodeName="local"),
        "with the cluster's names": pod("p5", *SLEEP, hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
        "restarted always": pod("p6", *SLEEP, restart="Always", hostNetwork=True),
        "with an init container": pod(
            "p7", *SLEEP, hostNetwork=True, initContainers=[{"name": "i", "image": "busybox", "command": ["true"]}]
        ),
        "at modal": at("modal", pod("p8", *SLEEP, hostNetwork=True)),
        "at runpod": at("runpod", pod("p9", *SLEEP, hostNetwork=True)),
    }


def test_no_pod_shares_the_network_of_the_cluster_without_the_setting(node, namespace, tenant, attempts):
    for name, manifest in shared_network().items():
        assert tenant.apply(manifest).returncode == 0
        title = manifest["metadata"]["name"]

        def told(title: str = title) -> str:
            shown = get(node, namespace, "pod", title)
            events = node.kubectl("get", "events", "-n", namespace, "--field-selector", f"involvedObject.name={title}")
            return json.dumps(shown["status"]) + events.stdout

        node.until(lambda told=told: "hostNetwork" in told(), f"pod {title} to be rejected")
        text = told()
        is_local = "nodeSelector" not in manifest["spec"]
        held = "spec.hostNetwork" in text and '"running"' not in text and (host_network.SETTING in text or not is_local)
        attempts.record("hostNetwork without the setting", name, held=held, detail=text)


SERVE = """
import socket
with socket.create_server(("", 8000)) as server:
    while True:
        line, _ = server.accept()
        with line:
            line.sendall(b"victim")
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 8000), timeout=600) as line:
    print(line.makefile().read())
"""


def test_no_pod_takes_over_the_address_of_another_one(node, namespace, tenant, other_tenant, attempts):
    ready = {"readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}
    assert other_tenant.apply(pod("victim", "python", "-c", SERVE, container={**PYTHON, **ready})).returncode == 0
    assert other_tenant.apply(pod("client", *SLEEP, container=PYTHON)).returncode == 0
    assert tenant.apply(pod("attacker", *SLEEP, container=PYTHON)).returncode == 0
    address = {}
    for name, owner in (("victim", other_tenant), ("client", other_tenant), ("attacker", tenant)):
        until_condition(node, owner.namespace, f"pod/{name}", "Ready")
        address[name] = get(node, owner.namespace, "pod", name)["status"]["podIP"]

    def ask() -> str:
        return other_tenant.kubectl("exec", "client", "--", "python", "-c", ASK, address["victim"]).stdout.strip()

    assert ask() == "victim"
    for name, frame in arp.attacks(address["victim"], address["client"]).items():
        with attack(node, tenant, address["victim"], frame) as process:
            assert process.stdout is not None
            begun = process.stdout.readline()
            answers = [ask() for _ in range(2)]
            process.kill()
            heard = begun + process.stdout.read()
        held = answers == ["victim", "victim"] and "stolen" not in heard
        attempts.record("address of another pod", name, held=held, detail=(answers, heard))


def attack(node: Cluster, tenant: Tenant, victim: str, frame: str) -> subprocess.Popen[str]:
    command = [*node.binaries.commands[Component.KUBECTL], "exec", "attacker", "--", "python", "-c", arp.ATTACK]
    env = {**os.environ, "KUBECONFIG": str(tenant.kubeconfig)}
    return subprocess.Popen([*command, victim, frame], env=env, stdout=subprocess.PIPE, text=True)


def test_nothing_takes_the_operators_ports_while_it_restarts(node, attempts):
    """By a process in the network of the cluster, as a pod with `hostNetwork` would be one."""
    for round_ in range(2):
        before = node.unit("operator").pid
        node.signal("operator", signal.SIGKILL)
        for port in OPERATOR_PORTS:
            for host in ("0.0.0.0", CLUSTER_IP, "127.0.0.1"):
                try:
                    node.listen(port, host).close()
                except Refused:
                    held = True
                else:
                    held = False
                attempts.record("the operator's ports", f"{host}:{port}, {round_}", held=held)
        node.until(lambda before=before: node.unit("operator").pid not in {None, before}, "another operator")
    node.until(lambda: is_ready(node), "the operator to be ready")


def is_ready(node: Cluster) -> bool:
    try:
        return node.get("/readyz")[0] == HTTPStatus.OK
    except (Refused, OSError):
        return False
