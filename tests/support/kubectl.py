"""What tests of a node say to the real kubectl, and the manifests that they say it with."""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

# Of kubectl. Long, because a machine may be busy with other things; no test passes by waiting.
TIMEOUT = "--timeout=600s"


@contextlib.contextmanager
def fresh_namespace(node: Cluster) -> Iterator[str]:
    """With its service account, without which no pod is admitted."""
    name = f"t{secrets.token_hex(4)}"
    ok(node, "create", "namespace", name)
    node.until(
        lambda: node.kubectl("get", "sa,cm", "-n", name, "-o", "name").stdout.count("\n") == 2, "a service account"
    )
    yield name
    node.kubectl("delete", "namespace", name, "--wait=false")


def ok(node: Cluster, *arguments: str, stdin: str | None = None) -> str:
    done = node.kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(node: Cluster, namespace: str, *manifests: Manifest) -> None:
    for manifest in manifests:
        ok(node, "apply", "-n", namespace, "--validate=strict", "-f", "-", stdin=json.dumps(manifest))


def get(node: Cluster, namespace: str, what: str, *arguments: str) -> Manifest:
    return json.loads(ok(node, "get", what, *arguments, "-n", namespace, "-o", "json"))


def status(node: Cluster, namespace: str, name: str) -> Manifest:
    return get(node, namespace, "pod", name)["status"]


def conditions(shown: Manifest) -> dict[str, str]:
    return {row["type"]: row["status"] for row in shown["conditions"]}


def until_phase(node: Cluster, namespace: str, name: str, phase: str) -> Manifest:
    """The status as it was then: a moment later it may be another one."""
    seen: Manifest = {}

    def is_there() -> bool:
        seen.clear()
        seen.update(status(node, namespace, name))
        return bool(seen.get("phase") == phase)

    node.until(is_there, f"pod {name} to be {phase}")
    return seen


def until_condition(node: Cluster, namespace: str, what: str, condition: str) -> None:
    ok(node, "wait", what, "-n", namespace, f"--for=condition={condition}", TIMEOUT)


def until_ready_again(node: Cluster, namespace: str, name: str) -> Manifest:
    """The only container of a pod, in its second run. Until that is told, it is still called ready for its first."""
    seen: Manifest = {}

    def is_so() -> bool:
        seen.update(status(node, namespace, name)["containerStatuses"][0])
        return (seen["restartCount"], seen["ready"]) == (1, True)

    node.until(is_so, f"pod {name} to be ready again")
    return seen


def pod(name: str, *command: str, restart: str = "Never", container: Manifest | None = None, **spec: Any) -> Manifest:
    main = {"name": "main", "image": "busybox", "command": list(command), **(container or {})}
    spec = {"restartPolicy": restart, "terminationGracePeriodSeconds": 5, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claim(name: str) -> Manifest:
    """A disk that many pods may write to."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
