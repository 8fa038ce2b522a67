"""Hugging Face's Trainer, unchanged, as a TrainingJob on the node `local`: its progress is in the job's status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skysail.local.images.rules import Rule, Rules
from tests.support.cluster import Cluster
from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINER = Path(__file__).parents[1] / "support" / "trainers" / "huggingface.py"
IMAGE = "team/huggingface:1"
SECONDS = 1200

pytestmark = pytest.mark.timeout(SECONDS + 600)  # gigabytes the first time


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    packages = ("torch", "numpy", "transformers", "accelerate")
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        Rules(cluster.home.root / "images.json").add(Rule(pattern=IMAGE, packages=packages))
        cluster.start_operator(restart=True)
        yield cluster
        cluster.end_operator()


def manifests() -> list[dict[str, Any]]:
    script = TRAINER.read_text()
    mount = {"name": "code", "mountPath": "/code"}
    template = {
        "volumes": [{"name": "code", "configMap": {"name": "code"}}],
        "containers": [{"name": "trainer", "volumeMounts": [mount]}],
    }
    spec = {
        "framework": "pytorch",
        "image": IMAGE,
        "command": ["python3", "/code/train.py"],
        "podTemplate": {"spec": template},
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"train.py": script}},
        {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "tiny"}, "spec": spec},
    ]


@pytest.mark.on_demand
def test_its_progress_is_in_the_status(node: Cluster) -> None:
    with fresh_namespace(node) as namespace:
        apply(node, namespace, *manifests())
        ok(node, "wait", "tj/tiny", "-n", namespace, "--for=jsonpath={.status.completionTime}", f"--timeout={SECONDS}s")
        log = ok(node, "logs", "-n", namespace, "-l", "trainingjob.ml.example.com/name=tiny", "--tail=-1")
        assert get(node, namespace, "tj", "tiny")["status"]["phase"] == "Succeeded", log
        node.until(lambda: is_whole(progress(node, namespace)), "the last report to be written")
        told = progress(node, namespace)
    [line] = [line for line in log.splitlines() if line.startswith("train_loss ")]
    metrics = {row["name"]: row["value"] for row in told["metrics"]}
    assert metrics["train_loss"] == line.split()[1]
    assert metrics["total_steps"] == "20"
    assert told["estimatedRemainingSeconds"] == 0


def progress(node: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = get(node, namespace, "tj", "tiny")["status"].get("progress", {})
    return found


def is_whole(told: dict[str, Any]) -> bool:
    """The loss of all of it is told after the last step, and may be written after that."""
    return told.get("percent") == 100 and "train_loss" in {row["name"] for row in told.get("metrics", [])}
