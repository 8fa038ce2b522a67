"""`skysail get`, `why` and `logs` on a training that fails once and then goes well, with pods that really run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, ok

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster

# All wait for a word of the test: in the first attempt rank 1 then fails, in the second both are done.
SCRIPT = """
echo "rank $RANK says one in attempt $TRAINING_ATTEMPT"
until test -e /checkpoints/$TRAINING_ATTEMPT-$RANK; do sleep 0.1; done
[ $TRAINING_ATTEMPT = 0 ] && { echo "rank $RANK gives up" ; exit 37; }
echo "rank $RANK is done"
"""
ONCE = 'echo "rank $RANK gives up"; exit 37'


def skysail(cluster: Cluster, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = [sys.executable, "-m", "skysail", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300, **options)


def manifest(name: str, script: str, **spec: Any) -> dict[str, Any]:
    wanted = {
        "framework": "pytorch",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "workers": 2,
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 1}},
        **spec,
    }
    metadata = {"name": name}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": wanted}


@pytest.mark.usefixtures("operator")
def test_a_training_is_followed_over_its_restart_to_its_end(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest("mnist", SCRIPT, checkpointDir="/checkpoints", checkpoint={"size": "1Gi"}))
    command = [sys.executable, "-m", "skysail"]
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig)}
    pipes: dict[str, Any] = {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    follows = subprocess.Popen([*command, "logs", "mnist", "-n", namespace, "-f"], **pipes)
    watches = subprocess.Popen([*command, "get", "mnist", "-n", namespace, "--watch"], **pipes)

    claim = _until_disk(node, namespace, "mnist-checkpoints")
    heard = sorted(follows.stdout.readline() for _ in range(2))
    assert heard == [f"worker-{rank} | rank {rank} says one in attempt 0\n" for rank in range(2)]
    (claim / "0-1").touch()
    heard += [follows.stdout.readline() for _ in range(3)]
    node.until(lambda: _running(node, namespace) == {"1"}, "both ranks to run in their second attempt")
    why = skysail(node, "why", "mnist", "-n", namespace).stdout
    assert "Last failure, in attempt 0: Worker 1 (pod mnist-worker-0-1-" in why
    assert "on node local) failed with exit code 37." in why
    assert "  rank 1 gives up" in why.splitlines()
    now = skysail(node, "logs", "mnist", "-n", namespace, "--rank", "1")
    assert now.stdout == "worker-1 | rank 1 says one in attempt 1\n"
    gone = skysail(node, "logs", "mnist", "-n", namespace, "--attempt", "0")
    assert gone.returncode == 2
    assert "Attempt 0 has no such pods." in gone.stderr

    for rank in range(2):
        (claim / f"1-{rank}").touch()
    said, whispered = follows.communicate(timeout=300)
    rows, _ = watches.communicate(timeout=300)
    assert (follows.returncode, watches.returncode) == (0, 0), whispered
    assert sorted("".join([*heard, said]).splitlines()) == [
        "worker-0 | rank 0 is done",
        "worker-0 | rank 0 says one in attempt 0",
        "worker-0 | rank 0 says one in attempt 1",
        "worker-1 | rank 1 gives up",
        "worker-1 | rank 1 is done",
        "worker-1 | rank 1 says one in attempt 0",
        "worker-1 | rank 1 says one in attempt 1",
    ]
    assert "attempt 1 on node local" in whispered
    lines = [line for line in rows.splitlines() if line.startswith(("NAME ", "mnist "))]
    assert [line.split()[3] for line in (lines[0], lines[-1])] == ["PHASE", "Succeeded"]
    assert "Nothing: the job has finished." in skysail(node, "why", "mnist", "-n", namespace).stdout


@pytest.mark.usefixtures("operator")
def test_a_training_that_fails_says_so_and_why(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest("brief", ONCE, workers=1, restartPolicy="Never"))
    watched = skysail(node, "get", "brief", "-n", namespace, "--watch")
    assert watched.returncode == 1
    rows = [line for line in watched.stdout.splitlines() if line.startswith("brief ")]
    assert rows[-1].split()[:4] == ["brief", "pytorch", "0/1", "Failed"]
    why = skysail(node, "why", "brief", "-n", namespace).stdout
    assert "failed with exit code 37. The job is not retried because restartPolicy is Never" in why
    assert skysail(node, "logs", "brief", "-n", namespace, "-f").stdout == "worker-0 | rank 0 gives up\n"


def test_commands_for_a_missing_object_name_similar_ones(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest("resnet", ONCE, suspend=True))
    for command in ("get", "why", "logs"):
        near = skysail(node, command, "resnett", "-n", namespace)
        assert near.returncode == 2
        want = f"skysail: Object resnett not found in namespace {namespace}. Similar names: resnet.\n"
        assert near.stderr == want
    elsewhere = skysail(node, "why", "resnet")
    assert f"in namespace default. It exists in {namespace}: add `-n {namespace}`." in elsewhere.stderr


def test_who_may_not_read_is_told_so(node: Cluster, namespace: str) -> None:
    stranger = node.user("stranger")
    refused = skysail(node, "why", "mnist", "-n", namespace, "--kubeconfig", str(stranger))
    assert refused.returncode == 1
    assert "You are not allowed to do this" in refused.stderr
    assert 'trainingjobs.ml.example.com "mnist" is forbidden' in refused.stderr


def test_who_may_read_the_job_and_not_its_pods_is_told_so(node: Cluster, namespace: str) -> None:
    apply(node, namespace, manifest("held", ONCE, suspend=True))
    reader = node.user("reader")
    rule = ("--verb=get,list,watch", "--resource=trainingjobs.ml.example.com", "-n", namespace)
    ok(node, "create", "role", "jobs", *rule)
    ok(node, "create", "rolebinding", "jobs", "--role=jobs", "--user=reader", "-n", namespace)
    may = ("auth", "can-i", "list", "trainingjobs.ml.example.com", "-n", namespace)
    node.until(lambda: node.kubectl(*may, as_user=reader).returncode == 0, "the reader to be let in")
    for follow in ((), ("-f",)):
        refused = skysail(node, "logs", "held", "-n", namespace, *follow, "--kubeconfig", str(reader))
        assert refused.returncode == 1
        assert "You are not allowed to do this" in refused.stderr
        assert "pods is forbidden" in refused.stderr


def test_a_cluster_that_is_not_there_is_told(node: Cluster, tmp_path: Any) -> None:
    config = node.kubeconfig.read_text()
    server = next(line for line in config.splitlines() if "server:" in line)
    dead = tmp_path / "kubeconfig"
    dead.write_text(config.replace(server, f"{server.split('server:')[0]}server: https://127.0.0.1:1"))
    refused = skysail(node, "get", "mnist", "--kubeconfig", str(dead))
    assert refused.returncode == 1
    assert "The request to the cluster at https://127.0.0.1:1 failed: Cannot reach" in refused.stderr


def _until_disk(node: Cluster, namespace: str, claim: str) -> Path:
    def volume() -> str:
        jsonpath = "jsonpath={.spec.volumeName}"
        return node.kubectl("get", "pvc", claim, "-n", namespace, "-o", jsonpath).stdout

    node.until(volume, "a disk")
    return node.home.root / "disks" / volume()


def _running(node: Cluster, namespace: str) -> set[str]:
    """Attempts of the pods, where two run."""
    jsonpath = (
        "jsonpath={range .items[?(@.status.phase=='Running')]}{.metadata.labels.skysail\\.dev/attempt}{'\\n'}{end}"
    )
    found = ok(node, "get", "pods", "-n", namespace, "-o", jsonpath).split()
    return set(found) if len(found) == 2 else set()
