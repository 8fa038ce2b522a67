"""`skysail train` on a cluster with node `local`: a script becomes a TrainingJob that is followed to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import get, ok

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster

SCRIPT = """
import os, sys, time
import helper
open("output.txt", "w").write("a script can write beside itself")
rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
print("rank", rank, "of", size, helper.word, os.environ["WORD"], *sys.argv[1:], flush=True)
if "--fail" in sys.argv:
    sys.exit(37)
while "--wait" in sys.argv:
    time.sleep(1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("word = 'hello'\n")
    (tmp_path / "fit.py").write_text(SCRIPT)
    return tmp_path / "fit.py"


def train(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    env: dict[str, Any] = {**os.environ, "SKYSAIL_HOME": str(cluster.home.root), "KUBECONFIG": str(cluster.kubeconfig)}
    command = [sys.executable, "-m", "skysail", "train", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("operator")
def test_train_follows_all_ranks_and_exits_with_success(node: Cluster, namespace: str, script: Path) -> None:
    done = train(node, str(script), "-n", namespace, "--workers", "2", "--env", "WORD=world", "--", "--lr", "0.1")
    output, errors = done.communicate(timeout=300)
    assert done.returncode == 0, errors
    assert sorted(output.splitlines()) == [
        f"worker-{rank} | rank {rank} of 2 hello world --lr 0.1" for rank in range(2)
    ]
    assert f"TrainingJob fit created in namespace {namespace}." in errors
    assert "Succeeded" in errors
    owners = get(node, namespace, "configmap", "fit-code")["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["TrainingJob"]


@pytest.mark.usefixtures("operator")
def test_train_exits_with_the_code_of_the_program_and_says_where_to_look(
    node: Cluster, namespace: str, script: Path
) -> None:
    for name in ("fit", "fit-2"):
        done = train(node, str(script), "-n", namespace, "--env", "WORD=x", "--", "--fail")
        _, errors = done.communicate(timeout=300)
        assert done.returncode == 37, errors
        assert f"The training failed: skysail why {name} -n {namespace}" in errors
    taken = train(node, str(script), "-n", namespace, "--env", "WORD=x", "--name", "fit")
    _, errors = taken.communicate(timeout=300)
    assert taken.returncode == 2
    assert "exists already" in errors


@pytest.mark.usefixtures("operator")
def test_train_interrupted_leaves_the_job_and_says_how_to_return(node: Cluster, namespace: str, script: Path) -> None:
    process = train(node, str(script), "-n", namespace, "--env", "WORD=x", "--", "--wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "worker-0 | rank 0 of 1 hello x --wait\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert f"skysail logs fit -n {namespace} -f" in errors
    assert get(node, namespace, "trainingjob", "fit")["status"]["phase"] == "Running"
    ok(node, "delete", "trainingjob", "fit", "-n", namespace)


def test_train_rejected_job_leaves_nothing(node: Cluster, namespace: str, script: Path) -> None:
    done = train(node, str(script), "-n", namespace, "--env", "RANK=7")
    _, errors = done.communicate(timeout=300)
    assert done.returncode == 2
    assert "RANK" in errors
    assert "fit-code" not in ok(node, "get", "configmaps", "-n", namespace, "-o", "name")
