"""The node `local` with the real kubectl: pods that really run, and what Kubernetes' own controllers make of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING

from skysail.local.addresses import NODE
from tests.support.kubectl import (
    TIMEOUT,
    apply,
    claim,
    conditions,
    get,
    ok,
    pod,
    status,
    until_condition,
    until_phase,
)

if TYPE_CHECKING:
    from tests.support.cluster import Cluster


def job(name: str, *command: str, restart: str = "Never", env: list | None = None, **spec) -> dict:
    template = {"spec": pod("", *command, restart=restart, container={"env": env or []})["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def test_the_node_is_what_a_scheduler_and_an_api_server_expect(node):
    shown = json.loads(ok(node, "get", "node", NODE, "-o", "json"))
    assert [row["type"] for row in shown["status"]["addresses"]] == ["InternalIP"]
    assert shown["spec"]["providerID"].startswith("skysail://")
    assert shown["status"]["allocatable"]["cpu"] == "64"
    assert conditions(shown["status"]) == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "NetworkUnavailable": "False",
        "LimitsEnforced": "True" if os.geteuid() == 0 else "False",
    }
    # Kubernetes' controllers come later: one takes the taint of a new node away, one the lease of the node before.
    node.until(lambda: "taints" not in get(node, "default", "node", NODE)["spec"], "the node to have no taint")
    uid = "jsonpath={.metadata.ownerReferences[*].uid}"
    lease = ("get", "lease", NODE, "-n", "kube-node-lease", "-o", uid)
    node.until(lambda: node.kubectl(*lease).stdout == shown["metadata"]["uid"], "the lease to be the node's")


def test_a_pod_runs_and_its_log_and_exit_code_come_back(node, namespace):
    nonce, secret = secrets.token_hex(8), secrets.token_hex(16)
    ok(node, "create", "secret", "generic", "s", "-n", namespace, f"--from-literal=key={secret}")
    source = {"secretKeyRef": {"name": "s", "key": "key"}}
    env = [{"name": "SECRET", "valueFrom": source}, {"name": "ALL", "value": f"{nonce}$(SECRET)"}]
    script = 'printf %s "$ALL" | sha256sum; echo over >&2; exit 37'
    apply(node, namespace, pod("a", "sh", "-c", script, container={"env": env}))
    shown = until_phase(node, namespace, "a", "Failed")
    ended = shown["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (37, "Error")
    assert conditions(shown)["Ready"] == "False"
    log = ok(node, "logs", "a", "-n", namespace)
    # Two streams, of which nobody knows which one is read first.
    assert set(log.splitlines()) == {f"{hashlib.sha256(f'{nonce}{secret}'.encode()).hexdigest()}  -", "over"}


def test_a_command_beside_a_running_pod(node, namespace):
    apply(node, namespace, pod("a", "sh", "-c", "echo ready > /run-dir; sleep 1000"))
    until_condition(node, namespace, "pod/a", "Ready")
    look = ("exec", "a", "-n", namespace, "--", "cat", "/run-dir")
    node.until(lambda: node.kubectl(*look).stdout == "ready\n", "the program to write its file")
    assert node.kubectl("exec", "a", "-n", namespace, "--", "sh", "-c", "exit 5").returncode == 5
    ours = [sys.executable, "-m", "skysail", "kubectl", "exec", "a", "-n", namespace, "--", "sh", "-c", "exit 6"]
    assert subprocess.run(ours, env={**os.environ, "SKYSAIL_HOME": str(node.home.root)}, check=False).returncode == 6


def test_the_token_of_its_service_account_lets_a_pod_ask_the_api_server(node, namespace):
    ok(
        node,
        "create",
        "rolebinding",
        "r",
        "-n",
        namespace,
        "--clusterrole=view",
        f"--serviceaccount={namespace}:default",
    )
    asks = ("auth", "can-i", "list", "pods", "-n", namespace, f"--as=system:serviceaccount:{namespace}:default")
    node.until(lambda: node.kubectl(*asks).returncode == 0, "the API server to know the binding")
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"""
import json, os, ssl, urllib.request
tls = ssl.create_default_context(cafile="{folder}/ca.crt")
url = f"https://kubernetes.default.svc/api/v1/namespaces/{{open('{folder}/namespace').read()}}/pods"
ask = urllib.request.Request(url, headers={{"Authorization": "Bearer " + open("{folder}/token").read()}})
reply = json.load(urllib.request.urlopen(ask, context=tls))
print([row["metadata"]["name"] for row in reply["items"]], os.environ["KUBERNETES_SERVICE_HOST"])
"""
    apply(node, namespace, pod("asks", "/usr/bin/python3", "-c", script))
    node.until(lambda: status(node, namespace, "asks").get("phase") in {"Succeeded", "Failed"}, "an answer")
    assert ok(node, "logs", "asks", "-n", namespace) == "['asks'] 10.96.0.1\n"


def test_a_missing_secret_holds_the_pod_until_it_is_there(node, namespace):
    env = [{"secretRef": {"name": "late"}}, {"configMapRef": {"name": "never", "optional": True}}]
    apply(node, namespace, pod("a", "sh", "-c", "echo $key", container={"envFrom": env}))
    node.until(lambda: reasons(node, namespace) >= {"MandatorySecretNotFound", "OptionalConfigMapNotFound"}, "events")
    node.until(lambda: waiting(node, namespace, "a").get("reason") == "CreateContainerConfigError", "the status")
    ok(node, "create", "secret", "generic", "late", "-n", namespace, "--from-literal=key=here")
    until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-n", namespace) == "here\n"


def reasons(node: Cluster, namespace: str) -> set[str]:
    return {row["reason"] for row in get(node, namespace, "events.events.k8s.io")["items"]}


def waiting(node: Cluster, namespace: str, name: str) -> dict:
    """What the only container of a pod waits for."""
    rows = status(node, namespace, name).get("containerStatuses", [{}])
    return rows[0].get("state", {}).get("waiting", {})


def test_an_unknown_image_says_how_to_add_it(node, namespace):
    apply(node, namespace, pod("a", "true", container={"image": "nobody/knows:this"}))
    # After some seconds it is tried again, and then called by the second of these.
    names = {"ErrImagePull", "ImagePullBackOff"}
    node.until(lambda: waiting(node, namespace, "a").get("reason") in names, "the image to be refused")
    assert "skysail image add" in waiting(node, namespace, "a")["message"]


def test_init_containers_come_in_order_and_a_sidecar_ends_with_the_pod(node, namespace):
    volume = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounts = [{"name": "v", "mountPath": "/v"}]
    common = {"image": "busybox", "volumeMounts": mounts}
    beside = "until grep side /v/order; do sleep 0.05; done"  # a sidecar is not waited for, only started
    inits = [
        {"name": "one", "command": ["sh", "-c", "echo one >> /v/order"], **common},
        {
            "name": "side",
            "command": ["sh", "-c", "echo side >> /v/order; sleep 1000"],
            "restartPolicy": "Always",
            **common,
        },
        {"name": "two", "command": ["sh", "-c", f"{beside}; echo two >> /v/order"], **common},
    ]
    main = {"volumeMounts": mounts}
    apply(node, namespace, pod("a", "sh", "-c", "cat /v/order", container=main, initContainers=inits, **volume))
    shown = until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-c", "main", "-n", namespace) == "one\nside\ntwo\n"
    assert "terminated" in shown["initContainerStatuses"][1]["state"]


def test_probes_decide_on_readiness_and_life(node, namespace):
    often = {"periodSeconds": 1, "timeoutSeconds": 600}  # who answers late is not dead
    ready = {"exec": {"command": ["test", "-e", "/v/ready"]}, **often}
    alive = {"exec": {"command": ["test", "!", "-e", "/v/dead"]}, "failureThreshold": 1, **often}
    container = {"readinessProbe": ready, "livenessProbe": alive, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    script = "rm -f /v/dead; exec sleep 1000"
    apply(node, namespace, pod("a", "sh", "-c", script, restart="Always", container=container, volumes=volumes))
    shown = until_phase(node, namespace, "a", "Running")
    assert conditions(shown)["Ready"] == "False"
    ok(node, "exec", "a", "-n", namespace, "--", "touch", "/v/ready")
    until_condition(node, namespace, "pod/a", "Ready")
    assert status(node, namespace, "a")["containerStatuses"][0]["restartCount"] == 0
    node.kubectl("exec", "a", "-n", namespace, "--", "touch", "/v/dead")  # which may end with what it kills
    node.until(lambda: status(node, namespace, "a")["containerStatuses"][0]["restartCount"] > 0, "a restart")


def test_a_crashing_container_is_started_again_later_each_time(node, namespace):
    apply(node, namespace, pod("a", "sh", "-c", "echo run; exit 3", restart="OnFailure"))

    def is_backing_off() -> bool:
        row = status(node, namespace, "a").get("containerStatuses", [{}])[0]
        return row.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"

    node.until(is_backing_off, "a pause between restarts")
    row = status(node, namespace, "a")["containerStatuses"][0]
    assert row["restartCount"] >= 1
    assert row["lastState"]["terminated"]["exitCode"] == 3
    assert ok(node, "logs", "a", "-n", namespace, "-p") == "run\n"


def test_a_job_tries_again_and_then_gives_up(node, namespace):
    apply(node, namespace, job("fails", "sh", "-c", "exit 1", backoffLimit=0))
    until_condition(node, namespace, "job/fails", "Failed")
    apply(node, namespace, job("works", "true", completions=3, parallelism=3))
    until_condition(node, namespace, "job/works", "Complete")


def test_an_indexed_job_tells_each_pod_its_index(node, namespace):
    apply(
        node,
        namespace,
        job(
            "i", "sh", "-c", "echo index=$JOB_COMPLETION_INDEX", completionMode="Indexed", completions=3, parallelism=3
        ),
    )
    until_condition(node, namespace, "job/i", "Complete")
    logs = ok(node, "logs", "-n", namespace, "-l", "job-name=i")
    assert sorted(logs.split()) == ["index=0", "index=1", "index=2"]


def test_a_deployment_rolls_out_and_on(node, namespace):
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "busybox", "command": ["sleep", "1000"]}],
        },
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    apply(node, namespace, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    ok(node, "rollout", "status", "deploy/d", "-n", namespace, TIMEOUT)
    ok(node, "set", "env", "deploy/d", "-n", namespace, "A=B")
    ok(node, "rollout", "status", "deploy/d", "-n", namespace, TIMEOUT)
    node.until(lambda: len(get(node, namespace, "pods")["items"]) == 2, "the old pods to be gone")


def test_deletion_gives_the_program_its_time(node, namespace):
    script = "trap 'echo bye > /v/bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    manifest = pod("a", "sh", "-c", script, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    manifest["metadata"]["finalizers"] = ["example.com/keeps-it-in-sight"]
    manifest["spec"] |= {"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 600}
    apply(node, namespace, manifest)
    until_condition(node, namespace, "pod/a", "Ready")
    node.until(lambda: ok(node, "logs", "a", "-n", namespace) == "up\n", "the handler to be set")
    ok(node, "delete", "pod", "a", "-n", namespace, "--wait=false")
    shown = until_phase(node, namespace, "a", "Succeeded")
    assert shown["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    ok(node, "patch", "pod", "a", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    node.until(lambda: node.kubectl("get", "pod", "a", "-n", namespace).returncode == 1, "the pod to be gone")


def test_a_forced_deletion_leaves_nothing_and_the_name_is_free_at_once(node, namespace):
    apply(node, namespace, pod("a", "sleep", "1000"))
    until_condition(node, namespace, "pod/a", "Ready")
    first = get(node, namespace, "pod", "a")["metadata"]["uid"]
    ok(node, "delete", "pod", "a", "-n", namespace, "--force", "--grace-period=0")
    apply(node, namespace, pod("a", "sleep", "1000"))
    until_condition(node, namespace, "pod/a", "Ready")
    assert get(node, namespace, "pod", "a")["metadata"]["uid"] != first
    node.until(lambda: first not in running_pods(node), "the first pod's place to be gone")


def running_pods(node: Cluster) -> set[str]:
    listed = json.loads(ok(node, "get", "--raw", f"/api/v1/nodes/{NODE}/proxy/runningpods/"))
    return {row["metadata"]["uid"] for row in listed["items"]}


def test_a_pod_that_takes_too_long_is_ended(node, namespace):
    apply(node, namespace, pod("a", "sleep", "1000", activeDeadlineSeconds=2))
    shown = until_phase(node, namespace, "a", "Failed")
    assert shown["reason"] == "DeadlineExceeded"


def test_a_deleted_node_comes_back(node):
    before = json.loads(ok(node, "get", "node", NODE, "-o", "json"))["metadata"]["uid"]
    ok(node, "delete", "node", NODE)

    def is_back() -> bool:
        shown = node.kubectl("get", "node", NODE, "-o", "json")
        return shown.returncode == 0 and json.loads(shown.stdout)["metadata"]["uid"] != before

    node.until(is_back, "the node to be registered again")


def test_a_failed_container_leaves_its_last_words(node, namespace):
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    apply(
        node,
        namespace,
        pod("file", "sh", "-c", "echo from the file > /dev/termination-log; exit 1"),
        pod("log", "sh", "-c", "echo from the log; exit 1", container=fallback),
    )
    for name, words in (("file", "from the file\n"), ("log", "from the log\n")):
        shown = until_phase(node, namespace, name, "Failed")
        assert shown["containerStatuses"][0]["state"]["terminated"]["message"] == words


def test_hooks_run_after_the_start_and_before_the_end(node, namespace):
    mounts = [{"name": "v", "mountPath": "/v"}]
    hooks = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo began > /v/began"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "touch /v/stopping; sleep 0.3"]}},
    }
    script = "while ! test -e /v/stopping; do sleep 0.05; done; cat /v/began; exit 0"
    container = {"lifecycle": hooks, "volumeMounts": mounts}
    patient = {"volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 600}
    manifest = pod("a", "sh", "-c", script, container=container, **patient)
    manifest["metadata"]["finalizers"] = ["example.com/keeps-it-in-sight"]
    apply(node, namespace, manifest)
    until_condition(node, namespace, "pod/a", "Ready")
    ok(node, "delete", "pod", "a", "-n", namespace, "--wait=false")
    until_phase(node, namespace, "a", "Succeeded")
    assert ok(node, "logs", "a", "-n", namespace) == "began\n"
    ok(node, "patch", "pod", "a", "-n", namespace, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_a_server_is_ready_when_it_answers(node, namespace):
    script = """
import http.server, os, time
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)
"""
    for name, probe in (("http", {"httpGet": {"port": "web"}}), ("tcp", {"tcpSocket": {"port": 8000}})):
        asked = {**probe, "periodSeconds": 1, "timeoutSeconds": 600}
        container = {"ports": [{"name": "web", "containerPort": 8000}], "readinessProbe": asked}
        apply(node, namespace, pod(name, "/usr/bin/python3", "-c", script, container=container))
    for name in ("http", "tcp"):
        shown = until_phase(node, namespace, name, "Running")
        assert conditions(shown)["Ready"] == "False"
        ok(node, "exec", name, "-n", namespace, "--", "touch", "/tmp/go")
        until_condition(node, namespace, f"pod/{name}", "Ready")


def test_a_pod_whose_image_is_not_there_can_be_deleted(node, namespace):
    apply(node, namespace, pod("a", "true", container={"image": "nobody/knows:this"}))
    node.until(lambda: "Failed" in reasons(node, namespace), "the start to fail")
    ok(node, "delete", "pod", "a", "-n", namespace, TIMEOUT)


def test_a_node_that_was_given_up_is_ready_again(node):
    unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    ok(node, "patch", "node", NODE, "--subresource=status", "-p", json.dumps(unknown))
    until_condition(node, "default", f"node/{NODE}", "Ready")


def test_a_claim_gets_a_disk_that_outlives_pods_and_goes_with_the_claim(node, namespace):
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    main = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    apply(node, namespace, claim("c"), pod("w", "sh", "-c", "echo kept > /v/file", container=main, volumes=volumes))
    until_phase(node, namespace, "w", "Succeeded")
    apply(node, namespace, pod("r", "cat", "/v/file", container=main, volumes=volumes))
    until_phase(node, namespace, "r", "Succeeded")
    assert ok(node, "logs", "r", "-n", namespace) == "kept\n"
    disk = node.home.root / "disks" / get(node, namespace, "pvc", "c")["spec"]["volumeName"]
    assert (disk / "file").read_text() == "kept\n"
    ok(node, "delete", "pod", "w", "r", "-n", namespace)
    ok(node, "delete", "pvc", "c", "-n", namespace, TIMEOUT)
    node.until(lambda: node.kubectl("get", "pv", disk.name).returncode == 1, "the volume to be gone")
    assert not disk.exists()


def test_top_and_an_autoscaler_see_real_use(node, namespace):
    template = {
        "metadata": {"labels": {"app": "busy"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": "busybox",
                    "command": ["sh", "-c", "while :; do :; done"],
                    "resources": {"requests": {"cpu": "10m"}},
                }
            ],
        },
    }
    spec = {"selector": {"matchLabels": {"app": "busy"}}, "template": template}
    apply(node, namespace, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "busy"}, "spec": spec})
    node.until(
        lambda: node.kubectl("top", "pod", "-n", namespace, "-l", "app=busy").returncode == 0, "the first sample"
    )
    containers = ("top", "pod", "-n", namespace, "--no-headers", "--containers")
    node.until(lambda: re.fullmatch(r"busy-\S+ +c +\d+m +\d+Mi", node.kubectl(*containers).stdout.strip()), "a row")
    busy = ("top", "node", "--no-headers")
    node.until(lambda: node.kubectl(*busy).stdout.split()[:1] == [NODE], "the sample of the node")
    ok(node, "autoscale", "deploy/busy", "-n", namespace, "--min=1", "--max=2", "--cpu=50%")
    node.until(lambda: get(node, namespace, "deploy", "busy")["spec"]["replicas"] == 2, "the autoscaler to add a pod")


SERVER = "import http.server; http.server.HTTPServer(('', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()"
REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as line:
            line.sendall(b"HEAD / HTTP/1.0\\r\\n\\r\\n")
            print(bool(line.recv(100)))
    except OSError:
        print(False)
"""


def network_policy(name: str, selector: dict, **spec) -> dict:
    api = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    return {**api, "spec": {"podSelector": selector, **spec}}


def test_network_policies_decide_who_reaches_a_pod_and_its_service(node, namespace):
    labels = {"web": {"app": "web"}, "friend": {"role": "friend"}, "stranger": {"role": "stranger"}}
    for name, own in labels.items():
        script = SERVER if name == "web" else "import time; time.sleep(3600)"
        container = {"name": "main", "image": "python:3", "command": ["python3", "-c", script]}
        if name == "web":
            container |= {"ports": [{"name": "http", "containerPort": 8000}]}
            container |= {"readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}
        meta = {"name": name, "labels": own}
        apply(
            node, namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        )
    port = {"port": 80, "targetPort": "http"}
    apply(
        node,
        namespace,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [port]},
        },
    )
    ok(node, "wait", "-n", namespace, "pod", "--all", "--for=condition=Ready", "--timeout=600s")
    address = status(node, namespace, "web")["podIP"]

    def reached(name: str) -> list[str]:
        command = ("exec", "-n", namespace, name, "--", "python3", "-c", REACH, f"{address}:8000", "web:80")
        return ok(node, *command).split()

    node.until(lambda: reached("friend") == ["True", "True"], "the Service to be served")
    apply(node, namespace, network_policy("deny", {}, policyTypes=["Ingress"]))
    node.until(lambda: reached("friend") == ["False", "False"], "everything to be denied")
    friend = {"podSelector": {"matchLabels": {"role": "friend"}}}
    rule = {"from": [friend], "ports": [{"port": "http"}]}
    apply(node, namespace, network_policy("allow", {"matchLabels": {"app": "web"}}, ingress=[rule]))
    node.until(lambda: reached("friend") == ["True", "True"], "the friend to be allowed")
    assert reached("stranger") == ["False", "False"]
    assert conditions(status(node, namespace, "web"))["Ready"] == "True"
    apply(node, namespace, network_policy("mute", friend["podSelector"], policyTypes=["Egress"]))
    node.until(lambda: reached("friend") == ["False", "False"], "the friend to be mute")
    ok(node, "delete", "networkpolicy", "--all", "-n", namespace)
    node.until(lambda: reached("stranger") == ["True", "True"], "nothing to be denied any more")


def test_an_ingress_warns_that_it_has_no_effect(node, namespace):
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web"}}
    manifest = json.dumps({**ingress, "spec": {"defaultBackend": backend}})
    node.until(
        lambda: (
            "has no effect"
            in node.kubectl("apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=manifest).stderr
        ),
        "a warning about the Ingress",
    )
