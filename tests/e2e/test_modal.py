"""Pods at Modal on the real control plane: the SDK in the operator, and the stand-in in place of the service."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.app import stand_ins
from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Row
from skysail.local import addresses
from skysail.local.control_plane.flags import Component
from tests.e2e.test_cloud_training import TRAIN, training_job, until_job
from tests.support.clouds import at, claims, let_go, start_bridge
from tests.support.gang_programs import DDP, PEERS
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster
    from tests.support.kubectl import Manifest

NODE = "modal.com"
OFFLOAD = {"skysail.dev/offload": "modal"}
SAMPLES = Path(__file__).parents[2] / "config" / "samples"
POLITE = "trap 'echo farewell; exit 9' TERM; echo ahoy; while :; do sleep 0.05; done"


def flags(cluster: Cluster) -> tuple[str, ...]:
    home = cluster.home
    return (
        f"--node-address={addresses.CLUSTER_IP}",
        f"--node-certificate={home.pki / 'node.crt'}",
        f"--node-key={home.pki / 'node.key'}",
        f"--data-dir={home.root / 'clouds'}",
        f"--bridge-address={addresses.CLUSTER_IP}",
    )


def is_node_ready(cluster: Cluster) -> bool:
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", NODE, "-o", ready).stdout == "True"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    """An operator that gets its token from a Secret, after it has started without an account."""
    cluster.start_agent()
    env = dict(stand_ins.environment(cluster.home, "modal"))
    token_id, token_secret = env.pop("MODAL_TOKEN_ID"), env.pop("MODAL_TOKEN_SECRET")
    cluster.start_operator(flags=flags(cluster), env=env, restart=True)
    assert cluster.kubectl("get", "node", NODE).returncode != 0
    asking = pod("asks", "true")
    asking["metadata"]["annotations"] = {"modal-operator.io/offload": "true"}
    with fresh_namespace(cluster) as name:
        cluster.until_asking()
        apply(cluster, name, asking)
        cluster.until(lambda: "NoAccount" in json.dumps(get(cluster, name, "pod", "asks")["status"]), "NoAccount")
        ok(
            cluster,
            "create",
            "secret",
            "generic",
            "modal-token",
            "-n",
            "skysail-system",
            f"--from-literal=token-id={token_id}",
            f"--from-literal=token-secret={token_secret}",
        )
        cluster.until(lambda: is_node_ready(cluster), "node modal.com to be ready")
    yield cluster
    cluster.stop("operator")
    cluster.remove_agent()
    ok(cluster, "delete", "node", NODE, "--ignore-not-found")
    ok(cluster, "delete", "secret", "modal-token", "-n", "skysail-system")


@pytest.fixture
def namespace(node: Cluster) -> Iterator[str]:
    """After each test: no claim was billed twice at once, and nothing is left."""
    with fresh_namespace(node) as name:
        yield name
        let_go(node, name)
        node.until(lambda: claims(node, name) == [], f"the claims of {name} to be gone")
        assert billing.max_concurrent(rows(node)) <= 1
        assert [row for row in billing.billable(rows(node)) if name in row.note] == []


def rows(node: Cluster) -> list[Row]:
    whole, _, _ = stand_ins.ledger_file(node.home, "modal").read_bytes().rpartition(b"\n")
    return msgspec.json.Decoder(Row).decode_lines(whole)


def inject(node: Cluster, *faults: Fault) -> None:
    path = stand_ins.faults_file(node.home, "modal")
    partial = path.with_suffix(".new")
    partial.write_bytes(msgspec.json.encode(faults))
    partial.replace(path)


def modal_pod(name: str, *command: str, **options: object) -> Manifest:
    return at("modal", pod(name, *command, **options))


def end_of(shown: Manifest) -> Manifest:
    return shown["containerStatuses"][0]["state"]["terminated"]


def events(node: Cluster, namespace: str, name: str) -> set[str]:
    selector = f"--field-selector=involvedObject.name={name}"
    return {event["reason"] for event in get(node, namespace, "events", selector)["items"]}


def test_container_mode_sample_prints_its_line_and_shows_what_runs(node, namespace):
    ok(node, "apply", "-n", namespace, "-f", str(SAMPLES / "v1_pod_modal-container.yaml"))
    # The pod has the restart policy Always, so it is launched again and again.
    node.until(
        lambda: "modal.com/sb-" in json.dumps(get(node, namespace, "pod", "modal-container")["status"]), "an imageID"
    )
    node.until(
        lambda: "Hello from Modal!\n" in node.kubectl("logs", "modal-container", "-n", namespace).stdout, "its line"
    )
    claim = next(claim for claim in claims(node, namespace) if claim["status"].get("instanceId"))
    # 0.59 for the T4, one core, half a GiB.
    assert claim["status"]["usdPerHour"] == pytest.approx(0.59 + 0.1419 + 0.012)
    key = "modal-operator.io/function-id"
    node.until(
        lambda: key in get(node, namespace, "pod", "modal-container")["metadata"]["annotations"], "the annotations"
    )
    found = get(node, namespace, "pod", "modal-container")
    assert found["spec"]["nodeName"] == NODE
    annotations = found["metadata"]["annotations"]
    assert annotations[key].startswith("sb-")
    assert annotations["modal-operator.io/app-id"].startswith("ap-")
    assert annotations["modal-operator.io/app-id"] in annotations["modal-operator.io/log-url"]
    wanted = {"ImagePreparing", "WaitingForCapacity", "Launching", "Launched", "Started", "Terminated"}
    node.until(lambda: wanted <= events(node, namespace, "modal-container"), "events of every step")
    described = ok(node, "describe", "pod", "modal-container", "-n", namespace)
    assert "WaitingForCapacity" in described


def test_gpu_sample_without_a_command_waits_for_its_entry_point_and_costs_nothing(node, namespace):
    """The image of the sample is in a registry that this machine cannot reach."""
    ok(node, "apply", "-n", namespace, "-f", str(SAMPLES / "v1_pod_gpu-training.yaml"))
    node.until(
        lambda: "EntrypointUnknown" in json.dumps(get(node, namespace, "pod", "gpu-training")["status"]),
        "EntrypointUnknown",
    )
    assert claims(node, namespace) == []


def test_nonce_and_exit_code_come_back_and_the_secret_is_nowhere(node, namespace):
    canary = secrets.token_hex(16)
    ok(node, "create", "secret", "generic", "s", f"--from-literal=nonce={canary}", "-n", namespace)
    env = [{"name": "NONCE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "nonce"}}}]
    script = 'printf %s "$NONCE" | sha256sum; cat /etc/s/nonce | sha256sum; printf "\\377\\n"; exit 37'
    container = {"env": env, "volumeMounts": [{"name": "s", "mountPath": "/etc/s"}]}
    volumes = [{"name": "s", "secret": {"secretName": "s"}}]
    apply(node, namespace, modal_pod("p", "sh", "-c", script, container=container, volumes=volumes))
    shown = until_phase(node, namespace, "p", "Failed")
    assert (end_of(shown)["exitCode"], end_of(shown)["reason"]) == (37, "Error")
    digest = hashlib.sha256(canary.encode()).hexdigest()
    command = [*node.binaries.commands[Component.KUBECTL], "logs", "p", "-n", namespace]
    env_ = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    log = subprocess.run(command, env=env_, capture_output=True, check=True).stdout
    assert log == f"{digest}  -\n".encode() * 2 + b"\xff\n"
    seen = node.log("operator") + ok(node, "get", "events,cloudinstances", "-A", "-o", "json")
    seen += json.dumps(get(node, namespace, "pod", "p")) + stand_ins.ledger_file(node.home, "modal").read_text()
    assert canary not in seen
    assert stand_ins.environment(node.home, "modal")["MODAL_TOKEN_SECRET"] not in seen


def test_twenty_thousand_lines_through_cut_streams_arrive_once(node, namespace):
    script = "for i in $(seq 1 20); do seq $(( (i - 1) * 1000 + 1 )) $(( i * 1000 )); sleep 0.2; done"
    apply(node, namespace, modal_pod("p", "sh", "-c", script))
    until_phase(node, namespace, "p", "Running")
    inject(node, *(Fault(rpc="SandboxWaitV2", kind="cut", skip=skip) for skip in (0, 1, 2)))
    following = subprocess.Popen(
        [*node.binaries.commands[Component.KUBECTL], "logs", "-f", "p", "-n", namespace],
        env={**os.environ, "KUBECONFIG": str(node.kubeconfig)},
        stdout=subprocess.PIPE,
    )
    followed, _ = following.communicate(timeout=600)
    inject(node)
    want = "".join(f"{number}\n" for number in range(1, 20_001))
    until_phase(node, namespace, "p", "Succeeded")
    assert followed.decode() == want
    assert ok(node, "logs", "p", "-n", namespace) == want


def test_exec_cp_port_forward_and_a_polite_deletion(node, namespace, tmp_path):
    server = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"
    script = f'echo ahoy > /tmp/hello; cd /tmp; exec python3 -c "{server}"'
    apply(node, namespace, modal_pod("p", "sh", "-c", script, container={"image": "python:3.11-slim"}))
    until_phase(node, namespace, "p", "Running")
    nonce = secrets.token_hex(8)
    assert ok(node, "exec", "p", "-n", namespace, "--", "sh", "-c", f"echo {nonce}") == f"{nonce}\n"
    done = node.kubectl("exec", "p", "-n", namespace, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert ok(node, "exec", "-i", "p", "-n", namespace, "--", "cat", stdin=nonce) == nonce
    node.until(lambda: _fetched(node, namespace) == "ahoy\n", "port-forward to answer")
    copied = tmp_path / "hello"
    ok(node, "cp", f"{namespace}/p:/tmp/hello", str(copied))
    assert copied.read_text() == "ahoy\n"
    apply(node, namespace, modal_pod("polite", "sh", "-c", POLITE))
    node.until(lambda: "ahoy" in node.kubectl("logs", "polite", "-n", namespace).stdout, "the program to listen")
    (claim,) = [claim for claim in claims(node, namespace) if claim["spec"]["owner"]["name"] == "polite"]
    ok(node, "delete", "pod", "polite", "-n", namespace, TIMEOUT)
    sandbox = claim["status"]["instanceId"]
    node.until(lambda: any(row.instance == sandbox and row.verb == "ended" for row in rows(node)), "the sandbox to end")


def _fetched(node: Cluster, namespace: str) -> str:
    command = [*node.binaries.commands[Component.KUBECTL], "port-forward", "pod/p", ":8000", "-n", namespace]
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            port = forward.stdout.readline().split(":")[1].split()[0]
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/hello", timeout=30) as reply,
            ):
                return reply.read().decode()
            return ""
        finally:
            forward.terminate()


def test_readiness_probes_decide_when_a_pod_at_modal_is_ready(node, namespace):
    """An exec probe for one pod, a port for the other, which listens only when it is told to."""
    ready = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}
    server = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')"
    waiting = f'while [ ! -e /tmp/go ]; do sleep 0.1; done; exec python3 -c "{server}"'
    port = {"httpGet": {"port": 8000, "path": "/"}, "periodSeconds": 1, "timeoutSeconds": 10}
    python = {"image": "python:3.11-slim", "readinessProbe": port}
    apply(
        node,
        namespace,
        modal_pod("file", "sleep", "1000", container={"readinessProbe": ready}),
        modal_pod("port", "sh", "-c", waiting, container=python),
    )
    for name, opener in (("file", "/tmp/ready"), ("port", "/tmp/go")):
        until_phase(node, namespace, name, "Running")
        condition = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        assert ok(node, "get", "pod", name, "-n", namespace, "-o", condition) == "False"
        ok(node, "exec", name, "-n", namespace, "--", "touch", opener)
        until_condition(node, namespace, f"pod/{name}", "Ready")


def test_terminal_of_exec_has_a_size_and_an_exit_code(node, namespace):
    apply(node, namespace, modal_pod("p", "sleep", "1000"))
    until_phase(node, namespace, "p", "Running")
    argv = [*node.binaries.commands[Component.KUBECTL], "exec", "-it", "p", "-n", namespace]
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    terminal = Terminal([*argv, "--", "env", "PS1=$ ", "sh"], env)
    terminal.resize(101, 33)
    terminal.until(rb"[$#] $")
    terminal.ask_until(b"stty size\r", rb"33 101")
    terminal.type(b"echo $((6*7))\r")
    terminal.until(rb"[\r\n ]42\r")
    terminal.type(b"exit 5\r")
    assert terminal.end() == 5


def test_training_job_resumes_from_a_volume_of_modal(node, namespace):
    nonce = secrets.token_hex(8)
    manifest = training_job("burst", TRAIN.format(nonce=nonce), OFFLOAD, checkpointDir="/checkpoints")
    apply(node, namespace, manifest)
    status = until_job(node, namespace, "burst", "Succeeded")["status"]
    first, second = status["attempts"]
    assert (first["provider"], second["provider"], first["failure"]["exitCode"]) == ("modal", "modal", 3)
    assert (status["checkpoint"]["provider"], status["checkpoint"]["step"]) == ("modal", 1)
    assert ok(node, "logs", "-l", "job-name=burst-worker-1", "-n", namespace).split() == ["resumed", "1", nonce]
    ok(node, "delete", "trainingjob", "burst", "-n", namespace, TIMEOUT)


def test_outage_of_modal_leaves_the_operator_ready(node, namespace):
    apply(node, namespace, modal_pod("p", "sleep", "1000"))
    until_phase(node, namespace, "p", "Running")
    inject(node, Fault(rpc="*", kind="unavailable", times=None))
    node.until(lambda: node.get("/readyz/modal")[0] == 503, "the outage to be reported")
    assert node.get("/readyz")[0] == 200
    condition = "jsonpath={.status.conditions[?(@.type=='CloudReachable')].status}"
    node.until(lambda: ok(node, "get", "node", NODE, "-o", condition) == "False", "the node condition")
    inject(node)
    node.until(lambda: node.get("/readyz/modal")[0] == 200, "the end of the outage")
    assert until_phase(node, namespace, "p", "Running")["containerStatuses"][0]["restartCount"] == 0


def test_metrics_have_the_names_and_labels_of_the_modal_operator(node, namespace):
    apply(node, namespace, modal_pod("p", "true"))
    until_phase(node, namespace, "p", "Succeeded")
    node.until(
        lambda: 'modal_jobs_total{gpu_type="none",replicas="1",status="completed"}' in node.get("/metrics")[1],
        "the metric",
    )
    text = node.get("/metrics")[1]
    assert 'modal_jobs_total{gpu_type="none",replicas="1",status="created"}' in text
    assert 'modal_job_duration_seconds_bucket{gpu_type="none",le="300.0",status="completed"}' in text
    assert 'modal_cost_estimate_usd{gpu_type="none",job_name="' in text


def test_operator_killed_while_a_pod_runs_adopts_its_sandbox(node, namespace):
    apply(node, namespace, modal_pod("p", "sh", "-c", "echo before; sleep 5; echo after; exit 3"))
    until_phase(node, namespace, "p", "Running")
    node.until(lambda: ok(node, "logs", "p", "-n", namespace) == "before\n", "the first line")
    node.signal("operator")
    node.until(lambda: node.unit("operator").restarts > 0, "the operator to be restarted")
    shown = until_phase(node, namespace, "p", "Failed")
    assert end_of(shown)["exitCode"] == 3
    assert ok(node, "logs", "p", "-n", namespace) == "before\nafter\n"
    (claim,) = claims(node, namespace)
    assert [row.claim for row in rows(node) if row.verb == "create"].count(claim["metadata"]["name"]) == 1


GANG = {"skysail.dev/offload": "modal", "modal-operator.io/gpu-type": "H100"}


def gang_job(name: str, script: str, **spec: object) -> Manifest:
    command = ["python3", "-c", script]
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": GANG},
        "spec": {"framework": "pytorch", "image": "python:3", "command": command, "workers": 2, **spec},
    }


def until_phase_of(node: Cluster, namespace: str, name: str, phase: str) -> Manifest:
    def status() -> Manifest:
        return get(node, namespace, "trainingjob", name).get("status", {})

    node.until(lambda: status().get("phase") in {phase, "Failed"}, f"TrainingJob {name} to be {phase}")
    assert status()["phase"] == phase, status()
    return status()


def worker_log(node: Cluster, namespace: str, job: str, rank: int) -> str:
    chosen = f"job-name={job},batch.kubernetes.io/job-completion-index={rank}"
    return ok(node, "logs", "-n", namespace, "-l", chosen, "--tail=-1")


def test_training_of_two_workers_is_one_gang_and_its_secret_is_nowhere(node, namespace):
    nonce, canary = secrets.token_hex(8), secrets.token_hex(16)
    ok(node, "create", "secret", "generic", "mine", "-n", namespace, f"--from-literal=key={canary}")
    env = [
        {"name": "NONCE", "value": nonce},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "key"}}},
    ]
    template = {"spec": {"containers": [{"name": "trainer", "env": env}]}}
    apply(node, namespace, gang_job("pair", PEERS, gpuPerWorker=8, podTemplate=template))
    until_phase_of(node, namespace, "pair", "Succeeded")
    assert worker_log(node, namespace, "pair-worker-0", 1) == f"heard {nonce} of 2\n"
    wanted = {"ImagePreparing", "WaitingForCapacity", "Launching", "Launched", "Started", "Terminated"}
    for rank in get(node, namespace, "pods", "-l", "job-name=pair-worker-0")["items"]:
        name = rank["metadata"]["name"]
        node.until(lambda name=name: wanted <= events(node, namespace, name), f"events of every step of {name}")
    (claim,) = claims(node, namespace)
    assert (claim["spec"]["members"], claim["status"]["instanceId"][:3]) == (2, "ap-")
    assert [row.claim for row in rows(node) if row.verb == "create"].count(claim["metadata"]["name"]) == 1
    seen = json.dumps([claim, get(node, namespace, "events"), get(node, namespace, "trainingjob", "pair")])
    assert canary not in seen + stand_ins.ledger_file(node.home, "modal").read_text()


def test_gang_beyond_modals_limits_is_told_before_anything_is_launched(node, namespace):
    apply(node, namespace, gang_job("cpu", PEERS))
    job = {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "metadata": {"name": "part"},
        "spec": {"image": "python:3", "command": ["true"], "gpu": "T4", "replicas": 2, "enable_i6pn": True},
    }
    apply(node, namespace, job)

    def messages(reason: str) -> str:
        found = get(node, namespace, "events")["items"]
        return " ".join(row["message"] for row in found if row["reason"] == reason)

    node.until(lambda: "request 8 H100 for each pod" in messages("GangNotOffloaded"), "the event GangNotOffloaded")
    node.until(lambda: "request 8 T4 for each pod" in messages("InvalidSpec"), "the refused ModalJob")
    assert claims(node, namespace) == []


def test_replicas_of_a_pod_are_a_gang_behind_it(node, namespace):
    script = "import sys; print('rank', sys.argv[1]); sys.exit(int(sys.argv[1]))"
    found = modal_pod("many", "python3", "-c", script, "{rank}")
    found["metadata"]["annotations"] = {
        "modal-operator.io/gpu": "H100:8",
        "modal-operator.io/replicas": "2",
        "modal-operator.io/enable-i6pn": "true",
    }
    found["spec"]["containers"][0]["image"] = "python:3"
    apply(node, namespace, found)
    shown = until_phase(node, namespace, "many", "Failed")
    assert end_of(shown)["exitCode"] == 1
    assert "[1] rank 1\n" in ok(node, "logs", "many", "-n", namespace)


@pytest.mark.on_demand
@pytest.mark.timeout(1800)
def test_pytorch_ranks_average_gradients_and_resume_after_one_was_killed(node, namespace):
    image = "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"
    apply(node, namespace, gang_job("ddp", DDP, image=image, gpuPerWorker=8, checkpointDir="/checkpoints"))
    status = until_phase_of(node, namespace, "ddp", "Succeeded")
    first, second = status["attempts"]
    assert (first["provider"], second["resumedFrom"]["path"]) == ("modal", "/checkpoints/step-3.pt")
    assert first["failure"]["exitCode"] != 0
    for rank in range(2):
        text = worker_log(node, namespace, "ddp-worker-1", rank)
        assert "resumed at 3\n" in text
        assert "averaged over 2 ranks\n" in text


@pytest.mark.on_demand
def test_operator_killed_while_a_gang_runs_adopts_it(node, namespace):
    script = "import time; print('before', flush=True); time.sleep(20); print('after')"
    apply(node, namespace, gang_job("kept", script, gpuPerWorker=8))
    until_phase_of(node, namespace, "kept", "Running")
    node.until(lambda: worker_log(node, namespace, "kept-worker-0", 1) == "before\n", "the first line")
    node.signal("operator")
    node.until(lambda: node.unit("operator").restarts > 0, "the operator to be restarted")
    until_phase_of(node, namespace, "kept", "Succeeded")
    for rank in range(2):
        assert worker_log(node, namespace, "kept-worker-0", rank) == "before\nafter\n"
    (claim,) = claims(node, namespace)
    assert [row.claim for row in rows(node) if row.verb == "create"].count(claim["metadata"]["name"]) == 1


# Echoes the length of the body, its secret and the credentials that it saw.
SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        body = f"{os.environ['NONCE']} {size} {self.path}".encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    do_GET = lambda self: self.do_POST()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("0.0.0.0", 6006), Handler).serve_forever()
"""


def test_tunnel_uses_a_connect_token_and_a_service_of_tcp_a_relay(node, namespace):
    nonce = secrets.token_hex(16)
    start_bridge(node, env=stand_ins.environment(node.home, "modal"))
    container = {
        "image": "python:3",
        "env": [{"name": "NONCE", "value": nonce}],
        # A probe starts a program in the sandbox, which takes its time on a busy machine.
        "readinessProbe": {"tcpSocket": {"port": 6006}, "periodSeconds": 1, "timeoutSeconds": 30},
    }
    names = {"web": "tunnel", "raw": "plain"}
    for name, kind in names.items():
        server = modal_pod(name, "python", "-u", "-c", SERVER, container=container)
        asked = {"modal-operator.io/tunnel": "true", "modal-operator.io/tunnel-port": "6006"}
        server["metadata"] |= {"labels": {"app": name}, "annotations": asked if kind == "tunnel" else {}}
        apply(node, namespace, server)
    spec = {"selector": {"app": "raw"}, "ports": [{"port": 80, "targetPort": 6006}]}
    apply(node, namespace, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "raw"}, "spec": spec})
    # A new port of the bridge opens a moment after the Service leads there.
    script = (
        "import time, urllib.request\n"
        "def post(url):\n"
        "    while True:\n"
        "        try: return urllib.request.urlopen(url, data=b'x' * 300_000, timeout=60).read().decode()\n"
        "        except OSError: time.sleep(0.2)\n"
        "print(post('http://web-tunnel/a')); print(post('http://raw/b'))\n"
    )
    client = pod("client", "python", "-u", "-c", script, container={"image": "python:3"})
    client["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "local"}
    apply(node, namespace, client)
    until_phase(node, namespace, "client", "Succeeded")
    assert ok(node, "logs", "client", "-n", namespace) == f"{nonce} 300000 /a\n{nonce} 300000 /b\n"
    protocols = {
        claim["spec"]["owner"]["name"]: claim["status"]["bridgePorts"][0].get("protocol", "tcp")
        for claim in claims(node, namespace)
    }
    assert protocols == {"web": "http", "raw": "tcp"}
    assert nonce not in node.log("bridge")
    node.stop("bridge")
