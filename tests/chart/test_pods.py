"""The operator and the bridge as pods of our own image: one installation, which CI installs, uses and removes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest

from tests.chart.conftest import Release, cloud_options, creates, expose_clouds, offloaded, release
from tests.chart.test_install import cluster_objects, listed
from tests.support import serving
from tests.support.kubectl import TIMEOUT, apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.cluster import Cluster

NAMESPACE = "skysail-system"
_LEADERS = "control-plane=controller-manager"


@pytest.fixture(scope="module")
def before(plane: Cluster) -> set[str]:
    """Objects of the cluster before the installation."""
    return cluster_objects(plane)


@pytest.fixture(scope="module")
def installed(plane: Cluster, binary: Path, before: set[str]) -> Iterator[Release]:
    """The chart with two replicas, and the simulated clouds of the node, which outlive every pod of the operator."""
    expose_clouds(plane)
    one = release(plane, binary, "default")
    one.install(
        *cloud_options(plane),
        '--set-json=settings.allowed_model_hosts=["*.svc"]',
        "--set=settings.min_ready_seconds=0",
    )
    plane.until_asking()
    yield one
    plane.kubectl("delete", "trainingjobs,modeldeployments", "--all", "-A", TIMEOUT)
    # The last test has removed the release already, unless it was not selected or has failed.
    one.uninstall("--ignore-not-found")


def training(name: str, *command: str) -> dict[str, Any]:
    spec = {"framework": "pytorch", "image": "busybox", "command": list(command), "workers": 2}
    metadata = {"name": name}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def leader(plane: Cluster) -> str:
    """The pod that leads."""
    holder = ok(plane, "get", "lease", "skysail-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}")
    return holder.rpartition("_")[0]


# Prints a number twice a second, at the cloud.
COUNTER = "import itertools, time\nfor n in itertools.count():\n    print('line', n, flush=True)\n    time.sleep(0.5)"


def counting(name: str) -> dict[str, Any]:
    """A training with one worker at the cloud."""
    made = training(name, "python3", "-c", COUNTER)
    made["metadata"]["annotations"] = {"modal-operator.io/offload": "true"}
    made["spec"] |= {"workers": 1, "image": "python:3", "gpuPerWorker": 1}
    return made


class Follower:
    """Somebody who follows the log of a training with `skysail logs -f` all the time."""

    def __init__(self, plane: Cluster, namespace: str, name: str) -> None:
        command = [sys.executable, "-m", "skysail", "logs", name, "-f", "-n", namespace]
        command.append(f"--kubeconfig={plane.kubeconfig}")
        self._program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._read)
        self.numbers: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._program.terminate()
        self._thread.join()
        self._program.communicate()

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self.numbers.append(int(line.split()[-1]))


class Questions:
    """Somebody who asks the admission webhook all the time, with a pod that needs it."""

    def __init__(self, plane: Cluster) -> None:
        self._plane = plane
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.count = 0
        self.outages: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            dry = ("create", "--dry-run=server", "-n", "default", "-f", "-")
            done = self._plane.kubectl(*dry, stdin=json.dumps(gpu_pod()))
            self.count += 1
            if done.returncode != 0:
                self.outages.append(done.stderr)


def gpu_pod() -> dict[str, Any]:
    """A pod that is valid only after the webhook has changed it."""
    container = {"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": 1}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": {"containers": [container]}}


def test_operator_in_pods_trains_and_offloads(plane, installed):
    pods = listed(plane, "pods", "-n", NAMESPACE)
    parts = Counter(pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods)
    assert parts == {"vgpu-controllers": 2, "bridge": 2}
    ids = [pod["status"]["containerStatuses"][0]["imageID"] for pod in pods]
    assert all(id_.startswith("sha256:") for id_ in ids), "the pods run in the root of our image"
    assert "Succeeded" in installed.helm("test", "skysail")
    with fresh_namespace(plane) as namespace:
        apply(plane, namespace, training("sleeps", "sleep", "1"), offloaded("gpu"))
        ok(plane, "wait", "pod/gpu", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        ok(plane, "wait", "trainingjob/sleeps", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", TIMEOUT)


def test_operator_in_pods_serves(plane, installed):
    with fresh_namespace(plane) as namespace:
        serving.offer(plane, namespace, one_onnx=serving.linear(np.eye(2, dtype=np.float32)))
        apply(plane, namespace, serving.model_deployment("iris", serving.source(namespace, "one.onnx")))
        serving.until_ready(plane, namespace, "iris", 1)


def test_leader_pod_deleted_keeps_admission_and_launches_nothing_twice(plane, installed):
    with fresh_namespace(plane) as namespace:
        apply(plane, namespace, offloaded("gpu"), counting("runs"))
        ok(plane, "wait", "pod/gpu", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        ok(plane, "wait", "trainingjob/runs", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        uid = get(plane, namespace, "pod", "gpu")["metadata"]["uid"]
        old = leader(plane)
        with Questions(plane) as questions, Follower(plane, namespace, "runs") as log:
            plane.until(lambda: bool(log.numbers), "a first line")
            ok(plane, "delete", "pod", old, "-n", NAMESPACE, TIMEOUT)
            plane.until(lambda: leader(plane) not in {"", old}, "another leader")
            ok(plane, "rollout", "status", "deployment/skysail", "-n", NAMESPACE, TIMEOUT)
            # The new leader works: it starts what is new.
            apply(plane, namespace, offloaded("next"))
            ok(plane, "wait", "pod/next", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
            # The log goes on after the failover.
            seen = len(log.numbers)
            plane.until(lambda: len(log.numbers) > seen + 1, "further lines")
        assert log.numbers == list(range(len(log.numbers))), "each line once and in order"
        assert questions.count > 0
        assert questions.outages == []
        assert len(creates(plane, uid)) == 1
        shown = get(plane, namespace, "pod", "gpu")["status"]
        assert (shown["phase"], shown["containerStatuses"][0]["restartCount"]) == ("Running", 0)
        assert get(plane, namespace, "trainingjob", "runs")["status"]["phase"] == "Running"
        # It also ends what an earlier leader has begun.
        ok(plane, "delete", "trainingjob/runs", "pod/gpu", "pod/next", "-n", namespace, TIMEOUT)
        plane.until(lambda: ok(plane, "get", "cloudinstances", "-o", "name") == "", "the instances to end")


def test_uninstall_ends_instances_and_leaves_nothing(plane, installed, before):
    with fresh_namespace(plane) as namespace:
        apply(plane, namespace, offloaded("gpu"), training("runs", "sleep", "3600"))
        ok(plane, "wait", "pod/gpu", "-n", namespace, "--for=jsonpath={.status.phase}=Running", TIMEOUT)
        installed.uninstall()
        assert listed(plane, "cloudinstances") == []
        assert listed(plane, "pods", "-n", namespace, "--field-selector=spec.nodeName=modal.com") == []
        assert listed(plane, "offloadpolicies") == []
        assert ok(plane, "get", "lease,secret,job,deployment", "-n", NAMESPACE, "-o", "name") == ""
        assert cluster_objects(plane) == before
        # The CRDs and the users' objects stay, and no finalizer holds them.
        ok(plane, "delete", "trainingjob", "runs", "-n", namespace, TIMEOUT)
