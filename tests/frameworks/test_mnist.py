"""The sample of a TrainingJob trains on the node `local`; one that is killed in its middle ends as if it were not."""

from __future__ import annotations

import os
import re
import secrets
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.cluster import Cluster
from tests.support.documents import ROOT, follow, newcomer
from tests.support.kubectl import apply, claim, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The first time, environments of gigabytes are made.
SECONDS = 1800
pytestmark = pytest.mark.timeout(SECONDS)

SAMPLES = ROOT / "config" / "samples"
RESUMES = ROOT / "examples" / "pytorch-mnist" / "resumes.yaml"
WORKERS = "trainingjob.ml.example.com/worker"
# Two numbers have one sum; of three it depends on the order.
RANKS = 3
STEPS, BATCH, EPOCHS, INTERVAL = 20, 64, 60, 3
IMAGES = RANKS * STEPS * BATCH


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        cluster.start_operator(restart=True)
        yield cluster
        cluster.end_operator()


def test_the_sample_trains_as_it_is(node: Cluster) -> None:
    ok(node, "apply", "-f", str(SAMPLES / "namespace.yaml"), "-f", str(SAMPLES / "ml_v1alpha1_trainingjob.yaml"))
    status = until_over(node, "ml-jobs", "pytorch-mnist")
    phases = ("get", "pods", "-n", "ml-jobs", "-l", WORKERS, "-o", "jsonpath={.items[*].status.phase}")
    read = ("logs", "-n", "ml-jobs", "-l", WORKERS, "--tail=-1")
    assert status["phase"] == "Succeeded", ok(node, *read)
    node.until(lambda: ok(node, *phases) == "Succeeded Succeeded", "both to end well")
    logs = ok(node, *read)
    assert [int(number) for number in re.findall(r"^epoch (\d+)/10 loss=", logs, re.MULTILINE)] == [*range(1, 11)]
    assert len(weights(logs)) == 2
    assert len(set(weights(logs))) == 1, "the workers have trained one model"
    node.until(lambda: percent(node, "ml-jobs", "pytorch-mnist") == 100, "the last report to be written")
    describe = ("describe", "trainingjob", "pytorch-mnist", "-n", "ml-jobs")
    for event in ("Created 2 worker pods", "Training job completed successfully"):
        node.until(lambda event=event: event in ok(node, *describe), f"to hear: {event}")  # type: ignore[misc]


@pytest.mark.on_demand
def test_a_worker_that_is_killed_costs_a_few_epochs_and_changes_nothing(node: Cluster) -> None:
    with fresh_namespace(node) as namespace:
        put_data(node, namespace)
        apply(node, namespace, manifest("calm"), manifest("troubled"))
        follows = subprocess.Popen(
            [sys.executable, "-m", "skysail", "logs", "troubled", "-n", namespace, "-f"],
            env={**os.environ, "KUBECONFIG": str(node.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        )
        node.until(lambda: "checkpoint" in shown(node, namespace, "troubled"), "a checkpoint")
        kill(node, namespace, "troubled", rank=1)
        until_over(node, namespace, "troubled")
        last = f"/checkpoints/epoch-{EPOCHS}.pt"
        node.until(lambda: shown(node, namespace, "troubled")["checkpoint"]["path"] == last, "the last checkpoint")
        status = shown(node, namespace, "troubled")
        told, _ = follows.communicate(timeout=600)
        calm = until_over(node, namespace, "calm")
        undisturbed = ok(node, "logs", "-n", namespace, "-l", "trainingjob.ml.example.com/name=calm", "--tail=-1")

    assert (calm["phase"], len(calm["attempts"])) == ("Succeeded", 1), undisturbed
    assert [attempt["cause"] for attempt in status["attempts"]] == ["Failed", "Succeeded"], told
    failure = status["failure"]
    assert (failure["role"], failure["index"], failure["node"]) == ("worker", 1, "local"), failure
    assert "SIGKILL" in failure["message"]
    assert status["checkpoint"]["step"] == EPOCHS * STEPS

    first, second = epochs(told)
    assert second[0] > INTERVAL
    assert status["attempts"][1]["resumedFrom"]["step"] == (second[0] - 1) * STEPS
    assert len(set(first) & set(second)) <= INTERVAL
    assert sorted(set(first) | set(second)) == [*range(1, EPOCHS + 1)]
    assert set(weights(told)) == set(weights(undisturbed))
    assert len(weights(told)) == len(weights(undisturbed)) == RANKS


@pytest.mark.parametrize(
    "document",
    ["docs/training.md", pytest.param("examples/pytorch-mnist/README.md", marks=pytest.mark.on_demand)],
)
def test_the_commands_of_a_document_do_what_it_shows(tmp_path: Path, document: str) -> None:
    with newcomer(tmp_path / "home", seconds=SECONDS) as shell:
        follow(shell, document)


def manifest(name: str) -> dict[str, Any]:
    """The example, longer, and with data that nobody else has."""
    example = yaml.safe_load(RESUMES.read_text())
    changes = {
        "workers": RANKS,
        "args": [f"--epochs={EPOCHS}", f"--batch-size={BATCH}"],
        "checkpointInterval": INTERVAL,
        "dataVolume": {"claimName": "mnist"},
    }
    return {**example, "metadata": {"name": name}, "spec": {**example["spec"], **changes}}


def put_data(node: Cluster, namespace: str) -> None:
    """As MNIST is published."""
    apply(node, namespace, claim("mnist"))
    node.until(lambda: "volumeName" in get(node, namespace, "pvc", "mnist")["spec"], "a disk")
    disk = node.home.root / "disks" / get(node, namespace, "pvc", "mnist")["spec"]["volumeName"]
    disk.mkdir(parents=True, exist_ok=True)
    labels = bytes(byte % 10 for byte in secrets.token_bytes(IMAGES))
    pictures = secrets.token_bytes(IMAGES * 28 * 28)
    (disk / "train-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, IMAGES) + labels)
    (disk / "train-images-idx3-ubyte").write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, IMAGES, 28, 28) + pictures)


def kill(node: Cluster, namespace: str, name: str, *, rank: int) -> None:
    """The program itself, which torchrun has started."""
    label = f"trainingjob.ml.example.com/name={name},batch.kubernetes.io/job-completion-index={rank}"
    pod = ok(node, "get", "pods", "-n", namespace, "-l", label, "-o", "jsonpath={.items[0].metadata.name}")
    ok(node, "exec", pod, "-n", namespace, "--", "sh", "-c", "kill -9 $(cat /proc/2/task/2/children)")


def shown(node: Cluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = get(node, namespace, "trainingjob", name).get("status", {})
    return found


def until_over(node: Cluster, namespace: str, name: str) -> dict[str, Any]:
    over = "--for=jsonpath={.status.completionTime}"
    ok(node, "wait", f"trainingjob/{name}", "-n", namespace, over, f"--timeout={SECONDS}s")
    return shown(node, namespace, name)


def percent(node: Cluster, namespace: str, name: str) -> int:
    return shown(node, namespace, name).get("progress", {}).get("percent", 0)


def weights(log: str) -> list[str]:
    return re.findall(r"weights sha256=(\w+)", log)


def epochs(log: str) -> list[list[int]]:
    """Of each attempt, as rank 0 told."""
    found: list[list[int]] = []
    for line in log.splitlines():
        if line.startswith("worker-0 | rank 0 of "):
            found.append([])
        elif match := re.match(r"worker-0 \| epoch (\d+)/", line):
            found[-1].append(int(match[1]))
    return found
