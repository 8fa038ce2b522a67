"""Gangs, TrainingJobs, ModalJobs and TrainJobs at simulated clouds: all ranks or none, one claim, real ends."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from skysail.cloud.checkpoint_volumes import volume_id
from tests.support.clouds import NODES, Books, claims, let_go, start_operator
from tests.support.kubectl import apply, fresh_namespace, get, ok, pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

PORT = 29500
# Rank 0 gives a value to rank 1, which finds rank 0 by MASTER_ADDR and by the name of its pod.
SERVER = """
import socket
server = socket.create_server(("", {port}))
for _ in range(2):
    peer, _ = server.accept()
    peer.sendall(b"{nonce}")
    peer.close()
"""
CLIENT = """
import os, socket, time
def ask(host):
    for _ in range(600):
        try:
            return socket.create_connection((host, {port})).recv(64).decode()
        except OSError:
            time.sleep(0.05)
    raise SystemExit("no answer from " + host)
print(ask(os.environ["MASTER_ADDR"]), ask("gang-0.peers"))
"""


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start_agent()
    start_operator(cluster, env={"SKYSAIL_AUTOSCALER_WAIT_SECONDS": "1"})
    cluster.until_asking()
    yield cluster
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
        let_go(node, name)
        books.until_let_go(name)


def gang(provider: str, *scripts: str, **spec: Any) -> list[Manifest]:
    """A headless Service and an Indexed Job, whose index chooses the script."""
    choice = f"import os; exec({list(scripts)!r}[int(os.environ['JOB_COMPLETION_INDEX'])])"
    template = pod("", "python3", "-c", choice, container={"image": "python:3"})["spec"]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "peers"},
        "spec": {"clusterIP": "None", "selector": {"job-name": "gang"}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "gang", "annotations": {"skysail.dev/offload": provider}},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(scripts),
            "parallelism": len(scripts),
            "template": {"spec": {**template, "subdomain": "peers", "restartPolicy": "Never"}},
            **spec,
        },
    }
    return [service, job]


def pods(node: Cluster, namespace: str) -> dict[str, Manifest]:
    """The pods of the gang by their index."""
    index = "batch.kubernetes.io/job-completion-index"
    found = get(node, namespace, "pods", "-l", "job-name=gang")["items"]
    return {each["metadata"]["annotations"][index]: each for each in found}


def events(node: Cluster, namespace: str) -> dict[str, str]:
    """Messages by reason."""
    return {row["reason"]: row.get("message", "") for row in get(node, namespace, "events")["items"]}


def exit_code(shown: Manifest) -> int | None:
    rows = shown["status"].get("containerStatuses") or [{}]
    code: int | None = rows[0].get("state", {}).get("terminated", {}).get("exitCode")
    return code


def test_ranks_meet_at_the_cloud_and_have_one_claim(node, namespace, books):
    nonce = secrets.token_hex(8)
    scripts = (SERVER.format(port=PORT, nonce=nonce), CLIENT.format(port=PORT))
    apply(node, namespace, *gang("modal", *scripts))
    node.until(lambda: get(node, namespace, "job", "gang")["status"].get("succeeded") == 2, "both ranks to succeed")
    found = pods(node, namespace)
    assert {each["spec"]["nodeName"] for each in found.values()} == {NODES["modal"]}
    assert ok(node, "logs", found["1"]["metadata"]["name"], "-n", namespace).split() == [nonce, nonce]
    uid = get(node, namespace, "job", "gang")["metadata"]["uid"]
    claim = get(node, "", "cloudinstance", f"{uid}-0")
    assert claim["spec"]["owner"]["kind"] == "Job"
    assert [member["name"] for member in claim["spec"]["memberPods"]] == [
        found[rank]["metadata"]["name"] for rank in ("0", "1")
    ]
    assert claim["spec"]["members"] == 2
    assert books.launches("modal", uid) == 1


def test_a_failing_rank_ends_the_others_and_is_named(node, namespace, books):
    scripts = ("import time; time.sleep(3600)", "raise SystemExit(37)")
    apply(node, namespace, *gang("modal", *scripts, backoffLimit=0))
    node.until(
        lambda: get(node, namespace, "job", "gang")["status"].get("failed", 0) > 0, "the Job to fail with its rank"
    )
    node.until(
        lambda: all(each["status"]["phase"] == "Failed" for each in pods(node, namespace).values()), "all ranks to end"
    )
    found = pods(node, namespace)
    uid = get(node, namespace, "job", "gang")["metadata"]["uid"]
    claim = get(node, "", "cloudinstance", f"{uid}-0")
    assert claim["status"]["exit"]["code"] == 37
    assert "Rank 1" in claim["status"]["exit"]["message"]
    assert [rank["exit"]["code"] for rank in claim["status"]["ranks"]][1] == 37
    if "1" in found:
        assert exit_code(found["1"]) == 37


def test_a_cloud_without_private_network_gets_no_rank(node, namespace):
    apply(node, namespace, *gang("runpod", "print('in the cluster')", "print('in the cluster')"))
    node.until(lambda: "GangNotOffloaded" in events(node, namespace), "the event GangNotOffloaded")
    assert "private network" in events(node, namespace)["GangNotOffloaded"]
    assert {each["spec"].get("nodeName") for each in pods(node, namespace).values()} == {None}


TRAIN = """
import json, os, pathlib, sys
assert not [name for name in os.environ if name.startswith("KUBEFLOW_TRAINER_")], "no server of the cluster"
folder = pathlib.Path(os.environ["CHECKPOINT_DIR"])
resume = os.environ.get("RESUME_FROM")
if resume is None:
    (folder / "1").write_text("{nonce}")
    print("skysail-progress " + json.dumps({{"trainerStatus": {{"progressPercentage": 42}}}}), flush=True)
    print("skysail-checkpoint step=1 path=" + str(folder / "1"), flush=True)
    sys.exit(3)
print("resumed", os.environ["RESUME_STEP"], pathlib.Path(resume).read_text(), flush=True)
"""


def training_job(name: str, script: str, annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"framework": "pytorch", "image": "python:3", "command": ["python3", "-c", script], **spec},
    }


def until_job(node: Cluster, namespace: str, name: str, phase: str) -> Manifest:
    seen: list[Manifest] = []

    def is_there() -> bool:
        seen[:] = [get(node, namespace, "trainingjob", name)]
        return seen[0].get("status", {}).get("phase") == phase

    node.until(is_there, f"TrainingJob {name} to be {phase}")
    return seen[0]


def test_a_training_job_bursts_reports_and_resumes_from_a_volume_of_the_cloud(node, namespace):
    nonce = secrets.token_hex(8)
    script = TRAIN.format(nonce=nonce)
    capped = {"skysail.dev/max-cost-usd": "1"}
    saves = {"checkpointDir": "/checkpoints", "checkpoint": {"retain": "Never"}}
    apply(node, namespace, training_job("burst", script, capped, gpuPerWorker=1, **saves))
    job = until_job(node, namespace, "burst", "Succeeded")
    status = job["status"]
    first, second = status["attempts"]
    # The cheapest GPU is at RunPod.
    assert (first["provider"], second["provider"], first["failure"]["exitCode"]) == ("runpod", "runpod", 3)
    assert (status["checkpoint"]["provider"], status["checkpoint"]["step"]) == ("runpod", 1)
    assert second["resumedFrom"]["path"] == "/checkpoints/1"
    assert status["progress"]["percent"] == 42
    assert (status["cloud"]["provider"], status["cloud"]["node"]) == ("runpod", NODES["runpod"])
    assert status["cloud"]["usdTotal"] > 0
    assert ok(node, "logs", "-l", "job-name=burst-worker-1", "-n", namespace).split() == ["resumed", "1", nonce]

    # Both attempts are paid for by the same cap.
    def is_shared() -> bool:
        account = json.loads(ok(node, "get", "spendaccount", namespace, "-o", "json"))["status"]
        cost = get(node, namespace, "trainingjob", "burst")["status"]["cloud"]["usdTotal"]
        one_sum = [{"uid": job["metadata"]["uid"], "usd": pytest.approx(cost, abs=1e-5)}]
        return not account["reservations"] and one_sum == [
            {name: row[name] for name in ("uid", "usd")} for row in account["objects"]
        ]

    node.until(is_shared, "one sum for both attempts")

    assert status["cloudVolumes"] == ["runpod"]
    uid = get(node, namespace, "trainingjob", "burst")["metadata"]["uid"]
    disk = node.home.root / "simulated" / "cloud-volumes" / f"runpod-{volume_id(namespace, uid)}"
    assert (disk / "1").read_text() == nonce
    ok(node, "delete", "trainingjob", "burst", "-n", namespace, "--timeout=60s")
    assert not disk.exists()
    assert "CloudVolumeDeleted" in events(node, namespace)


def test_a_training_job_of_two_workers_is_offloaded_whole(node, namespace):
    nonce = secrets.token_hex(8)
    script = (
        f"import os; port = int(os.environ['MASTER_PORT']); scripts = {[SERVER, CLIENT]!r}\n"
        "text = scripts[int(os.environ['RANK'])].replace('gang-0.peers', os.environ['MASTER_ADDR'])\n"
        f"exec(text.format(port=port, nonce='{nonce}'))"
    )
    apply(node, namespace, training_job("pair", script, {"skysail.dev/offload": "modal"}, workers=2))
    status = until_job(node, namespace, "pair", "Succeeded")["status"]
    assert status["cloud"]["provider"] == "modal"
    (claim,) = [row for row in claims(node, namespace) if row["spec"]["members"] == 2]
    assert claim["spec"]["owner"]["kind"] == "Job"
    assert nonce in ok(node, "logs", "-l", "job-name=pair-worker-0", "-n", namespace)


def test_a_claim_of_the_cluster_keeps_a_training_job_from_a_cloud(node, namespace):
    job = training_job("data", "pass", {"skysail.dev/offload": "modal"}, dataVolume={"claimName": "data"})
    apply(node, namespace, job)
    node.until(lambda: "OffloadRefused" in events(node, namespace), "the refusal")
    assert "spec.dataVolume" in events(node, namespace)["OffloadRefused"]
    ok(node, "delete", "trainingjob", "data", "-n", namespace)


def modal_job(name: str, *command: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "modal-operator.io/v1alpha1",
        "kind": "ModalJob",
        "metadata": {"name": name},
        "spec": {"image": "python:3", "command": list(command), "memory": "64Mi", **spec},
    }


def until_modal_job(node: Cluster, namespace: str, name: str, phase: str) -> Manifest:
    seen: list[Manifest] = []

    def is_there() -> bool:
        seen[:] = [get(node, namespace, "modaljob", name).get("status", {})]
        return seen[0].get("phase") == phase

    node.until(is_there, f"ModalJob {name} to be {phase}")
    return seen[0]


def test_a_modal_job_runs_at_modal_and_tells_its_end(node, namespace, books):
    nonce = secrets.token_hex(8)
    script = f"import os; print(os.environ['NONCE'], '{nonce}', flush=True)"
    apply(node, namespace, modal_job("good", "python3", "-c", script, gpu="T4:1", env={"NONCE": "$x"}))
    status = until_modal_job(node, namespace, "good", "Succeeded")
    assert status["simulated"] is True
    assert status["modal_function_id"].startswith("simulated-modal")
    assert all(status[name] for name in ("modal_app_id", "created_at", "started_at", "finished_at"))
    assert ok(node, "logs", "-l", "job-name=good-modaljob-worker-0", "-n", namespace).split() == ["$x", nonce]
    (claim,) = claims(node, namespace)
    assert (claim["spec"]["provider"], claim["spec"]["gpu"]) == ("modal", {"type": "T4", "count": 1})
    assert claim["spec"]["maxLifetimeSeconds"] == 86400


def test_a_failing_modal_job_is_retried_and_names_its_exit_code(node, namespace):
    apply(node, namespace, modal_job("bad", "python3", "-c", "raise SystemExit(37)"))
    status = until_modal_job(node, namespace, "bad", "Failed")
    rows = {row["type"]: row for row in status["conditions"]}
    assert "37" in rows["Succeeded"]["message"]
    assert "JobFailed" in events(node, namespace)


def test_a_modal_job_of_two_replicas_is_a_gang(node, namespace):
    script = "import sys; print('rank', *sys.argv[1:], flush=True)"
    words = ["python3", "-c", script, "{rank}", "{world_size}"]
    apply(node, namespace, modal_job("pair", *words, replicas=2, enable_i6pn=True))
    until_modal_job(node, namespace, "pair", "Succeeded")
    said = ok(node, "logs", "-l", "job-name=pair-modaljob-worker-0", "-n", namespace, "--tail=-1")
    assert sorted(said.splitlines()) == ["rank 0 2", "rank 1 2"]
    assert [claim["spec"]["members"] for claim in claims(node, namespace)] == [2]


def test_deleting_a_modal_job_ends_its_sandbox(node, namespace, books):
    apply(node, namespace, modal_job("long", "sleep", "3600", image="busybox:1.36"))
    until_modal_job(node, namespace, "long", "Running")
    (claim,) = claims(node, namespace)
    assert claim["metadata"]["name"] in books.billed("modal")
    ok(node, "delete", "modaljob", "long", "-n", namespace)
    books.until_let_go(namespace)
    assert claim["metadata"]["name"] not in books.billed("modal")


def test_a_train_job_runs_without_trainer(node, namespace):
    nonce = secrets.token_hex(8)
    container = {"name": "trainer", "image": "python:3", "resources": {"requests": {"nvidia.com/gpu": 1}}}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "plain", "annotations": {"modal.com/enabled": "true"}},
        "spec": {
            "runtimeRef": {"name": "modal-pytorch-runtime"},
            "trainer": {"command": ["python3", "-c"], "args": [f"print('{nonce}')"]},
            "podSpecOverrides": [{"targetJobs": ["trainer-node"], "containers": [container]}],
        },
    }
    apply(node, namespace, job)

    def is_complete() -> bool:
        rows = get(node, namespace, "trainjob", "plain").get("status", {}).get("conditions", ())
        return any((row["type"], row["status"]) == ("Complete", "True") for row in rows)

    node.until(is_complete, "the TrainJob to complete")
    assert ok(node, "logs", "-l", "job-name=plain-trainjob-worker-0", "-n", namespace).strip() == nonce
    (claim,) = claims(node, namespace)
    assert (claim["spec"]["provider"], claim["spec"]["gpu"]["count"]) == ("modal", 1)
