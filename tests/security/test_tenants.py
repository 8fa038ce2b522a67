"""A tenant with `edit` in one namespace against the objects of another one, and of the cluster's administrators."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.security.samples import ON_DEMAND, sampled
from tests.support import clouds
from tests.support.kubectl import get, ok, pod
from tests.support.tenant import Tenant

if TYPE_CHECKING:
    from tests.support.cluster import Cluster
    from tests.support.tenant import Attempts

Manifest = dict[str, Any]

_TRAINING_UID = "trainingjob.ml.example.com/uid"
_MODEL_UID = "skysail.dev/model-uid"
_SLEEPS = {"containers": [{"name": "main", "image": "busybox", "command": ["sleep", "1000"]}]}


def training_job(name: str = "train", **spec: Any) -> Manifest:
    wanted = {"framework": "pytorch", "image": "busybox", "command": ["sleep", "1000"], "workers": 1, **spec}
    return {"apiVersion": "ml.example.com/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": wanted}


def model(name: str = "model", **spec: Any) -> Manifest:
    """In its image, which nothing serves: its Deployment is there, and is never ready."""
    wanted = {"modelURI": "file:///models", "runtimeImage": "busybox", "runtime": "fastapi-pytorch", "version": "v1"}
    wanted |= {"autoscale": False, "resources": {"requests": {"cpu": "1m"}}, **spec}
    return {"apiVersion": "mlops.sathvik.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name}, "spec": wanted}


def ml_model(name: str = "ml-model", **spec: Any) -> Manifest:
    wanted = {"modelURL": "https://models.example.com/m.tar.gz", "framework": "tensorflow", "storageSize": "1Gi"}
    wanted |= {"replicas": 1, "expose": False}
    api = "oda.tmforum.org.oda.tmforum.org/v1beta1"
    return {"apiVersion": api, "kind": "MLModel", "metadata": {"name": name}, "spec": {**wanted, **spec}}


def created(tenant: Tenant, manifest: Manifest) -> Manifest:
    done = tenant.apply(manifest)
    assert done.returncode == 0, done.stderr
    found: Manifest = json.loads(
        tenant.kubectl("get", manifest["kind"], manifest["metadata"]["name"], "-o", "json").stdout
    )
    return found


_LATER = {"trainingjob.ml.example.com/attempt": "7", "trainingjob.ml.example.com/worker": "worker"}
_JOB = {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", **_SLEEPS}}}
_SELECTED = {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": _SLEEPS}}
# Kind, name of the real child that the foreign one copies or follows, and what else it has.
_CHILDREN: dict[str, tuple[str, str, Manifest]] = {
    "Job of this attempt": ("batch/v1 Job", "train-worker-0", {"spec": _JOB}),
    "Job of a later attempt": ("batch/v1 Job", "train-worker-7", {"spec": _JOB}),
    "Job of a download": ("batch/v1 Job", "validate-model", {"spec": _JOB}),
    "Pod": ("v1 Pod", "train-worker-0-0", {"spec": {"restartPolicy": "Never", **_SLEEPS}}),
    "Service of a job": ("v1 Service", "train", {"spec": {"clusterIP": "None"}}),
    "Service of a model": ("v1 Service", "model-service", {"spec": {"ports": [{"port": 80}]}}),
    "Deployment": ("apps/v1 Deployment", "model", {"spec": {"replicas": 0, **_SELECTED}}),
    "ConfigMap": ("v1 ConfigMap", "train", {"data": {"a": "b"}}),
    "Secret": ("v1 Secret", "train", {"stringData": {"a": "b"}}),
    "PersistentVolumeClaim": (
        "v1 PersistentVolumeClaim",
        "model-pvc",
        {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}},
    ),
    "HorizontalPodAutoscaler": (
        "autoscaling/v2 HorizontalPodAutoscaler",
        "model",
        {"spec": {"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}}},
    ),
    "ControllerRevision": ("apps/v1 ControllerRevision", "model-r1", {"revision": 9, "data": {"want": {}}}),
}


def _foreign(kind: str, name: str, owner: Manifest, *, is_known: bool) -> Manifest:
    """A child with the UID of an object in another namespace. One of an unknown kind survives garbage collection."""
    api, _, kind = kind.partition(" ")
    uid = owner["metadata"]["uid"]
    named = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    reference = {**(named if is_known else {"apiVersion": "example.com/v1", "kind": "Unknown"}), "controller": True}
    reference |= {"name": owner["metadata"]["name"], "uid": uid}
    labels = {**_LATER, _TRAINING_UID: uid, _MODEL_UID: uid, "skysail.dev/revision": "0123456789"}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "labels": labels, "ownerReferences": [reference]},
    }


def _state(node: Cluster, namespace: str) -> dict[str, Any]:
    """What an attack would change: which children there are, and how far their owners are."""
    kinds = "jobs,pods,services,deployments,controllerrevisions,configmaps,pvc,hpa"
    children = {(row["kind"], row["metadata"]["name"]): row["metadata"]["uid"] for row in _all(node, namespace, kinds)}
    job, served = (_all(node, namespace, kind)[0]["status"] for kind in ("trainingjobs", "modeldeployments"))
    attempts = [(row["number"], row.get("cause")) for row in job["attempts"]]
    return {"children": children, "job": (job["phase"], attempts), "model": (served["phase"], served.get("revision"))}


def _all(node: Cluster, namespace: str, kinds: str) -> list[Manifest]:
    found: list[Manifest] = get(node, namespace, kinds)["items"]
    return found


@sampled(4)
def test_children_with_the_owner_of_another_namespace_change_nothing(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, attempts: Attempts, step: int
) -> None:
    victim = other_tenant.namespace
    job, served = created(other_tenant, training_job()), created(other_tenant, model())
    _until_working(node, victim)
    before = _state(node, victim)
    kept, tried = [], []
    combinations = itertools.product((False, True), (job, served), _CHILDREN.items())
    for number, (is_known, owner, (row, (kind, name, more))) in enumerate(combinations):
        if number % len(_CHILDREN) % step != number // len(_CHILDREN) % step:
            continue  # each child of the table once in a sample, with one of the owners
        child = {**_foreign(kind, f"{name}-{owner['kind'].lower()}", owner, is_known=is_known), **more}
        done = tenant.kubectl("create", "-f", "-", stdin=json.dumps(child))
        if done.returncode == 0 and not is_known:
            kept.append(f"{child['kind']}/{child['metadata']['name']}")
        tried.append(f"{row} of {owner['kind']}, {'known' if is_known else 'unknown'} to the collector")
    # The operator has seen all of them when it has made something that came later.
    created(tenant, training_job("barrier"))
    node.until(lambda: _phase(node, tenant.namespace, "barrier") == "Running", "a later job to run")
    after = _state(node, victim)
    for row in tried:
        attempts.record("foreign children", row, held=after == before, detail=after)
    for child in kept:
        found = tenant.kubectl("get", child)
        attempts.record("foreign children", f"{child} is left alone", held=found.returncode == 0, detail=found.stderr)
    ok(node, "delete", "trainingjob", "train", "-n", victim, "--timeout=300s")
    ok(node, "wait", "--for=delete", "job/train-worker-0", "-n", victim, "--timeout=300s")
    left = [child for child in kept if tenant.kubectl("get", child).returncode == 0]
    attempts.record("foreign children", "after the victim's job is deleted", held=left == kept, detail=left)


@ON_DEMAND
def test_children_that_block_the_deletion_of_a_foreign_job_do_not_stop_the_next_attempt(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, attempts: Attempts
) -> None:
    victim = other_tenant.namespace
    created(other_tenant, training_job())
    node.until(lambda: _phase(node, victim, "train") == "Running", "the job to run")
    uid = get(node, victim, "job", "train-worker-0")["metadata"]["uid"]
    for number in range(5):
        for kind, finalizers in (("batch/v1 Job", ["example.com/stays"]), ("example.com/v1 Unknown", [])):
            api, _, kind_name = kind.partition(" ")
            owner = {"apiVersion": api, "kind": kind_name, "name": "train-worker-0", "uid": uid}
            metadata = {"name": f"{kind_name.lower()}-{number}", "finalizers": finalizers}
            blocking = {**metadata, "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
            assert tenant.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": blocking}).returncode == 0
    ok(node, "patch", "trainingjob", "train", "-n", victim, "--type=merge", "-p", '{"spec": {"workers": 2}}')
    node.until(lambda: node.kubectl("get", "job", "train-worker-1", "-n", victim).returncode == 0, "the next attempt")
    job = get(node, victim, "job", "train-worker-0")
    for row in get(node, tenant.namespace, "configmap")["items"]:
        if row["metadata"].get("ownerReferences"):
            name = row["metadata"]["name"]
            attempts.record("blocking children", name, held="deletionTimestamp" in job["metadata"])
            ok(node, "patch", "configmap", name, "-n", tenant.namespace, "--type=merge", "-p", _NO_FINALIZERS)


_NO_FINALIZERS = '{"metadata": {"finalizers": null}}'


def _until_working(node: Cluster, namespace: str) -> None:
    node.until(lambda: _phase(node, namespace, "train") == "Running", "the job to run")
    deployments = ("get", "deployment", "model", "-n", namespace)
    node.until(lambda: node.kubectl(*deployments).returncode == 0, "the model's Deployment")
    # The image serves nothing, so the model ends as Failed; before that its phase would change by itself.
    phase = ("get", "modeldeployment", "model", "-n", namespace, "-o", "jsonpath={.status.phase}")
    node.until(lambda: node.kubectl(*phase).stdout == "Failed", "the model to fail")


def _phase(node: Cluster, namespace: str, name: str) -> str:
    return str(get(node, namespace, "trainingjob", name).get("status", {}).get("phase", ""))


@ON_DEMAND
def test_objects_of_administrators_stay_out_of_reach(
    node: Cluster, tenant: Tenant, other_tenant: Tenant, attempts: Attempts
) -> None:
    ok(node, "apply", "-n", other_tenant.namespace, "-f", "-", stdin=json.dumps(_cloud_pod("paid")))
    node.until(lambda: bool(clouds.claims(node, other_tenant.namespace)), "a claim")
    ok(node, "apply", "-f", "-", stdin=json.dumps(_POLICY))
    claim = clouds.claims(node, other_tenant.namespace)[0]["metadata"]["name"]
    try:
        for area, name in (("cloudinstance", claim), ("offloadpolicy", _POLICY["metadata"]["name"])):
            before = _spec(node, area, name)
            for arguments, stdin in _ATTACKS:
                words = [word.format(kind=area, name=name) for word in arguments]
                done = tenant.kubectl(*words, stdin=_manifest_of(node, area, name) if stdin else None)
                is_forbidden = done.returncode != 0 and "orbidden" in done.stderr
                attempts.record(f"tenant on {area}", " ".join(words), held=is_forbidden, detail=done)
            attempts.record(f"tenant on {area}", "is as it was", held=_spec(node, area, name) == before)
    finally:
        ok(node, "delete", "pod", "paid", "-n", other_tenant.namespace, "--timeout=300s")
        ok(node, "delete", "offloadpolicy", _POLICY["metadata"]["name"])


def _cloud_pod(name: str) -> Manifest:
    return clouds.at("modal", pod(name, "sleep", "1000"))


_POLICY: Manifest = {
    "apiVersion": "skysail.dev/v1alpha1",
    "kind": "OffloadPolicy",
    "metadata": {"name": "of-administrators"},
    "spec": {"namespaceSelector": {"matchLabels": {"a": "b"}}, "providers": ["modal"]},
}
# Words for kubectl, and whether it reads the manifest of the object.
_ATTACKS: tuple[tuple[tuple[str, ...], bool], ...] = (
    (("get", "{kind}", "{name}"), False),
    (("get", "{kind}"), False),
    (("get", "{kind}", "--watch-only"), False),
    (("create", "-f", "-"), True),
    (("replace", "-f", "-"), True),
    (("replace", "--subresource=status", "-f", "-"), True),
    (("apply", "--server-side", "--force-conflicts", "-f", "-"), True),
    (("patch", "{kind}", "{name}", "--type=merge", "-p", '{{"metadata": {{"finalizers": null}}}}'), False),
    (("patch", "{kind}", "{name}", "--subresource=status", "--type=merge", "-p", '{{"status": {{}}}}'), False),
    (("label", "{kind}", "{name}", "a=b"), False),
    (("annotate", "{kind}", "{name}", "a=b"), False),
    (("delete", "{kind}", "{name}"), False),
    (("delete", "{kind}", "--all"), False),
    (("get", "{kind}", "{name}", "--as=system:admin", "--as-group=system:masters"), False),
    (("get", "--raw", "/apis/skysail.dev/v1alpha1/{kind}s/{name}"), False),
)


def _manifest_of(node: Cluster, kind: str, name: str) -> str:
    return ok(node, "get", kind, name, "-o", "json")


def _spec(node: Cluster, kind: str, name: str) -> Any:
    found = json.loads(_manifest_of(node, kind, name))
    return found["metadata"]["uid"], found["metadata"].get("labels"), found["spec"]


@pytest.mark.parametrize("role", ["edit", *(pytest.param(role, marks=ON_DEMAND) for role in ("view", "admin"))])
def test_tenants_have_the_namespaced_kinds_by_their_role(
    node: Cluster, other_tenant: Tenant, namespace: str, attempts: Attempts, role: str
) -> None:
    """What a role should have is as much a claim as what it should not."""
    tenant = Tenant.create(node, namespace, role)
    for manifest in (training_job("present", suspend=True), model("present")):
        ok(node, "apply", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
        manifest["metadata"] = {"name": "theirs"}
        kind, is_writer = manifest["kind"].lower(), role != "view"
        rows = {
            "create": (tenant.apply(manifest), is_writer),
            "list": (tenant.kubectl("get", kind), True),
            "patch": (tenant.kubectl("annotate", kind, "present", "a=b"), is_writer),
            "write the status": (tenant.kubectl(*_patch(kind, "status")), False),
            "create elsewhere": (tenant.kubectl(*_create_in(other_tenant), stdin=json.dumps(manifest)), False),
            "list elsewhere": (tenant.kubectl("get", kind, "-n", other_tenant.namespace), False),
            "list everywhere": (tenant.kubectl("get", kind, "-A"), False),
            "delete all": (tenant.kubectl("delete", kind, "--all", "--wait=false"), is_writer),
        }
        for row, (done, is_allowed) in rows.items():
            attempts.record(
                f"{role} on namespaced kinds", f"{row} {kind}", held=_as_said(done, is_allowed), detail=done
            )
    ok(node, "apply", "-n", namespace, "-f", "-", stdin=json.dumps(training_job("present", suspend=True)))
    done = tenant.kubectl("scale", "trainingjob", "present", "--replicas=2")
    attempts.record(f"{role} on namespaced kinds", "scale", held=_as_said(done, role != "view"), detail=done)


def _patch(kind: str, part: str) -> tuple[str, ...]:
    return ("patch", kind, "present", f"--subresource={part}", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')


def _create_in(other: Tenant) -> tuple[str, ...]:
    return ("create", "-n", other.namespace, "-f", "-")


def _as_said(done: Any, is_allowed: bool) -> bool:  # noqa: FBT001 (a row of the table)
    return done.returncode == 0 if is_allowed else "orbidden" in done.stderr
