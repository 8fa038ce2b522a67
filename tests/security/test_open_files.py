"""Tenants that try to use up the descriptors of the node: by ports of Services, and by connections."""

from __future__ import annotations

import json
from typing import Any

from skysail.base import open_files
from skysail.local.addresses import CLUSTER_IP, METRICS_PORT, NODE_PORT
from skysail.local.network import egress_proxy
from tests.support.kubectl import fresh_namespace, pod, until_condition, until_phase
from tests.support.tenant import Tenant

_PORTS = 8000
_QUEUED = 500  # connections that wait in the kernel are not closed yet
_PYTHON = {"image": "python:3"}
# Opens connections, and prints how many of them the other side has not closed.
_CROWD = """
import select, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = []
for _ in range(count):
    try:
        lines.append(socket.create_connection((host, port), 30))
    except OSError:
        pass
poll = select.poll()
for line in lines:
    poll.register(line, select.POLLIN)
closed = {fd for fd, _ in poll.poll(1000)}
print(len(lines) - len(closed))
"""


def _service(name: str) -> dict[str, Any]:
    ports = [{"name": f"p{number}", "port": number + 1, "targetPort": 8000} for number in range(_PORTS)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": ports},
    }


def _serve() -> dict[str, Any]:
    manifest = pod("web", "python3", "-m", "http.server", "8000", container=_PYTHON)
    manifest["metadata"]["labels"] = {"app": "web"}
    return manifest


def test_services_with_thousands_of_ports_do_not_stall_the_node(node, attempts, other_tenant):
    with fresh_namespace(node) as namespace:
        tenant = Tenant.create(node, namespace)
        assert tenant.apply(_serve()).returncode == 0
        until_condition(node, namespace, "pod/web", "Ready")
        count = open_files.limit() // _PORTS + 1
        for number in range(count):
            made = tenant.kubectl("create", "-f", "-", stdin=json.dumps(_service(f"crowd-{number}")))
            assert made.returncode == 0, made.stderr
        node.until(lambda: "service ports above the limit" in node.log("agent"), "the ports to be limited")
        assert other_tenant.apply(pod("p", "echo", "fine")).returncode == 0
        until_phase(node, other_tenant.namespace, "p", "Succeeded")
        said = other_tenant.kubectl("logs", "p").stdout
        attempts.record("descriptors", f"{count} Services of {_PORTS} ports", held=said == "fine\n", detail=said)


def test_a_pod_with_thousands_of_connections_does_not_stall_the_node(node, attempts, tenant, other_tenant):
    share = open_files.limit() // 8
    targets = {
        "kubelet": NODE_PORT,
        "metrics": METRICS_PORT,
        "egress proxy": egress_proxy.INNER_PORT,
        "egress proxy of the machine": egress_proxy.OUTER_PORT,
        "DNS": 53,
    }
    for number, port in enumerate(targets.values()):
        program = ("python3", "-c", _CROWD, CLUSTER_IP, str(port), str(share + 2 * _QUEUED))
        assert tenant.apply(pod(f"crowd-{number}", *program, container=_PYTHON)).returncode == 0
    for number, name in enumerate(targets):
        until_phase(node, tenant.namespace, f"crowd-{number}", "Succeeded")
        left = int(tenant.kubectl("logs", f"crowd-{number}").stdout)
        attempts.record("descriptors", f"connections to {name}", held=left <= share + _QUEUED, detail=(left, share))
    assert other_tenant.apply(pod("p", "echo", "fine")).returncode == 0
    until_phase(node, other_tenant.namespace, "p", "Succeeded")
    said = other_tenant.kubectl("logs", "p").stdout
    attempts.record("descriptors", "another tenant's pod", held=said == "fine\n", detail=said)
