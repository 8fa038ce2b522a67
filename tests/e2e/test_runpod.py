"""RunPod's account on the real plane, against the stand-in: pods run, end and are paid once, by its ledger."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from skysail.app import manifests, stand_ins
from skysail.cloud.runpod.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.ledger import Row
from skysail.local import addresses
from tests.support import registry as registry_server
from tests.support.clouds import NODES, claims, flags, let_go, start_bridge
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok, pod, until_condition, until_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

NODE = NODES["runpod"]
# Small limits: Modal bills CPU and memory besides the GPU, and its price must be below the caps.
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "500m", "memory": "256Mi"}}}
ASK = {"runpod.io/offload": "true"}
CHEAPEST = {"skysail.dev/offload": "cheapest", "runpod.io/max-price": "1"}
SAMPLE = Path(__file__).parents[2] / "config" / "samples" / "batch_v1_job.yaml"
POLITE = "trap 'echo farewell; exit 0' TERM; echo ahoy; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    env = {
        **stand_ins.environment(cluster.home, "runpod"),
        **stand_ins.environment(cluster.home, "modal"),
        "SKYSAIL_ALLOWED_REGISTRIES": f"http://{addresses.CLUSTER_IP}:{registry_server.INSIDE_PORT}",
        "SKYSAIL_LAUNCHES_PER_NAMESPACE": "1000",
        "SKYSAIL_AUTOSCALER_WAIT_SECONDS": "1",
        "SKYSAIL_MAX_PENDING_SECONDS": "1",
        "SKYSAIL_MAX_GPU_PRICE": "1",  # the cheapest GPU of Modal costs more than the default
    }
    cluster.start_operator(flags=flags(cluster), env=env, restart=True)
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    cluster.until(lambda: cluster.kubectl("get", "node", NODE, "-o", ready).stdout == "True", "the node to be ready")
    cluster.until_asking()
    apply(cluster, "default", manifests.default_policy())
    yield cluster
    cluster.end_operator()
    cluster.remove_agent()
    ok(cluster, "delete", "node", *NODES.values(), "--ignore-not-found")
    ok(cluster, "delete", "mutatingwebhookconfiguration", "skysail", "--ignore-not-found")


class Books:
    """Ledger of the stand-in."""

    def __init__(self, node: Cluster) -> None:
        self._node = node
        self.id = get(node, "default", "namespace", "kube-system")["metadata"]["uid"]

    def rows(self) -> list[Row]:
        path = stand_ins.ledger_file(self._node.home, "runpod")
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return msgspec.json.Decoder(Row).decode_lines(whole)

    def launches(self, pod_uid: str) -> int:
        return sum(row.verb == "create" and row.claim.startswith(pod_uid) for row in self.rows())

    def billed(self) -> set[str]:
        return {row.claim for row in billing.billable(self.rows())}

    def check(self) -> None:
        rows = self.rows()
        assert billing.max_concurrent(rows) <= 1, "a claim was billed twice at once"
        assert billing.foreign_instances_touched(rows, cluster=self.id) == ()


@pytest.fixture(scope="module")
def books(node: Cluster) -> Books:
    return Books(node)


@pytest.fixture
def namespace(node: Cluster, books: Books) -> Iterator[str]:
    """After each test nothing was paid twice, and nothing is left at RunPod."""
    with fresh_namespace(node) as name:
        yield name
        faults(node)
        let_go(node, name)
        node.until(lambda: claims(node, name) == [], f"the claims of {name} to be gone")
        books.check()
        assert not books.billed()


def faults(node: Cluster, *script: Fault) -> None:
    path = stand_ins.faults_file(node.home, "runpod")
    path.write_bytes(msgspec.json.encode(list(script)))


def gpu_pod(name: str, *command: str, **spec: Any) -> Manifest:
    manifest = pod(name, *command, container=GPU, **spec)
    manifest["metadata"]["annotations"] = dict(ASK)
    return manifest


def job(name: str, script: str, annotations: dict[str, str] = ASK, **spec: Any) -> Manifest:
    template = {"spec": pod("", "sh", "-c", script, container=GPU)["spec"]}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


def pods_of(node: Cluster, namespace: str, name: str) -> list[Manifest]:
    found: list[Manifest] = get(node, namespace, "pods", "-l", f"job-name={name}")["items"]
    return found


def until_succeeded(node: Cluster, namespace: str, name: str, count: int = 1) -> None:
    node.until(lambda: get(node, namespace, "job", name)["status"].get("succeeded") == count, f"Job {name} to succeed")


def uid(node: Cluster, namespace: str, name: str) -> str:
    return get(node, namespace, "pod", name)["metadata"]["uid"]


def test_nonce_and_exit_code_come_back_and_secrets_stay_out_of_the_claim(node, namespace, books):
    nonce = secrets.token_hex(16)
    ok(node, "create", "secret", "generic", "s", f"--from-literal=nonce={nonce}", "-n", namespace)
    manifest = gpu_pod("p", "sh", "-c", 'printf %s "$NONCE" | sha256sum; cat /etc/s/nonce | sha256sum; exit 37')
    container = manifest["spec"]["containers"][0]
    container["env"] = [{"name": "NONCE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "nonce"}}}]
    container["volumeMounts"] = [{"name": "s", "mountPath": "/etc/s"}]
    manifest["spec"]["volumes"] = [{"name": "s", "secret": {"secretName": "s"}}]
    apply(node, namespace, manifest)
    shown = until_phase(node, namespace, "p", "Failed")
    end = shown["containerStatuses"][0]["state"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (37, "Error")
    found = get(node, namespace, "pod", "p")
    assert found["spec"]["nodeName"] == NODE
    digest = hashlib.sha256(nonce.encode()).hexdigest()
    assert [line.split()[0] for line in ok(node, "logs", "p", "-n", namespace).splitlines()] == [digest, digest]
    (claim,) = claims(node, namespace)
    assert end["containerID"] or claim["status"]["instanceId"]
    assert nonce not in json.dumps(claim)
    events = ok(node, "get", "events", "-n", namespace, "-o", "json")
    assert nonce not in events + json.dumps(found["status"])
    seen = node.log("operator") + stand_ins.ledger_file(node.home, "runpod").read_text() + events + json.dumps(claim)
    assert nonce not in seen
    assert stand_ins.environment(node.home, "runpod")["RUNPOD_API_KEY"] not in seen + json.dumps(found)
    assert books.launches(found["metadata"]["uid"]) == 1


def test_job_of_the_sample_runs_by_force_and_is_annotated(node, namespace, books):
    sample = yaml.safe_load(SAMPLE.read_text())
    container = sample["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": "busybox:1.36", "command": ["sh", "-c", "echo ahoy"]}
    apply(node, namespace, sample)
    until_succeeded(node, namespace, "my-gpu-job")
    (made,) = pods_of(node, namespace, "my-gpu-job")
    (claim,) = claims(node, namespace)
    assert made["spec"]["nodeName"] == NODE
    assert ok(node, "logs", made["metadata"]["name"], "-n", namespace) == "ahoy\n"
    annotations = get(node, namespace, "job", "my-gpu-job")["metadata"]["annotations"]
    assert annotations["runpod.io/offloaded"] == "true"
    assert annotations["runpod.io/pod-id"] == claim["status"]["instanceId"]
    assert annotations["runpod.io/cost-per-hr"] == "0.250000"
    managed = get(node, namespace, "pods", "-l", "runpod.io/managed=true")["items"]
    assert [row["metadata"]["name"] for row in managed] == [made["metadata"]["name"]]
    assert made["metadata"]["annotations"]["runpod.io/pod-id"] == claim["status"]["instanceId"]
    assert made["metadata"]["labels"]["runpod.io/pod-id"] == claim["status"]["instanceId"]


def test_sample_without_a_command_runs_the_entrypoint_of_its_image(node, namespace, books):
    nonce = secrets.token_hex(8)
    with registry_server.running() as registry, registry_server.inside(node, registry) as host:
        registry.push("busybox", "1.36", registry_server.image({"Entrypoint": ["sh", "-c"], "Cmd": [f"echo {nonce}"]}))
        sample = yaml.safe_load(SAMPLE.read_text())
        sample["spec"]["template"]["spec"]["containers"][0]["image"] = f"{host}/busybox:1.36"
        apply(node, namespace, sample)
        until_succeeded(node, namespace, "my-gpu-job")
    (made,) = pods_of(node, namespace, "my-gpu-job")
    assert ok(node, "logs", made["metadata"]["name"], "-n", namespace).strip() == nonce
    assert books.launches(made["metadata"]["uid"]) == 1


def test_job_without_capacity_at_runpod_goes_on_at_modal(node, namespace, books):
    faults(node, Fault(what="no-capacity", on="create"))
    apply(node, namespace, job("j", "echo ahoy", CHEAPEST))
    until_succeeded(node, namespace, "j")
    ended = [row for row in pods_of(node, namespace, "j") if row["status"]["phase"] == "Succeeded"]
    assert [row["spec"]["nodeName"] for row in ended] == [NODES["modal"]]
    assert not books.billed()


@pytest.mark.on_demand
def test_job_goes_on_at_modal_if_the_account_at_runpod_has_no_balance(node, namespace, books):
    faults(node, Fault(what="402", on="create"))
    apply(node, namespace, job("j", "echo ahoy", CHEAPEST), job("stays", "echo ahoy"))
    until_succeeded(node, namespace, "j")
    ended = [row for row in pods_of(node, namespace, "j") if row["status"]["phase"] == "Succeeded"]
    assert [row["spec"]["nodeName"] for row in ended] == [NODES["modal"]]
    (waits,) = pods_of(node, namespace, "stays")
    assert waits["status"]["phase"] == "Pending", "it asks for RunPod"
    assert not books.billed()
    faults(node)
    restart(node)  # the old process would ask the account again in five minutes
    until_succeeded(node, namespace, "stays")


@pytest.mark.on_demand
def test_request_that_is_rejected_for_one_machine_is_tried_for_the_next(node, namespace, books):
    faults(node, Fault(what="400", on="create", at=1))
    apply(node, namespace, gpu_pod("p", "sh", "-c", "echo ahoy"))
    until_phase(node, namespace, "p", "Succeeded")
    (claim,) = claims(node, namespace)
    assert [row["reason"] for row in claim["status"]["refusedCandidates"]] == ["Rejected"]
    assert books.launches(uid(node, namespace, "p")) == 1


def restart(node: Cluster) -> None:
    """Kill the operator, which is started again and reads all offers."""
    before = node.unit("operator").restarts
    node.signal("operator")
    node.until(lambda: node.unit("operator").restarts > before, "the operator to be started again")
    node.until_asking()


WAYS = {
    "force": (["one"], ASK),
    "waiting": (["one"], {"runpod.io/managed": "true"}),
    # More than one waits, which is the default threshold.
    "threshold": (["one", "two"], {"runpod.io/managed": "true"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_job_goes_by_force_by_waiting_or_by_the_threshold(node, namespace, books, way):
    names, annotations = WAYS[way]
    apply(node, namespace, *(job(name, "echo ahoy", annotations) for name in names))
    for name in names:
        until_succeeded(node, namespace, name)
        (made,) = pods_of(node, namespace, name)
        assert made["spec"]["nodeName"] == NODE
        assert made["metadata"]["labels"]["runpod.io/managed"] == "true"
        assert books.launches(made["metadata"]["uid"]) == 1


def test_parallel_job_pays_once_for_each_pod(node, namespace, books):
    indexed = {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
    apply(node, namespace, job("j", "echo $JOB_COMPLETION_INDEX; sleep 15", **indexed))

    def ids() -> list[str]:
        return get(node, namespace, "job", "j")["metadata"]["annotations"].get("runpod.io/pod-id", "").split(",")

    node.until(lambda: len(ids()) == 3, "the Job to name its three pods")
    until_succeeded(node, namespace, "j", 3)
    found = pods_of(node, namespace, "j")
    assert {books.launches(row["metadata"]["uid"]) for row in found} == {1}
    printed = ok(node, "logs", "-l", "job-name=j", "-n", namespace, "--tail=-1")
    assert sorted(printed.split()) == ["0", "1", "2"]


@pytest.mark.on_demand
def test_failed_job_is_retried_and_paid_for_each_try(node, namespace, books):
    apply(node, namespace, job("j", "exit 37", backoffLimit=1))
    until_condition(node, namespace, "job/j", "Failed")
    found = pods_of(node, namespace, "j")
    assert len(found) == 2
    assert {books.launches(row["metadata"]["uid"]) for row in found} == {1}


def test_all_lines_arrive_through_cut_streams(node, namespace):
    faults(node, *(Fault(what="cut", on="logs", at=number, lines=3000) for number in (1, 2, 3, 4)))
    apply(node, namespace, gpu_pod("p", "sh", "-c", "seq 1 20000"))
    until_phase(node, namespace, "p", "Succeeded")
    printed = ok(node, "logs", "p", "-n", namespace, "--tail=-1")
    assert printed.split() == [str(number) for number in range(1, 20001)]


def test_deleted_pod_may_end_in_its_own_time(node, namespace, books):
    apply(node, namespace, gpu_pod("p", "sh", "-c", POLITE, terminationGracePeriodSeconds=60))
    until_condition(node, namespace, "pod/p", "Ready")
    node.until(lambda: "ahoy" in ok(node, "logs", "p", "-n", namespace), "the program to listen")
    assert ok(node, "exec", "p", "-n", namespace, "--", "echo", "here") == "here\n"
    refused = node.kubectl("exec", "-i", "p", "-n", namespace, "--", "cat", stdin="x")
    assert "leave out -i" in refused.stderr
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    assert not books.billed()


@pytest.mark.on_demand
def test_pod_deleted_while_it_starts_leaves_nothing(node, namespace, books):
    apply(node, namespace, gpu_pod("p", "sleep", "1000"))
    node.until(lambda: bool(claims(node, namespace)), "the claim")
    ok(node, "delete", "pod", "p", "-n", namespace, "--grace-period=0", "--force")
    node.until(lambda: claims(node, namespace) == [], "the claim to be gone")
    assert not books.billed()


@pytest.mark.on_demand
def test_pod_deleted_while_it_waits_for_capacity_leaves_nothing(node, namespace, books):
    faults(node, Fault(what="no-capacity", on="create"))
    apply(node, namespace, gpu_pod("p", "sleep", "1000"))
    status = "jsonpath={.status}"
    node.until(
        lambda: "NoCapacity" in node.kubectl("get", "pod", "p", "-n", namespace, "-o", status).stdout,
        "the pod to wait for capacity",
    )
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    node.until(lambda: claims(node, namespace) == [], "the claim to be gone")
    assert not books.billed()


@pytest.mark.on_demand
def test_finished_pod_keeps_its_claim_and_leaves_nothing_when_it_is_deleted(node, namespace, books):
    apply(node, namespace, gpu_pod("p", "true"))
    until_phase(node, namespace, "p", "Succeeded")
    assert [claim["status"]["state"] for claim in claims(node, namespace)] == ["Terminated"]
    ok(node, "delete", "pod", "p", "-n", namespace, TIMEOUT)
    node.until(lambda: claims(node, namespace) == [], "the claim to be gone")
    assert not books.billed()


_MORE_FAULTS = ("malformed-done", "timeout-done", "late", "hidden", "429")


@pytest.mark.parametrize(
    "what", ["500-done", *(pytest.param(what, marks=pytest.mark.on_demand) for what in _MORE_FAULTS)]
)
def test_create_with_a_fault_pays_once(node, namespace, books, what):
    """Answers that are lost or late, pods that the service does not show yet, and a service that is busy."""
    faults(node, Fault(what=what, on="create", at=1, seconds=8.0 if what != "timeout-done" else 1.0))
    apply(node, namespace, gpu_pod("p", "sh", "-c", "echo ahoy"))
    until_phase(node, namespace, "p", "Succeeded")
    assert books.launches(uid(node, namespace, "p")) == 1


@pytest.mark.on_demand
def test_empty_and_partial_lists_end_nothing(node, namespace, books):
    apply(node, namespace, gpu_pod("p", "sh", "-c", "echo ahoy; sleep 1000"))
    until_condition(node, namespace, "pod/p", "Ready")
    lies = (Fault(what="empty", on="list", at=number) for number in range(1, 4))
    faults(node, *lies, Fault(what="500", on="list", at=4), Fault(what="partial", on="list", at=5))
    asked = (row for row in iter(lambda: claims(node, namespace)[0], None))
    health = "jsonpath={.status.conditions[?(@.type=='CloudReachable')].status}"
    node.until(lambda: node.kubectl("get", "node", NODE, "-o", health).stdout != "True", "the lie to be noticed")
    node.until(lambda: node.kubectl("get", "node", NODE, "-o", health).stdout == "True", "the service to answer again")
    assert next(asked)["status"]["state"] == "Running"
    assert get(node, namespace, "pod", "p")["status"]["phase"] == "Running"
    assert books.launches(uid(node, namespace, "p")) == 1


@pytest.mark.on_demand
def test_sold_out_candidate_is_followed_by_the_next(node, namespace, books):
    faults(node, *(Fault(what="no-capacity", on="create", at=number) for number in (1, 2, 3)))
    apply(node, namespace, gpu_pod("p", "sh", "-c", "echo ahoy"))
    until_phase(node, namespace, "p", "Succeeded")
    (claim,) = claims(node, namespace)
    assert claim["status"]["candidate"] == 3
    assert "no longer any instances" in claim["status"]["refusedCandidates"][0]["message"]
    assert books.launches(uid(node, namespace, "p")) == 1


def test_pod_that_is_billed_above_the_cap_is_deleted_and_the_next_is_tried(node, namespace, books):
    faults(node, Fault(what="dear", on="create", at=1))
    manifest = gpu_pod("p", "sh", "-c", "sleep 3; echo ahoy")
    manifest["metadata"]["annotations"]["runpod.io/max-price"] = "0.3"
    apply(node, namespace, manifest)
    until_phase(node, namespace, "p", "Succeeded")
    rows = [row for row in books.rows() if row.verb == "create" and row.claim.startswith(uid(node, namespace, "p"))]
    assert [row.usd for row in rows] == [0.5, 0.25]


def test_gpu_above_the_cap_is_never_taken(node, namespace, books):
    """The cap of the operator is 1 USD. A smaller cap of the pod counts, a larger one does not."""
    for name, memory, cap in (("large", "80", "9"), ("small", "16", "0.1")):
        manifest = gpu_pod(name, "true")
        manifest["metadata"]["annotations"] |= {"runpod.io/required-gpu-memory": memory, "runpod.io/max-price": cap}
        apply(node, namespace, manifest)

    def message(name: str) -> str:
        return json.dumps(get(node, namespace, "pod", name)["status"])

    node.until(lambda: "A100 80GB PCIe" in message("large") and "above the cap of 1" in message("large"), "the cap")
    node.until(lambda: "above the cap of 0.1" in message("small"), "the cap of the pod")
    assert claims(node, namespace) == []
    assert [books.launches(uid(node, namespace, name)) for name in ("large", "small")] == [0, 0]


@pytest.mark.on_demand
def test_suspended_job_ends_its_pods(node, namespace, books):
    apply(node, namespace, job("j", "sleep 1000"))
    node.until(lambda: bool(books.billed()), "the pod to be billed")
    ok(node, "patch", "job", "j", "-n", namespace, "-p", '{"spec": {"suspend": true}}')
    node.until(lambda: not books.billed(), "the pod to be deleted")


def test_deleted_job_ends_its_pods(node, namespace, books):
    apply(node, namespace, job("j", "sleep 1000"))
    node.until(lambda: bool(books.billed()), "the pod to be billed")
    ok(node, "delete", "job", "j", "-n", namespace, TIMEOUT)
    node.until(lambda: not books.billed(), "the pod to be deleted")


def test_object_of_the_account_needs_a_policy(node, namespace, books):
    manifest = gpu_pod("p", "true")
    manifest["metadata"]["annotations"]["runpod.io/templateId"] = "t1"
    apply(node, namespace, manifest)
    message = "jsonpath={.status.conditions[*].message}"
    node.until(
        lambda: "spec.accountObjects" in node.kubectl("get", "pod", "p", "-n", namespace, "-o", message).stdout,
        "the pod to say what to allow",
    )
    assert books.launches(uid(node, namespace, "p")) == 0


# An HTTP server, and one that sends back the length of what it gets.
SERVERS = """
import http.server, os, socket, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["NONCE"].encode())
    def log_message(self, *_): pass
def count():
    listener = socket.create_server(("0.0.0.0", 7000))
    while True:
        line, _ = listener.accept(); size = 0
        while data := line.recv(65536): size += len(data)
        line.sendall(f"{os.environ['NONCE']} {size}".encode()); line.close()
threading.Thread(target=count).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


def test_services_reach_http_ports_by_the_proxy_and_tcp_ports_by_their_mapping(node, namespace, books):
    nonce = secrets.token_hex(16)
    start_bridge(node, env=stand_ins.environment(node.home, "runpod"))
    server = gpu_pod("web", "python", "-u", "-c", SERVERS)
    server["metadata"]["labels"] = {"app": "web"}
    server["metadata"]["annotations"]["runpod.io/ports"] = "8000/http,7000/tcp"
    (container,) = server["spec"]["containers"]
    container |= {
        "image": "python:3",
        "env": [{"name": "NONCE", "value": nonce}],
        "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": 7000}, "periodSeconds": 1, "failureThreshold": 60},
    }
    ports = [{"name": "http", "port": 80, "targetPort": 8000}, {"name": "tcp", "port": 7000}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": ports},
    }
    apply(node, namespace, server, service)
    until_condition(node, namespace, "pod/web", "Ready")
    script = (
        "import socket, time, urllib.request\n"
        "def again(call):\n"
        "    while True:\n"
        "        try: return call()\n"
        "        except OSError: time.sleep(0.2)\n"  # the Service leads to the bridge a moment later
        "print(again(lambda: urllib.request.urlopen('http://web', timeout=60).read().decode()))\n"
        "line = again(lambda: socket.create_connection(('web', 7000), timeout=60))\n"
        "line.sendall(b'y' * 1_000_000); line.shutdown(socket.SHUT_WR)\n"
        "print(b''.join(iter(lambda: line.recv(65536), b'')).decode())\n"
    )
    client = pod("client", "python", "-u", "-c", script, container={"image": "python:3"})
    client["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "local"}
    apply(node, namespace, client)
    until_phase(node, namespace, "client", "Succeeded")
    assert ok(node, "logs", "client", "-n", namespace) == f"{nonce}\n{nonce} 1000000\n"
    node.stop("bridge")


def test_image_without_a_shell_is_refused_before_anything_is_paid(node, namespace, books):
    with registry_server.running() as registry, registry_server.inside(node, registry) as host:
        layer = registry_server.layer({"app": b"x"})
        registry.push("team/static", "v1", registry_server.image({"Entrypoint": ["/app"]}, layer))
        manifest = gpu_pod("p", "/app")
        manifest["spec"]["containers"][0]["image"] = f"{host}/team/static:v1"
        apply(node, namespace, manifest)
        status = "jsonpath={.status}"
        node.until(
            lambda: "has no /bin/sh" in node.kubectl("get", "pod", "p", "-n", namespace, "-o", status).stdout,
            "the pod to say what is missing",
        )
    conditions = get(node, namespace, "pod", "p")["status"]["conditions"]
    assert "NoShell" in {row.get("reason") for row in conditions}
    assert books.launches(uid(node, namespace, "p")) == 0


def test_restarted_operator_reads_every_line_once_and_sends_a_pod_without_stock_to_modal(node, namespace, books):
    """The last test of the module: the operator believes for five minutes that RunPod has no GPU."""
    cuts = (Fault(what="cut", on="logs", at=number, lines=3000) for number in range(1, 7))
    faults(node, *cuts, Fault(what="sold-out", on="catalogue"))
    apply(node, namespace, gpu_pod("p", "sh", "-c", "seq 1 10000; sleep 10; seq 10001 20000"))
    node.until(
        lambda: "5000" in node.kubectl("logs", "p", "-n", namespace, "--tail=-1").stdout.split(), "the log to grow"
    )
    restart(node)
    manifest = gpu_pod("q", "sh", "-c", "echo ahoy")
    manifest["metadata"]["annotations"] = CHEAPEST
    apply(node, namespace, manifest)
    until_phase(node, namespace, "q", "Succeeded")
    assert get(node, namespace, "pod", "q")["spec"]["nodeName"] == NODES["modal"]
    until_phase(node, namespace, "p", "Succeeded")
    printed = ok(node, "logs", "p", "-n", namespace, "--tail=-1")
    assert printed.split() == [str(number) for number in range(1, 20001)]
    assert books.launches(uid(node, namespace, "p")) == 1
