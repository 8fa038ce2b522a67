"""Pods that add up numbers with a framework, and what they say about it: two of an Indexed Job, or a TrainingJob's.

A trainer is a script of this folder. Each of its ranks has numbers that nobody else has, and prints the sum of all.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.support.kubectl import apply, claim, get, ok

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.cluster import Cluster

RANKS = 2
PORT = 29500
_TRAINERS = Path(__file__).parent / "trainers"
_SECONDS = 600
_INDEX = "batch.kubernetes.io/job-completion-index"
_ROLE = "trainingjob.ml.example.com/worker"


class Said(msgspec.Struct, frozen=True):
    """One line of each rank."""

    rank: int
    address: str
    sum: list[float]


class Trainer:
    """A script, and the numbers of its ranks."""

    def __init__(self, name: str) -> None:
        self._script = (_TRAINERS / f"{name.replace('-', '_')}.py").read_text()
        # Small whole numbers, which a float of any size adds without error.
        self._numbers = [[secrets.randbelow(1 << 20) for _ in range(4)] for _ in range(RANKS)]

    @property
    def sum(self) -> list[float]:
        return [float(sum(column)) for column in zip(*self._numbers, strict=True)]

    def files(self, name: str) -> dict[str, Any]:
        """What is mounted at /code, as a ConfigMap."""
        data = {"train.py": self._script, "numbers.json": json.dumps(self._numbers)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class TrainingJob:
    """One whose pods run a trainer. `spec` is laid over what all of them have."""

    def __init__(self, name: str, *, framework: str, image: str, **spec: Any) -> None:
        self.name = name
        self._trainer = Trainer(name)
        self._spec = {"framework": framework, "image": image, "workers": RANKS, **spec}

    @property
    def sum(self) -> list[float]:
        return self._trainer.sum

    def begin(self, node: Cluster, namespace: str) -> None:
        apply(node, namespace, self._trainer.files(self.name), self._manifest())

    def finish(self, node: Cluster, namespace: str) -> list[Said]:
        """What the ranks said, in the order of ranks."""
        some = "--for=jsonpath={.status.completionTime}"
        ok(node, "wait", f"trainingjob/{self.name}", "-n", namespace, some, f"--timeout={_SECONDS}s")
        status = get(node, namespace, "trainingjob", self.name)["status"]
        assert [attempt["cause"] for attempt in status["attempts"]] == ["Succeeded"], status
        ended = {"Succeeded"}  # who does not end by itself is taken away
        node.until(lambda: set(self.phases(node, namespace).values()) == ended, f"all pods of {self.name} to end")
        return _said(self.log(node, namespace))

    def log(self, node: Cluster, namespace: str) -> str:
        return ok(node, "logs", "-n", namespace, "--tail=-1", "-l", self._label)

    def phases(self, node: Cluster, namespace: str) -> dict[tuple[str, str], str]:
        """Of each pod, by role and index."""
        labels = ((pod["metadata"]["labels"], pod) for pod in get(node, namespace, "pods", "-l", self._label)["items"])
        return {(found[_ROLE], found[_INDEX]): pod["status"]["phase"] for found, pod in labels}

    @property
    def _label(self) -> str:
        return f"trainingjob.ml.example.com/name={self.name}"

    def _manifest(self) -> dict[str, Any]:
        mount = {"name": "code", "mountPath": "/code"}
        template = {
            "volumes": [{"name": "code", "configMap": {"name": self.name}}],
            "containers": [{"name": "trainer", "volumeMounts": [mount]}],
        }
        return {
            "apiVersion": "ml.example.com/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": self.name},
            "spec": {"command": ["python3", "/code/train.py"], "podTemplate": {"spec": template}, **self._spec},
        }


class Training:
    """An Indexed Job. `late` is a rank that comes ten seconds after the last of the others."""

    def __init__(self, name: str, image: str, env: Mapping[str, str], *, late: int | None = None) -> None:
        self.name = name if late is None else f"{name}-late"
        self._trainer = Trainer(name)
        self._image = image
        self._late = late
        self._env = env

    @property
    def sum(self) -> list[float]:
        return self._trainer.sum

    def begin(self, node: Cluster, namespace: str) -> None:
        apply(node, namespace, self._trainer.files(self.name), claim(self.name), self._service(), self._job())

    def finish(self, node: Cluster, namespace: str) -> list[Said]:
        """What the ranks said, in the order of ranks."""
        some = "--for=jsonpath={.status.conditions[0].type}"  # it goes well or it fails: either way there is one
        ok(node, "wait", f"job/{self.name}", "-n", namespace, some, f"--timeout={_SECONDS}s")
        node.until(lambda: self._is_over(node, namespace), f"the job {self.name} to end")
        job = get(node, namespace, "job", self.name)
        assert job["status"].get("succeeded") == RANKS, self.log(node, namespace)
        return _said(self.log(node, namespace))

    def began(self, node: Cluster, namespace: str) -> list[str]:
        """When each rank's trainer began, in the order of ranks."""
        arguments = ("logs", "-n", namespace, "--timestamps", "--tail=-1", "-l")
        rows = [
            ok(node, *arguments, f"job-name={self.name},{_INDEX}={rank}").splitlines()[0].split()
            for rank in range(RANKS)
        ]
        assert {row[1] for row in rows} == {"begins"}
        return [row[0] for row in rows]

    def log(self, node: Cluster, namespace: str) -> str:
        return ok(node, "logs", "-n", namespace, "--tail=-1", "-l", f"job-name={self.name}")

    def _is_over(self, node: Cluster, namespace: str) -> bool:
        conditions = get(node, namespace, "job", self.name)["status"].get("conditions", [])
        return any(row["type"] in {"Complete", "Failed"} and row["status"] == "True" for row in conditions)

    def _service(self) -> dict[str, Any]:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": self.name}}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": self.name}, "spec": spec}

    def _job(self) -> dict[str, Any]:
        spec = {
            "completionMode": "Indexed",
            "completions": RANKS,
            "parallelism": RANKS,
            "backoffLimit": 0,
            "template": {"spec": self._pod()},
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name}, "spec": spec}

    def _pod(self) -> dict[str, Any]:
        others = " && ".join(f"test -e /met/{rank}" for rank in range(RANKS) if rank != self._late)
        waits = f'[ "$RANK" = "{self._late}" ] && {{ until {others}; do sleep 0.1; done; sleep 10; }}'
        script = f"{waits}; echo begins; touch /met/$RANK; exec python3 /code/train.py"
        container = {
            "name": "main",
            "image": self._image,
            "command": ["sh", "-c", script],
            "env": self._environment(),
            "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "met", "mountPath": "/met"}],
        }
        return {
            "restartPolicy": "Never",
            "subdomain": self.name,
            "containers": [container],
            "volumes": [
                {"name": "code", "configMap": {"name": self.name}},
                {"name": "met", "persistentVolumeClaim": {"claimName": self.name}},
            ],
        }

    def _environment(self) -> list[dict[str, Any]]:
        """The index comes first, because only what stands before can be used in a value."""
        index = {"fieldPath": f"metadata.annotations['{_INDEX}']"}
        first = [
            {"name": "RANK", "valueFrom": {"fieldRef": index}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
        ]
        return [
            *first,
            *({"name": name, "value": value.replace("NAME", self.name)} for name, value in self._env.items()),
        ]


def _said(log: str) -> list[Said]:
    lines = [line for line in log.splitlines() if line.startswith("{")]
    return sorted((msgspec.json.decode(line, type=Said) for line in lines), key=lambda said: said.rank)
