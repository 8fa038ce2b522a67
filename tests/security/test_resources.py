"""Pods that take more than their share: thousands of containers, and the disk of the machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.security.samples import ON_DEMAND
from tests.support.clouds import at
from tests.support.kubectl import Manifest, fresh_namespace, get, ok, pod, until_phase
from tests.support.tenant import Tenant

if TYPE_CHECKING:
    from tests.support.cluster import Cluster

_COUNT = 5001
_UNSUPPORTED = "Unsupported"


def _crowd(count: int, field: str) -> Manifest:
    """A pod as small as it can be, so that the API server takes it."""
    manifest = pod("crowd", "true")
    rows = [{"name": f"c{number}", "image": "busybox"} for number in range(count)]
    manifest["spec"][field] = rows if field == "containers" else [{**row, "command": ["true"]} for row in rows]
    return manifest


def _conditions(node: Cluster, namespace: str) -> dict[str, Manifest]:
    shown = get(node, namespace, "pod", "crowd")["status"]
    return {row["type"]: row for row in shown.get("conditions", ()) if row.get("reason") == _UNSUPPORTED}


@pytest.mark.parametrize(
    ("field", "cloud"),
    [
        pytest.param("containers", "", id="local"),
        pytest.param("initContainers", "", id="local-init", marks=ON_DEMAND),
        pytest.param("containers", "modal", id="modal", marks=ON_DEMAND),
        pytest.param("initContainers", "modal", id="modal-init", marks=ON_DEMAND),
    ],
)
def test_a_pod_with_thousands_of_containers_is_told_and_deleted(node, attempts, field, cloud):
    area = f"{cloud or 'local'}: {_COUNT} {field}"
    with fresh_namespace(node) as namespace:
        tenant = Tenant.create(node, namespace)
        manifest = _crowd(_COUNT, field)
        made = tenant.kubectl("create", "-f", "-", stdin=json.dumps(at(cloud, manifest) if cloud else manifest))
        assert made.returncode == 0, made.stderr
        node.until(lambda: bool(_conditions(node, namespace)), "the pod to be told")
        (told,) = _conditions(node, namespace).values()
        attempts.record(area, "told", held="at most 100 containers per pod" in told["message"], detail=told)
        ok(node, "apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod("other", "echo", "fine")))
        attempts.record(area, "other pods run", held=bool(until_phase(node, namespace, "other", "Succeeded")))
        deleted = tenant.kubectl("delete", "pod", "crowd", "--timeout=300s")
        attempts.record(area, "the pod is deleted", held=deleted.returncode == 0, detail=deleted.stderr)
        gone = node.kubectl("delete", "namespace", namespace, "--timeout=300s")
        attempts.record(area, "the namespace is deleted", held=gone.returncode == 0, detail=gone.stderr)


def test_a_status_with_long_messages_is_written(tenant, attempts):
    """Each of 60 containers leaves as long a message as it can, in a pod that is large itself."""
    fill = f"head -c 4096 /dev/zero | tr '\\0' x > /dev/termination-log; exit 1 # {'x' * 15_000}"
    rows = [{"name": f"c{number}", "image": "busybox", "command": ["sh", "-c", fill]} for number in range(60)]
    manifest = pod("loud", "true")
    manifest["spec"]["containers"] = rows
    assert tenant.kubectl("create", "-f", "-", stdin=json.dumps(manifest)).returncode == 0
    shown = until_phase(tenant.cluster, tenant.namespace, "loud", "Failed")
    size = sum(len(row["state"]["terminated"].get("message", "")) for row in shown["containerStatuses"])
    attempts.record("long messages", "written and bounded", held=0 < size <= 12 * 1024, detail=size)
    deleted = tenant.kubectl("delete", "pod", "loud", "--timeout=300s")
    attempts.record("long messages", "deleted", held=deleted.returncode == 0, detail=deleted.stderr)


def _fill(path: str, mebibytes: int) -> str:
    return f"head -c {mebibytes}M /dev/zero > {path}; sleep 600"


def _nested(name: str, depth: int) -> str:
    return f"i=0; while [ $i -lt {depth} ]; do mkdir {name}; cd -P {name}; i=$((i+1)); done;"


_LIMIT = {"resources": {"limits": {"ephemeral-storage": "1Mi"}}}
_MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
_CONTAINER = 'Container main exceeded its local ephemeral storage limit "1Mi".'
_POD = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi."
_VOLUME = 'Usage of EmptyDir volume "v" exceeds the limit "1Mi".'
STORAGE = {
    "/tmp": (_fill("/tmp/x", 3), _LIMIT, {}, _CONTAINER),
    "home": (_fill("/root/x", 3), _LIMIT, {}, _CONTAINER),
    "many small files": ("for i in $(seq 600); do echo x > /tmp/$i; done; sleep 600", _LIMIT, {}, _CONTAINER),
    "hidden files": (_fill("/tmp/.x", 3), _LIMIT, {}, _CONTAINER),
    "a deep folder": (f"mkdir -p /tmp/a/b/c; {_fill('/tmp/a/b/c/x', 3)}", _LIMIT, {}, _CONTAINER),
    "1,500 nested folders": (f"cd /tmp; {_nested('a', 1500)} {_fill('x', 3)}", _LIMIT, {}, _CONTAINER),
    "a path that is too long to open": (f"cd /tmp; {_nested('a' * 200, 30)} {_fill('x', 3)}", _LIMIT, {}, _CONTAINER),
    "a folder without rights": (
        f"mkdir /tmp/a; {_fill('/tmp/a/x', 3).replace('sleep', 'chmod 0 /tmp/a; sleep')}",
        _LIMIT,
        {},
        _CONTAINER,
    ),
    "a deleted file": ("exec 3> /tmp/x; rm /tmp/x; head -c 3M /dev/zero >&3; sleep 600", _LIMIT, {}, _CONTAINER),
    "the log": ("head -c 3M /dev/zero | tr '\\0' x; sleep 600", _LIMIT, {}, _CONTAINER),
    "an emptyDir": (_fill("/v/x", 3), {**_LIMIT, **_MOUNT}, {}, _POD),
    "an emptyDir with a limit": (_fill("/v/x", 3), _MOUNT, {"sizeLimit": "1Mi"}, _VOLUME),
    "an emptyDir in memory": (_fill("/v/x", 3), _MOUNT, {"sizeLimit": "1Mi", "medium": "Memory"}, _VOLUME),
}


def test_pods_above_their_ephemeral_storage_are_evicted(tenant, attempts):
    for number, (script, container, volume, _) in enumerate(STORAGE.values()):
        volumes = [{"name": "v", "emptyDir": volume}]
        made = tenant.apply(
            pod(f"p{number}", "sh", "-c", script, restart="Always", container=container, volumes=volumes)
        )
        assert made.returncode == 0, made.stderr
    for number, (name, (_, _, _, message)) in enumerate(STORAGE.items()):
        shown = until_phase(tenant.cluster, tenant.namespace, f"p{number}", "Failed")
        held = (shown["reason"], shown["message"]) == ("Evicted", message)
        attempts.record("ephemeral storage", name, held=held, detail=shown)


@ON_DEMAND
def test_a_pod_at_a_simulated_cloud_is_evicted_too(tenant, attempts):
    made = tenant.apply(at("modal", pod("cloudy", "sh", "-c", _fill("/tmp/x", 3), container=_LIMIT)))
    assert made.returncode == 0, made.stderr
    shown = until_phase(tenant.cluster, tenant.namespace, "cloudy", "Failed")
    attempts.record(
        "ephemeral storage",
        "at a cloud",
        held=_CONTAINER in json.dumps(shown["containerStatuses"]).replace('\\"', '"'),
        detail=shown,
    )


@ON_DEMAND
def test_who_keeps_to_the_limits_runs_to_the_end(tenant, attempts):
    limits = {"resources": {"limits": {"ephemeral-storage": "8Mi"}}, **_MOUNT}
    script = "head -c 1M /dev/zero > /tmp/x; head -c 1M /dev/zero > /v/x; sleep 12; echo fine"
    volumes = [{"name": "v", "emptyDir": {"sizeLimit": "2Mi"}}]
    tenant.apply(pod("good", "sh", "-c", script, container=limits, volumes=volumes))
    attempts.record(
        "ephemeral storage", "below", held=bool(until_phase(tenant.cluster, tenant.namespace, "good", "Succeeded"))
    )
