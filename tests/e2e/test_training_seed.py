"""The training lab's own commands, line by line, on its own sample; only what its workers run is smaller here.

That the sample trains as it is, with PyTorch, is shown in tests/frameworks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.kubectl import apply, get, ok

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

SAMPLES = Path(__file__).parents[2] / "config/samples"
SAMPLE = SAMPLES / "ml_v1alpha1_trainingjob.yaml"
LAB, JOB, WORKERS = "ml-jobs", "pytorch-mnist", "trainingjob.ml.example.com/worker"
SAYS = 'echo "rank $RANK of $WORLD_SIZE learns at $HYPERPARAM_LEARNINGRATE: $*"; trap "exit 0" TERM; sleep 3600 & wait'


@pytest.fixture
def lab(node: Cluster, operator: str) -> Cluster:
    """The lab's namespace, which other tests on this cluster may have made, and without what they left there."""
    ok(node, "apply", "-f", str(SAMPLES / "namespace.yaml"))
    node.until(lambda: node.kubectl("get", "sa", "default", "-n", LAB).returncode == 0, "a service account")
    ok(node, "delete", "trainingjobs", "--all", "-n", LAB)
    node.until(lambda: _left(node) == "", "nothing of another test to be left")
    return node


def test_the_labs_commands(lab: Cluster, tmp_path: Path) -> None:
    sample = yaml.safe_load(SAMPLE.read_text())
    sample["spec"] |= {"image": "busybox", "command": ["sh", "-c", SAYS, "train"]}
    file = tmp_path / SAMPLE.name
    file.write_text(yaml.safe_dump(sample))

    assert ok(lab, "apply", "-f", str(file)) == f"trainingjob.ml.example.com/{JOB} created\n"
    _until_running(lab, 2)
    header, row = ok(lab, "get", "trainingjobs", "-n", LAB).splitlines()
    assert header.split() == ["NAME", "FRAMEWORK", "WORKERS", "PHASE", "AGE"]
    assert row.split()[:4] == [JOB, "pytorch", "2", "Running"]
    lab.until(lambda: "Created 2 worker pods" in ok(lab, "describe", "trainingjob", JOB, "-n", LAB), "the event")
    assert len(ok(lab, "get", "pods", "-n", LAB, "-l", WORKERS, "--no-headers").splitlines()) == 2
    words = "learns at 0.001: --epochs=10 --batch-size=64"
    _until_said(lab, [f"rank {rank} of 2 {words}" for rank in range(2)])

    patch = '[{"op": "replace", "path": "/spec/workers", "value": 4}]'
    ok(lab, "patch", "trainingjob", JOB, "-n", LAB, "--type=json", f"-p={patch}")
    _until_running(lab, 4)
    _until_said(lab, [f"rank {rank} of 4 {words}" for rank in range(4)])

    assert "deleted" in ok(lab, "delete", "trainingjob", JOB, "-n", LAB)
    lab.until(lambda: _left(lab) == "", "nothing to be left")


def test_fifty_jobs_at_once_all_end_well(node: Cluster, operator: str, namespace: str) -> None:
    jobs = [_small(f"job-{number}") for number in range(50)]
    listed = {"apiVersion": "v1", "kind": "List", "items": jobs}
    ok(node, "apply", "-n", namespace, "-f", "-", stdin=json.dumps(listed))
    node.until(lambda: _phases(node, namespace) == ["Succeeded"] * 50, "all to succeed")
    assert not ok(node, "get", "tj", "-n", namespace, "-o", "jsonpath={.items[?(@.status.retries)].metadata.name}")


def test_the_longest_name_trains(node: Cluster, operator: str, namespace: str) -> None:
    name = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    assert len(name) == 253
    apply(node, namespace, _small(name, workers=2))
    node.until(lambda: _phases(node, namespace) == ["Succeeded"], "it to succeed")
    assert len(get(node, namespace, "trainingjob", name)["status"]["workerStatuses"]) == 2


def _small(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"framework": "pytorch", "image": "busybox", "command": ["sh", "-c", "echo $RANK"], **spec}
    return {
        "apiVersion": "ml.example.com/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": wanted,
    }


def _phases(node: Cluster, namespace: str) -> list[str]:
    return ok(node, "get", "tj", "-n", namespace, "-o", "jsonpath={.items[*].status.phase}").split()


def _until_running(lab: Cluster, workers: int) -> None:
    def there() -> bool:
        shown = get(lab, LAB, "trainingjob", JOB).get("status", {})
        phases = [worker["phase"] for worker in shown.get("workerStatuses", [])]
        return shown.get("phase") == "Running" and phases == ["Running"] * workers

    lab.until(there, f"{workers} workers to run")


def _until_said(lab: Cluster, lines: list[str]) -> None:
    lab.until(lambda: sorted(ok(lab, "logs", "-n", LAB, "-l", WORKERS).splitlines()) == lines, f"to hear {lines}")


def _left(lab: Cluster) -> str:
    """What a training can leave in the lab's namespace: nothing, but for the ConfigMap that every namespace has."""
    found = ok(lab, "get", "pods,jobs,services,configmaps,pvc", "-n", LAB, "-o", "name")
    return found.replace("configmap/kube-root-ca.crt\n", "")
