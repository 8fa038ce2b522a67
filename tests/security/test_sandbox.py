"""Hostile pods against the local sandbox: in a cluster, and on the provider as root and as a user without rights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skysail.local.addresses import NODE
from tests.conformance.test_in_cluster import as_nobody, folder  # noqa: F401 (a fixture)
from tests.security import sandbox_attempts
from tests.security.samples import ON_DEMAND
from tests.support.clouds import at
from tests.support.kubectl import apply, claim, conditions, get, pod, until_condition, until_phase

_SUITE = Path(__file__).with_name("sandbox_suite.py")
_SAMPLE = "kernel_settings or device_nodes or system_calls or processes or verified or no_id or image_root"
# For CI: the limits of processes and memory, and one table of each of the others.
_FEW = "(processes and program and user) or (device_nodes and program and root) or together or verified or image_root"
_PROGRAM = Path(sandbox_attempts.__file__).read_text()
# Tables that need no other limits than the ones of a cluster.
_TABLES = ("kernel_settings", "masked_files", "device_nodes", "system_calls", "host_ids")
_RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTEXTS = {
    "nothing set": {},
    "restricted": _RESTRICTED,
    "NET_RAW added": {"capabilities": {"add": ["NET_RAW"]}},
    "user": {"runAsUser": 1000},
}
_RAW_SOCKETS = """
import socket
for kind in (socket.AF_PACKET, socket.AF_INET):
    try:
        socket.socket(kind, socket.SOCK_RAW, 255)
        print("raw")
    except PermissionError:
        print("held")
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
ping.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), ("127.0.0.1", 0))
print("ping", len(ping.recv(100)))
socket.create_server(("", 80))
print("port 80")
"""


@pytest.mark.parametrize(
    ("become", "chosen"),
    [
        pytest.param(lambda _: [], _FEW, id="few-as-we-are"),
        pytest.param(as_nobody, _FEW, id="few-as-nobody"),
        pytest.param(lambda _: [], "", id="as-we-are", marks=ON_DEMAND),
        pytest.param(as_nobody, _SAMPLE, id="as-nobody", marks=ON_DEMAND),
    ],
)
def test_hostile_pods_are_held(folder, attempts, become, chosen):  # noqa: F811 (as above)
    inside = [
        sys.executable,
        "-m",
        "tests.conformance.in_cluster",
        str(folder / "home" / "inside"),
        str(_SUITE),
        chosen,
    ]
    env = {**os.environ, "HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache")}
    root = Path(__file__).parents[2]
    command = [*become(folder), *inside]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=1800)
    for line in done.stdout.splitlines():
        if line.startswith('["attempt"'):
            _, area, name, held = json.loads(line)
            attempts.record(f"sandbox: {area.partition(':')[0]}", f"{area}: {name}", held=held)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    "context",
    ["nothing set", "restricted", *(pytest.param(name, marks=ON_DEMAND) for name in ("NET_RAW added", "user"))],
)
def test_hostile_pods_of_a_tenant_are_held(node, namespace, tenant, attempts, context):
    for table in _TABLES:
        name = table.replace("_", "-")
        hostile = pod(
            name, "/usr/bin/python3", "-c", _PROGRAM, table, container={"securityContext": _CONTEXTS[context]}
        )
        assert tenant.apply(hostile).returncode == 0
    for table in _TABLES:
        name = table.replace("_", "-")
        until_phase(node, namespace, name, "Succeeded")
        _record(attempts, f"cluster: {table}", context, tenant.kubectl("logs", name).stdout)


def test_hostile_commands_of_a_tenant_are_held(node, namespace, tenant, attempts):
    assert tenant.apply(pod("victim", "sleep", "10000", container={"securityContext": _RESTRICTED})).returncode == 0
    until_condition(node, namespace, "pod/victim", "Ready")
    for table in _TABLES:
        done = tenant.kubectl("exec", "-i", "victim", "--", "/usr/bin/python3", "-", table, stdin=_PROGRAM)
        _record(attempts, f"cluster: {table}", "exec", done.stdout)


@ON_DEMAND
def test_hostile_pods_at_a_simulated_cloud_are_held(node, namespace, tenant, attempts):
    for table in _TABLES[:2]:
        name = table.replace("_", "-")
        assert tenant.apply(at("runpod", pod(name, "/usr/bin/python3", "-c", _PROGRAM, table))).returncode == 0
    for table in _TABLES[:2]:
        name = table.replace("_", "-")
        until_phase(node, namespace, name, "Succeeded")
        _record(attempts, f"cluster: {table}", "simulated cloud", tenant.kubectl("logs", name).stdout)


@pytest.mark.parametrize(
    "context", ["NET_RAW added", *(pytest.param(name, marks=ON_DEMAND) for name in ("nothing set", "user"))]
)
def test_raw_packets_are_refused_while_ping_and_low_ports_work(node, namespace, tenant, attempts, context):
    command = ("/usr/bin/python3", "-c", _RAW_SOCKETS)
    assert tenant.apply(pod("raw", *command, container={"securityContext": _CONTEXTS[context]})).returncode == 0
    until_phase(node, namespace, "raw", "Succeeded")
    said = tenant.kubectl("logs", "raw").stdout.splitlines()
    for kind, answer in zip(("AF_PACKET", "AF_INET"), said, strict=False):
        attempts.record("cluster: raw sockets", f"{kind}, {context}", held=answer == "held")
    assert said[2:] == ["ping 8", "port 80"]


def test_an_added_net_raw_is_reported_as_ignored(node, namespace, tenant, attempts):
    for number, name in enumerate(("NET_RAW", "net_raw", "CAP_NET_RAW")):
        added = {"capabilities": {"add": [name]}}
        assert tenant.apply(pod(f"p{number}", "true", container={"securityContext": added})).returncode == 0
        seen = until_phase(node, namespace, f"p{number}", "Succeeded")
        (row,) = [row for row in seen["conditions"] if row["type"] == "skysail.dev/Supported"]
        is_named = "spec.containers[0].securityContext.capabilities.add: NET_RAW" in row["message"]
        attempts.record("cluster: ignored fields", name, held=is_named, detail=row)


@pytest.mark.parametrize("place", ["pod", "container"])
def test_a_seccomp_profile_of_the_machine_is_rejected_with_its_field(node, namespace, tenant, attempts, place):
    profile = {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/none.json"}}
    wishes = {"securityContext": profile} if place == "pod" else {"container": {"securityContext": profile}}
    assert tenant.apply(pod("p", "true", **wishes)).returncode == 0
    field = {"pod": "spec", "container": "spec.containers[0]"}[place] + ".securityContext.seccompProfile"
    node.until(lambda: field in json.dumps(get(node, namespace, "pod", "p")["status"]), "the pod to be rejected")
    attempts.record("cluster: Localhost", place, held=get(node, namespace, "pod", "p")["status"]["phase"] == "Pending")


def test_pods_that_are_no_attack_keep_working(node, namespace, tenant):
    """Users, groups, PVCs, Secrets and init containers, as on any cluster."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "secret"}}
    apply(node, namespace, claim("data"), secret)
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "e", "emptyDir": {}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("data", "s", "e")]
    script = "cat /s/key /e/init; cat /data/*; id -u; id -G; echo first > /data/$HOSTNAME; test -r $TOKEN && echo token"
    for name, user in (("one", 1000), ("two", 2000)):
        init = {
            "name": "init",
            "image": "busybox",
            "command": ["sh", "-c", "echo -i- > /e/init"],
            "volumeMounts": mounts,
        }
        env = [{"name": "TOKEN", "value": "/var/run/secrets/kubernetes.io/serviceaccount/token"}]
        main = {"volumeMounts": mounts, "env": env, "securityContext": {"runAsUser": user}}
        shared = {"fsGroup": 3000, "supplementalGroups": [4000]}
        manifest = pod(
            name, "sh", "-c", script, container=main, volumes=volumes, initContainers=[init], securityContext=shared
        )
        assert tenant.apply(manifest).returncode == 0
        until_phase(node, namespace, name, "Succeeded")
    said = tenant.kubectl("logs", "two", "-c", "main").stdout.split()
    assert said == ["secret-i-", "first", "2000", "0", "3000", "4000", "token"]


def test_the_node_says_which_limits_it_enforces(node):
    row = conditions(get(node, "default", "node", NODE)["status"])
    assert row["LimitsEnforced"] == ("True" if os.geteuid() == 0 else "False")


def _record(attempts, area: str, context: str, printed: str) -> None:
    rows = [json.loads(line) for line in printed.splitlines()]
    assert len(rows) >= 10
    for name, why in rows:
        attempts.record(area, f"{name} ({context})", held=why is not None)
