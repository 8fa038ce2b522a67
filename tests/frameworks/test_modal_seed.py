"""The TrainJob and the ModalJob of the Modal operator, unchanged, at Modal's stand-in with real PyTorch."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from skysail.app import stand_ins
from skysail.cloud.simulated import billing
from tests.support.clouds import NODES, claims, let_go, node_flags
from tests.support.cluster import Cluster
from tests.support.documents import ROOT
from tests.support.kubectl import get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

# The first time, environments of gigabytes are made.
SECONDS = 1800
pytestmark = pytest.mark.timeout(SECONDS)

SAMPLES = ROOT / "config" / "samples"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "home", with_node=True) as cluster:
        cluster.start_operator(flags=node_flags(cluster), env=stand_ins.environment(cluster.home, "modal"))
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        cluster.until(
            lambda: cluster.kubectl("get", "node", NODES["modal"], "-o", ready).stdout == "True", "node modal.com"
        )
        yield cluster
        cluster.end_operator()


def status_of(node: Cluster, kind: str, name: str) -> dict[str, Any]:
    shown = node.kubectl("get", kind, name, "-n", "default", "-o", "json")
    found: dict[str, Any] = json.loads(shown.stdout).get("status", {}) if shown.returncode == 0 else {}
    return found


def until_over(node: Cluster, name: str) -> None:
    node.until(lambda: bool(status_of(node, "trainingjob", name)), f"TrainingJob {name}")
    over = "--for=jsonpath={.status.completionTime}"
    ok(node, "wait", f"trainingjob/{name}", "-n", "default", over, f"--timeout={SECONDS}s")


def test_the_train_job_trains_with_the_shipped_program(node: Cluster) -> None:
    ok(node, "apply", "-n", "default", "-f", str(SAMPLES / "trainer_v1alpha1_trainjob.yaml"))

    until_over(node, "pytorch-distributed-trainjob")

    def ended() -> set[str]:
        rows = status_of(node, "trainjob", "pytorch-distributed").get("conditions", ())
        return {row["type"] for row in rows if row["status"] == "True"} & {"Complete", "Failed"}

    node.until(lambda: bool(ended()), "the TrainJob to tell its end")
    logs = ok(node, "logs", "-n", "default", "-l", "job-name=pytorch-distributed-trainjob-worker-0", "--tail=-1")
    assert ended() == {"Complete"}, logs
    assert [int(number) for number in re.findall(r"^epoch (\d+) of 5: loss", logs, re.MULTILINE)] == [1, 2, 3, 4, 5]
    percent = ("trainerStatus", "progressPercentage")
    node.until(
        lambda: status_of(node, "trainjob", "pytorch-distributed").get(percent[0], {}).get(percent[1]) == 100,
        "the last report to be written",
    )
    (pod,) = get(node, "default", "pods", "-l", "job-name=pytorch-distributed-trainjob-worker-0")["items"]
    assert pod["spec"]["nodeName"] == NODES["modal"]


def test_the_modal_job_runs_on_its_gpu_says_that_its_image_has_no_program_and_nothing_is_left(node: Cluster) -> None:
    ok(node, "apply", "-f", str(SAMPLES / "modal_v1alpha1_modaljob.yaml"))
    until_over(node, "training-job-modaljob")
    node.until(lambda: status_of(node, "modaljob", "training-job").get("phase") == "Failed", "its end")
    messages = {row["type"]: row["message"] for row in status_of(node, "modaljob", "training-job")["conditions"]}
    assert "exit code 2" in messages["Succeeded"]
    (claim,) = [row for row in claims(node, "default") if row["spec"]["gpu"]["type"] == "A100"]
    assert claim["status"]["exit"]["code"] == 2
    assert claim["status"]["instanceId"].startswith("sb-")
    assert status_of(node, "modaljob", "training-job")["modal_function_id"] == claim["status"]["instanceId"]
    ok(node, "delete", "modaljobs,trainjobs", "--all", "-n", "default")
    let_go(node, "default")
    node.until(lambda: claims(node, "default") == [], "the claims to be gone")
    rows = stand_ins.read_ledger(node.home, "modal")
    assert billing.max_concurrent(rows) <= 1
    assert billing.billable(rows) == ()
