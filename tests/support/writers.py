"""Programs that write down, on a disk of the cluster, when they start and end: no status can hide a second start."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.kubectl import Manifest, apply, claim, get, pod

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Cluster

WORKS = 'echo "start $WHO" >> /disk/log; sleep 1; echo "end $WHO" >> /disk/log'
WAITS = 'echo "start $WHO" >> /disk/log; until test -e /disk/go; do sleep 0.05; done'
RUNS = 'echo "start $WHO" >> /disk/log; exec sleep 1000'
# Needs a moment to end well.
SERVES = """
trap 'sleep 1; echo "end $WHO" >> /disk/log; exit 0' TERM
echo "start $WHO" >> /disk/log
while :; do sleep 0.05; done
"""


class Disk:
    """A disk of the cluster, seen from the machine."""

    def __init__(self, node: Cluster, namespace: str) -> None:
        apply(node, namespace, claim("disk"))
        node.until(lambda: "volumeName" in get(node, namespace, "pvc", "disk")["spec"], "a disk")
        self.folder: Path = node.home.root / "disks" / get(node, namespace, "pvc", "disk")["spec"]["volumeName"]

    @property
    def lines(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def starts(self) -> Counter[str]:
        """By the UID of the pod."""
        return Counter(line.split()[1] for line in self.lines if line.startswith("start"))

    @property
    def ends(self) -> Counter[str]:
        return Counter(line.split()[1] for line in self.lines if line.startswith("end"))


def writer(name: str, script: str, *, restart: str = "Never", **spec: Any) -> Manifest:
    """A pod that runs the script with the disk at hand, and its own UID as `WHO`."""
    who = {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    main = {"env": [who], "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
    volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    return pod(name, "sh", "-c", script, restart=restart, container=main, volumes=volumes, **spec)


def job(name: str, script: str, **spec: Any) -> Manifest:
    template = {"spec": writer("", script)["spec"]}
    spec = {"template": template, "completionMode": "Indexed", **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, script: str, **spec: Any) -> Manifest:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": writer("", script, restart="Always", **spec)["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
