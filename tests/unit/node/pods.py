"""Pods as the API server would send them, in few words."""

from __future__ import annotations

from typing import Any

import msgspec

from skysail.cloud.provider import Ended, RunId, Running, State
from skysail.node.pod_types import Pod
from skysail.node.sync.snapshot import Snapshot, age, seconds

UID = "u-1"
NOW = seconds("2026-11-15T12:00:00Z")
MAIN = {"name": "main", "image": "busybox", "command": ["true"]}


def container(name: str, **fields: Any) -> dict:
    return {"name": name, "image": "busybox", "command": ["true"], **fields}


def pod(*containers: dict, metadata: dict | None = None, status: dict | None = None, **spec: Any) -> Pod:
    base = {"name": "a", "namespace": "n", "uid": UID, "resourceVersion": "1", "generation": 1}
    manifest = {
        "metadata": {**base, **(metadata or {})},
        "spec": {"containers": list(containers) or [MAIN], "nodeName": "local", **spec},
        "status": status or {},
    }
    return msgspec.convert(manifest, Pod)


def run(name: str = "main", number: int = 0) -> RunId:
    return RunId(UID, name, number)


def running(since: float = 10.0) -> Running:
    return Running(NOW - since)


def ended(code: int = 0, *, ago: float = 0.0, lasted: float = 1.0, **fields: str) -> Ended:
    reason = fields.pop("reason", "Error" if code else "Completed")
    return Ended(code=code, reason=reason, started=NOW - ago - lasted, ended=NOW - ago, **fields)


def snapshot(of: Pod, runs: dict[RunId, State] | None = None, **fields: Any) -> Snapshot:
    known = {"now": NOW, "host_ip": "10.244.0.1", "address": "10.244.0.2", **fields}
    return Snapshot(pod=of, runs=runs or {}, **{"active_seconds": age(of, known["now"]), **known})


def written(of: Pod, status: dict) -> Pod:
    """The pod with this status stored, as the API server gives it back."""
    manifest = msgspec.to_builtins(of)
    manifest["status"] = {name: value for name, value in status.items() if value is not None}
    return msgspec.convert(manifest, Pod)
