"""The kubelet API of our nodes, asked by a tenant about pods of another namespace: directly, and by the API server."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING

import pytest

from skysail.local import addresses
from tests.security.samples import sampled
from tests.support.kubectl import ok, pod, until_condition

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.tenant import Attempts, Tenant

_REFUSED = (401, 403, 404, 405)
_EXEC = "command=id&output=1&error=1"
# Method and path; the pod is that of the victim.
_REQUESTS = (
    ("GET", "/containerLogs/{namespace}/victim/main"),
    ("GET", "/containerLogs/{namespace}/victim/main?follow=false&tailLines=1"),
    ("GET", "/containerLogs/{own}/../{namespace}/victim/main"),
    ("GET", "/containerLogs/{own}%2f..%2f{namespace}/victim/main"),
    ("POST", "/exec/{namespace}/victim/main?" + _EXEC),
    ("GET", "/exec/{namespace}/victim/main?" + _EXEC),
    ("POST", "/exec/{namespace}/victim/{uid}/main?" + _EXEC),
    ("POST", "/exec/{own}/victim/{uid}/main?" + _EXEC),
    ("POST", "/run/{namespace}/victim/main?cmd=id"),
    ("POST", "/run/{namespace}/victim/{uid}/main?cmd=id"),
    ("POST", "/attach/{namespace}/victim/main?output=1"),
    ("GET", "/attach/{namespace}/victim/{uid}/main?output=1"),
    ("POST", "/portForward/{namespace}/victim?port=80"),
    ("GET", "/portForward/{namespace}/victim/{uid}?port=80"),
    ("GET", "/pods"),
    ("GET", "/runningpods/"),
    ("GET", "/stats/summary"),
    ("GET", "/metrics"),
    ("GET", "/metrics/resource"),
    ("GET", "/logs/"),
    ("GET", "/configz"),
    ("GET", "/debug/pprof/goroutine?debug=2"),
    ("POST", "/checkpoint/{namespace}/victim/main"),
    ("PUT", "/containerLogs/{namespace}/victim/main"),
)
_UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io"}


@pytest.fixture
def victim(node: Cluster, other_tenant: Tenant) -> dict[str, str]:
    """A running pod of the other tenant, which has printed a secret."""
    manifest = pod("victim", "sh", "-c", "echo canary-of-the-victim; sleep 1000")
    assert other_tenant.apply(manifest).returncode == 0
    until_condition(node, other_tenant.namespace, "pod/victim", "Ready")
    uid = ok(node, "get", "pod", "victim", "-n", other_tenant.namespace, "-o", "jsonpath={.metadata.uid}")
    return {"namespace": other_tenant.namespace, "uid": uid}


@sampled(5)
def test_the_node_answers_no_tenant_about_pods_of_others(
    node: Cluster, tenant: Tenant, victim: dict[str, str], attempts: Attempts, step: int
) -> None:
    tokens = {"tenant": tenant.token, "nobody": "", "garbage": "x.y.z", "cut": tenant.token[:-8]}
    for whose, token in tokens.items():
        for method, path in _REQUESTS[::step]:
            for headers in ({}, _UPGRADE):
                status, body = _ask(node, method, path.format(own=tenant.namespace, **victim), token, headers)
                held = status in _REFUSED and "canary-of-the-victim" not in body
                way = " (upgrade)" if headers else ""
                attempts.record("node API", f"{whose}: {method} {path}{way}", held=held, detail=(status, body[:200]))


def _ask(node: Cluster, method: str, path: str, token: str, headers: dict[str, str]) -> tuple[int, str]:
    """As from a pod: to the node's own port, without asking who it is."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPConnection(addresses.CLUSTER_IP, addresses.NODE_PORT, timeout=60)
    connection.sock = context.wrap_socket(node.dial(addresses.NODE_PORT))
    try:
        known = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, headers={**known, **headers})
        reply = connection.getresponse()
        return reply.status, reply.read(65536).decode(errors="replace")
    finally:
        connection.close()


def test_the_api_server_asks_nothing_of_nodes_for_a_tenant_of_another_namespace(
    node: Cluster, tenant: Tenant, victim: dict[str, str], attempts: Attempts
) -> None:
    there = ("-n", victim["namespace"])
    proxied = f"/api/v1/nodes/{addresses.NODE}/proxy"
    rows: tuple[tuple[str, ...], ...] = (
        ("logs", "victim", *there),
        ("logs", "victim", "--previous", *there),
        ("exec", "victim", *there, "--", "id"),
        ("attach", "victim", *there),
        ("port-forward", "victim", "8080:80", *there),
        ("cp", f"{victim['namespace']}/victim:/etc/hostname", "/dev/null"),
        ("debug", "victim", "--image=busybox", *there, "--", "id"),
        ("top", "pod", "victim", *there),
        ("delete", "pod", "victim", *there),
        ("get", "--raw", f"{proxied}/containerLogs/{victim['namespace']}/victim/main"),
        ("get", "--raw", f"{proxied}/pods"),
        ("get", "--raw", f"{proxied}/exec/{victim['namespace']}/victim/main?{_EXEC}"),
        ("get", "--raw", f"/api/v1/namespaces/{victim['namespace']}/pods/victim/proxy/"),
        ("create", "--raw", f"/api/v1/namespaces/{victim['namespace']}/pods/victim/exec?{_EXEC}", "-f", "-"),
    )
    for words in rows:
        done = tenant.kubectl(*words, stdin=json.dumps({}))
        held = done.returncode != 0 and "canary" not in done.stdout and "orbidden" in done.stderr
        attempts.record("node API by the API server", " ".join(words), held=held, detail=done)
