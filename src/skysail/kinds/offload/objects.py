"""Pods, Jobs and nodes, as far as placement reads them.

The spec of a pod is kept as it is: fields that a cloud's node does not support are found in any part of it. Only pods
without a node are cached, so the memory is bounded by what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from skysail.kube.api.objects import Object

Manifest = dict[str, Any]

_SCHEDULED = "PodScheduled"
_UNSCHEDULABLE = "Unschedulable"
_READY = "Ready"


class _Part(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A part that is only read."""


class PodStatus(_Part, frozen=True):
    phase: str = "Pending"
    conditions: tuple[Manifest, ...] = ()
    nominated_node_name: str = ""


class Pod(Object, frozen=True, gc=False):
    """A pod of any tenant. The spec has been validated by the API server, or is about to be."""

    spec: Manifest = msgspec.field(default_factory=dict)
    status: PodStatus = PodStatus()

    @property
    def node(self) -> str:
        return str(self.spec.get("nodeName") or "")

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def node_selector(self) -> dict[str, str]:
        return dict(self.spec.get("nodeSelector") or {})

    @property
    def tolerations(self) -> tuple[Manifest, ...]:
        return tuple(self.spec.get("tolerations") or ())

    @property
    def scheduler(self) -> str:
        return str(self.spec.get("schedulerName") or "default-scheduler")

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(str(gate.get("name", "")) for gate in self.spec.get("schedulingGates") or ())

    @property
    def containers(self) -> tuple[Manifest, ...]:
        """Return all containers, init containers last. Values that the API server would reject are left out."""
        lists = (self.spec.get(name) for name in ("containers", "initContainers"))
        return tuple(row for rows in lists if isinstance(rows, list | tuple) for row in rows if isinstance(row, dict))

    @property
    def is_finished(self) -> bool:
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def unschedulable_since(self) -> datetime | None:
        """Return when the scheduler refused the pod, or None if it did not."""
        for condition in self.status.conditions:
            if (
                condition.get("type") == _SCHEDULED
                and condition.get("status") == "False"
                and condition.get("reason") == _UNSCHEDULABLE
            ):
                return parse_time(condition.get("lastTransitionTime") or self.metadata.creation_timestamp)
        return None

    def condition(self, type_: str) -> Manifest | None:
        return next((row for row in self.status.conditions if row.get("type") == type_), None)


class JobSpec(_Part, frozen=True):
    parallelism: int | None = None


class Job(Object, frozen=True, gc=False):
    """A Job. Its template is not kept: pods are read, not templates."""

    spec: JobSpec = JobSpec()

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}


class NodeStatus(_Part, frozen=True):
    conditions: tuple[Manifest, ...] = ()


class NodeObject(Object, frozen=True, gc=False):
    """A node of a cloud."""

    status: NodeStatus = NodeStatus()

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def is_ready(self) -> bool:
        return not self.metadata.is_deleting and any(
            row.get("type") == _READY and row.get("status") == "True" for row in self.status.conditions
        )


def parse_time(timestamp: str | None) -> datetime:
    """Return the time of a Kubernetes timestamp. An absent one is the distant past."""
    return datetime.fromisoformat(timestamp or "1970-01-01T00:00:00Z")


def requests_resource(containers: Iterable[Manifest], name: str) -> bool:
    """Return whether a container requests this resource. An amount of zero is no request."""
    return any(str(amounts.get(name, "0")) not in {"0", ""} for amounts in _amounts(containers))


def refers_to_secrets(pod: Pod) -> bool:
    """Return whether a value of a Secret would leave the cluster with the pod. Pull secrets do not count."""
    return any(_has_secret(container) for container in pod.containers) or any(
        _is_secret_volume(volume) for volume in pod.spec.get("volumes") or ()
    )


def _amounts(containers: Iterable[Manifest]) -> Iterator[Manifest]:
    for container in containers:
        resources = container.get("resources") or {}
        yield resources.get("limits") or {}
        yield resources.get("requests") or {}


def _has_secret(container: Manifest) -> bool:
    return any((row.get("valueFrom") or {}).get("secretKeyRef") for row in container.get("env") or ()) or any(
        row.get("secretRef") for row in container.get("envFrom") or ()
    )


def _is_secret_volume(volume: Manifest) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return bool(volume.get("secret")) or any(source.get("secret") for source in sources)
