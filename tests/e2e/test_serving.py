"""The life of a model on the real API server, under the real controllers of Jobs and Deployments, and the real rights.

No node runs its pods here: what a kubelet would tell of them is written into their status.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.kubectl import apply, fresh_namespace, get, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Cluster

Manifest = dict[str, Any]

NAME = "iris"
DIGEST = f"sha256:{'ab' * 32}"
REVISION = "skysail.dev/revision"
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[str]:
    """One that does not wait to see whether a server stays ready; and a node, whose pods are not taken for orphans."""
    cluster.start_operator("operator", env={"SKYSAIL_MIN_READY_SECONDS": "0"}, restart=True)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nowhere"}, "spec": {"unschedulable": True}}
    ok(cluster, "apply", "-f", "-", stdin=json.dumps(node))
    yield "operator"
    ok(cluster, "delete", "node", "nowhere")
    cluster.end_operator()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with fresh_namespace(cluster) as name:
        yield name


def deployment(**spec: Any) -> Manifest:
    wanted = {
        "modelURI": "https://models.example.com/iris.onnx",
        "runtime": "fastapi-pytorch",
        "resources": {"requests": {"cpu": "100m"}},
        "autoscale": False,
        "version": "v1",
        **spec,
    }
    return {"apiVersion": "mlops.sathvik.dev/v1", "kind": "ModelDeployment", "metadata": {"name": NAME}, "spec": wanted}


def ml_model(**spec: Any) -> Manifest:
    wanted = {
        "modelURL": "https://models.example.com/flowers.tar.gz",
        "storageSize": "1Gi",
        "framework": "tensorflow",
        "replicas": 1,
        "expose": True,
        **spec,
    }
    group = "oda.tmforum.org.oda.tmforum.org/v1beta1"
    return {"apiVersion": group, "kind": "MLModel", "metadata": {"name": NAME}, "spec": wanted}


def status(cluster: Cluster, namespace: str, kind: str = "modeldeployment") -> Manifest:
    found: Manifest = get(cluster, namespace, kind, NAME).get("status", {})
    return found


def conditions(shown: Manifest) -> dict[str, tuple[str, str]]:
    return {row["type"]: (row["status"], row["reason"]) for row in shown.get("conditions", [])}


def until(cluster: Cluster, namespace: str, kind: str = "modeldeployment", **fields: Any) -> Manifest:
    """Until the status has all of these."""

    def is_so() -> bool:
        return fields.items() <= status(cluster, namespace, kind).items()

    cluster.until(is_so, f"the status to have {fields}, not {status(cluster, namespace, kind)}")
    return status(cluster, namespace, kind)


def change(cluster: Cluster, namespace: str, **spec: Any) -> None:
    ok(cluster, "patch", "modeldeployment", NAME, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def pods(cluster: Cluster, namespace: str, owner: str) -> list[Manifest]:
    """Those that such an owner has made and that nobody has told anything yet."""
    found = get(cluster, namespace, "pods")["items"]
    return [
        pod
        for pod in found
        if pod["metadata"]["ownerReferences"][0]["kind"] == owner
        and "deletionTimestamp" not in pod["metadata"]
        and not pod["status"].get("containerStatuses")
    ]


def tell(cluster: Cluster, namespace: str, owner: str, told: Manifest, number: int = 1) -> None:
    """To the next pods of such an owner."""
    cluster.until(lambda: len(pods(cluster, namespace, owner)) == number, f"{number} pods of a {owner}")
    for pod in pods(cluster, namespace, owner):
        name = pod["metadata"]["name"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": "nowhere"},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
        patch = json.dumps({"status": told})
        ok(cluster, "patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch)


def ended(name: str, code: int, message: str) -> Manifest:
    """The last status of a pod whose only container has ended."""
    end = {"exitCode": code, "message": message, "finishedAt": NOW, "startedAt": NOW, "reason": "Error"}
    row = {"name": name, "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": end}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [row]}


def downloaded() -> Manifest:
    return ended("fetch", 0, json.dumps({"digest": DIGEST, "bytes": 7, "files": 1}))


def answers(container: str = "inference") -> Manifest:
    running = {"running": {"startedAt": NOW}}
    row = {"name": container, "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": running}
    told = [{"type": type_, "status": "True", "lastTransitionTime": NOW} for type_ in ("Ready", "ContainersReady")]
    return {"phase": "Running", "conditions": told, "containerStatuses": [row]}


def crashes() -> Manifest:
    end = {"exitCode": 37, "message": "no such layer", "finishedAt": NOW, "startedAt": NOW, "reason": "Error"}
    row = {
        "name": "inference",
        "image": "",
        "imageID": "",
        "ready": False,
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": end},
    }
    return {"phase": "Running", "containerStatuses": [row]}


def serve(cluster: Cluster, namespace: str, version: str = "v1") -> Manifest:
    """Until the model is served that is asked for."""
    tell(cluster, namespace, "Job", downloaded())
    tell(cluster, namespace, "ReplicaSet", answers())
    return until(cluster, namespace, phase="Ready", version=version)


def bury(cluster: Cluster, namespace: str) -> None:
    """As a kubelet ends pods that were deleted."""
    for pod in get(cluster, namespace, "pods")["items"]:
        if "deletionTimestamp" in pod["metadata"]:
            name = pod["metadata"]["name"]
            cluster.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force", "--wait=false")


def test_a_model_is_downloaded_served_updated_and_deleted(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment())
    until(cluster, namespace, phase="Validating")
    shown = serve(cluster, namespace)
    assert (shown["revision"], shown["digest"], shown["url"]) == (
        1,
        DIGEST,
        f"http://{NAME}-service.{namespace}.svc:8000",
    )
    assert conditions(shown)["Ready"] == ("True", "Served")
    change(cluster, namespace, version="v2")
    tell(cluster, namespace, "Job", downloaded())
    tell(cluster, namespace, "ReplicaSet", answers())
    cluster.until(lambda: _buried(cluster, namespace, revision=2), "the second revision to be served")
    ok(cluster, "delete", "modeldeployment", NAME, "-n", namespace)
    cluster.until(lambda: _is_empty(cluster, namespace), "nothing to be left")


def test_servers_that_crash_are_undone(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment())
    serve(cluster, namespace)
    good = get(cluster, namespace, "deployment", NAME)["spec"]["template"]["metadata"]["labels"][REVISION]
    change(cluster, namespace, version="v2")
    tell(cluster, namespace, "Job", downloaded())
    tell(cluster, namespace, "ReplicaSet", crashes())
    cluster.until(
        lambda: conditions(status(cluster, namespace)).get("RolledBack") == ("True", "UpdateFailed"), "to be undone"
    )
    shown = status(cluster, namespace)
    assert (shown["phase"], shown["version"], shown["failure"]["exitCode"]) == ("Ready", "v1", 37)
    assert "no such layer" in shown["failure"]["message"]
    label = get(cluster, namespace, "deployment", NAME)["spec"]["template"]["metadata"]["labels"][REVISION]
    assert label == good
    marks = get(cluster, namespace, "controllerrevisions", "-l", "skysail.dev/outcome=failed")["items"]
    assert [mark["revision"] for mark in marks] == [2]
    wanted = {"Downloading", "Deployed", "UpdateFailed", "RolledBack"}
    cluster.until(lambda: wanted <= _events(cluster, namespace), f"to hear of {wanted}")


def test_a_download_that_fails_says_so_and_is_corrected(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment())
    word = {"step": "Download", "reason": "NotFound", "message": "There is nothing at models.example.com/iris.onnx."}
    tell(cluster, namespace, "Job", ended("fetch", 78, json.dumps(word)))
    shown = until(cluster, namespace, phase="Failed")
    assert conditions(shown)["ModelDownloaded"] == ("False", "NotFound")
    assert (shown["failure"]["step"], shown["failure"]["exitCode"]) == ("Download", 78)
    change(cluster, namespace, modelURI="https://models.example.com/other.onnx")
    assert serve(cluster, namespace)["revision"] == 1


def test_an_autoscaler_comes_and_goes_and_the_number_stays_its_own(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    apply(cluster, namespace, deployment(minReplicas=2))
    tell(cluster, namespace, "Job", downloaded())
    tell(cluster, namespace, "ReplicaSet", answers(), 2)
    until(cluster, namespace, phase="Ready", readyReplicas=2)
    change(cluster, namespace, autoscale=True, minReplicas=3, maxReplicas=5)
    cluster.until(lambda: _replicas(cluster, namespace) == 3, "the autoscaler to set its least number")
    change(cluster, namespace, autoscale=False, minReplicas=1)
    cluster.until(lambda: _replicas(cluster, namespace) == 1, "the fixed number")
    assert get(cluster, namespace, "hpa")["items"] == []


def test_an_ml_model_has_its_volume_and_its_service(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, ml_model())
    tell(cluster, namespace, "Job", downloaded())
    tell(cluster, namespace, "ReplicaSet", answers("tf-serving"))
    shown = until(cluster, namespace, "mlmodel", phase="Ready", observedGeneration=1)
    assert shown["serviceEndpoint"] == f"{NAME}-service.{namespace}.svc.cluster.local:8501"
    names = ok(cluster, "get", "pvc,job,deployment,service", "-n", namespace, "-o", "name").split()
    assert set(names) == {
        f"persistentvolumeclaim/{NAME}-pvc",
        f"job.batch/{NAME}-download-job",
        f"deployment.apps/{NAME}-server",
        f"service/{NAME}-service",
    }


def test_a_settled_model_is_left_alone_however_often_it_is_looked_at(
    cluster: Cluster, operator: str, namespace: str
) -> None:
    apply(cluster, namespace, deployment())
    serve(cluster, namespace)
    cluster.until(lambda: conditions(status(cluster, namespace))["Progressing"] == ("False", "Served"), "to settle")
    # Who writes each time never comes to that.
    cluster.until(lambda: _written(cluster, namespace) == [], "three looks without a write")


def test_metrics_have_the_names_that_dashboards_ask_for(cluster: Cluster, operator: str, namespace: str) -> None:
    apply(cluster, namespace, deployment(validateScript="validate.py"))
    until(cluster, namespace, phase="Validating")
    for name in ('model_validations_total{status="started"}', "model_deployments_created_total"):
        cluster.until(lambda name=name: name in cluster.get("/metrics")[1], name)  # type: ignore[misc]


def _events(cluster: Cluster, namespace: str) -> set[str]:
    return set(ok(cluster, "get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}").split())


def _written(cluster: Cluster, namespace: str) -> list[str]:
    """While the model is looked at three times."""
    size = cluster.audited
    for _ in range(3):
        before = _passes(cluster)
        note = f"look={secrets.token_hex(4)}"
        ok(cluster, "annotate", "modeldeployment", NAME, "-n", namespace, note, "--overwrite")
        cluster.until(lambda before=before: _passes(cluster) > before, "a pass")  # type: ignore[misc]
    writes = [row["requestURI"] for row in cluster.audit(size) if _is_write(row)]
    return [uri for uri in writes if namespace in uri and "/events" not in uri]


def _replicas(cluster: Cluster, namespace: str) -> int:
    bury(cluster, namespace)
    found: int = get(cluster, namespace, "deployment", NAME)["spec"]["replicas"]
    return found


def _buried(cluster: Cluster, namespace: str, revision: int) -> bool:
    bury(cluster, namespace)
    return bool(status(cluster, namespace).get("revision") == revision)


def _is_empty(cluster: Cluster, namespace: str) -> bool:
    bury(cluster, namespace)
    kinds = "jobs,deployments,replicasets,pods,services,hpa,controllerrevisions"
    return ok(cluster, "get", kinds, "-n", namespace, "-o", "name") == ""


def _passes(cluster: Cluster) -> float:
    name = 'controller_runtime_reconcile_total{controller="ModelDeployment",result="success"}'
    lines = [line for line in cluster.get("/metrics")[1].splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


def _is_write(row: Manifest) -> bool:
    is_ours = row["user"].get("username") == "system:serviceaccount:skysail-system:skysail"
    return is_ours and row["verb"] in {"create", "update", "patch", "delete"}
