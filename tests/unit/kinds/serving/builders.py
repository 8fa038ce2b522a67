"""A model in some moment of its life, in few words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.base.timestamps import timestamp
from skysail.core import conditions
from skysail.kinds.serving.children import manifests
from skysail.kinds.serving.objects import Deployment, Job, PersistentVolumeClaim, Pod
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import ControllerRevision, hash_of
from skysail.kube.api.objects import Meta, OwnerReference
from tests.unit.kinds.serving import samples
from tests.unit.kinds.serving.samples import DIGEST, TERMS, UID

if TYPE_CHECKING:
    from skysail.kinds.serving.api.types import Model
    from skysail.kinds.serving.spec.revisions import Outcome, Revision
    from skysail.kube.api.fields import Condition

# What makes the pods, and what is said of those that do not come up in time.
SET = "iris-6a1837"
LATE = f'ReplicaSet "{SET}" has timed out progressing.'
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PREPARED = json.dumps({"digest": DIGEST, "bytes": 1_500_000, "files": 2})


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def model(*, ml: bool = False, metadata: dict[str, Any] | None = None, status: Any = None, **spec: Any) -> Model:
    made = samples.ml_model(**spec) if ml else samples.deployment(**spec)
    known = status if status is not None else made.status
    meta = msgspec.structs.replace(made.metadata, **(metadata or {}))
    return msgspec.structs.replace(made, metadata=meta, status=known)


def shown(of: Model, **fields: Any) -> Model:
    """The same model, with this in its status."""
    return msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, **fields))


def changed(of: Model, **spec: Any) -> Model:
    """The same model, after somebody changed its spec."""
    generation = of.metadata.generation + 1
    return msgspec.structs.replace(
        of,
        spec=msgspec.structs.replace(of.spec, **spec),
        metadata=msgspec.structs.replace(of.metadata, generation=generation),
    )


def revision(of: Model) -> str:
    return hash_of(samples.serving(of).want)


def entry(of: Model, number: int = 1, outcome: Outcome = "", digest: str = DIGEST) -> Revision:
    """The revision that this spec asks for, as the history has it."""
    wanted = samples.serving(of)
    made = samples.entry(wanted, number, digest)
    stored = ControllerRevision(owned(wanted.names.revision(made.hash), f"r{number}", of), number)
    claim_ = "" if wanted.storage is None else claim().metadata.uid
    return msgspec.structs.replace(made, claim=claim_, outcome=outcome, object=stored)


def claim(uid: str = "claim", size: str = "5Gi", *, seconds: float = 90, **metadata: Any) -> PersistentVolumeClaim:
    """The volume of an MLModel, as large as it was asked to be."""
    known = {"name": "flowers-pvc", "namespace": "shop", "uid": uid, "creationTimestamp": ago(seconds), **metadata}
    asked = {"resources": {"requests": {"storage": size}}}
    status = {"phase": "Bound", "capacity": {"storage": size}}
    return msgspec.convert({"metadata": known, "spec": asked, "status": status}, PersistentVolumeClaim)


def owned(name: str, uid: str, of: Model) -> Meta:
    owner = OwnerReference("v1", "Model", of.metadata.name, UID, controller=True)
    return Meta(name=name, namespace="shop", uid=uid, owner_references=(owner,), creation_timestamp=ago(60))


def job(of: Model, end: str = "", *, of_revision: str = "", seconds: float = 60, **metadata: Any) -> Job:
    """What makes the revision ready; `end` is a type of condition that holds since ten seconds."""
    told = {"type": end, "status": "True", "reason": "BackoffLimitExceeded", "message": "so says the controller"}
    return msgspec.convert(
        {
            "metadata": {
                "name": samples.serving(of).names.job,
                "namespace": "shop",
                "uid": "job",
                "creationTimestamp": ago(seconds),
                "labels": {Label.REVISION: of_revision or revision(of)},
                "annotations": {
                    Annotation.PREPARE_CONFIG_HASH: manifests.prepare_config_hash(samples.serving(of), TERMS)
                },
                **metadata,
            },
            "status": {"conditions": [{**told, "lastTransitionTime": ago(10)}] if end else []},
        },
        Job,
    )


def preparer(of: Model, phase: str = "Running", *, validates: str = "", **state: Any) -> Pod:
    """The pod of that Job. `state` is that of its download, `validates` that of what follows: a name of a state."""
    fetch = {"name": "fetch", "state": _state(phase if not validates else "Succeeded", **state)}
    rows: dict[str, Any] = {"containerStatuses": [fetch]}
    if validates:
        rows = {
            "initContainerStatuses": [fetch],
            "containerStatuses": [{"name": "validate", "state": _state(validates, **state)}],
        }
    return _pod(of, "prepare-0", "Job", phase, rows, **state)


def server(of: Model, number: int = 0, *, ready: bool = True, of_revision: str = "", **state: Any) -> Pod:
    """A pod that serves. `waiting`, `exit` and `restarts` tell what keeps it from that; `init`: in its download.

    `ran` is for how many seconds it did before it ended.
    """
    name = "fetch" if state.get("init") else "inference"
    row = {"name": name, "ready": ready, "restartCount": state.get("restarts", 0)}
    row["state"] = {"running": {"startedAt": ago(40)}}
    if "waiting" in state:
        row["state"] = {"waiting": {"reason": state["waiting"], "message": state.get("said", "")}}
    if "exit" in state:
        row["lastState"] = {"terminated": _terminated(state)}
    rows: dict[str, Any] = {("initContainerStatuses" if state.get("init") else "containerStatuses"): [row]}
    if ready:
        rows["conditions"] = [{"type": "Ready", "status": "True"}]
    phase = "Pending" if "waiting" in state and not state.get("restarts") else "Running"
    return _pod(of, f"server-{number}", "ReplicaSet", phase, rows, of_revision=of_revision, **state)


def deployment(
    of: Revision | str, *, replicas: int = 1, available: int | None = None, late: str = "", **status: Any
) -> Deployment:
    """The servers of a revision: all of them answer, unless fewer are `available`. `late` is what is said then."""
    up = replicas if available is None else available
    row = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": late}
    rows = [row] if late else []
    refusal = status.pop("refusal", "")
    if refusal:
        rows.append({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refusal})
    counts = {"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": up, "availableReplicas": up}
    return msgspec.convert(
        {
            "metadata": {"name": "iris", "namespace": "shop", "uid": "deployment", "generation": 3},
            "spec": {
                "replicas": replicas,
                "template": {"metadata": {"labels": {Label.REVISION: of if isinstance(of, str) else of.hash}}},
            },
            "status": {"observedGeneration": 3, "conditions": rows, **counts, **status},
        },
        Deployment,
    )


def at(of: Model, *children: Job | Pod | Deployment | Revision, **known: Any) -> Snapshot:
    """All that is known of it. A volume is there if anything is."""
    of_kind: dict[type, list[Any]] = {}
    for child in children:
        of_kind.setdefault(type(child), []).append(child)
    jobs, deployments = of_kind.pop(Job, []), of_kind.pop(Deployment, [])
    pods = of_kind.pop(Pod, [])
    has_claim = bool(children) and samples.serving(of).storage is not None
    entries = [each for rest in of_kind.values() for each in rest]
    return Snapshot(
        **{
            "object": of,
            "serving": samples.serving(of),
            "config": TERMS,
            "now": NOW,
            "job": jobs[0] if jobs else None,
            "pods": tuple(pods),
            "deployment": deployments[0] if deployments else None,
            "claim": claim() if has_claim else None,
            "history": tuple(entries),
            **known,
        }
    )


def condition(of: Any, type_: str) -> Condition | None:
    return conditions.find_condition(of.conditions, type_)


def said(of: Any, type_: str) -> tuple[str, str] | None:
    """A condition's status and reason."""
    found = condition(of, type_)
    return None if found is None else (found.status, found.reason)


def manifest_of(of: Model, revision: Revision) -> dict[str, Any]:
    return manifests.deployment(samples.serving(of), revision, TERMS)


def _pod(of: Model, name: str, owner: str, phase: str, rows: dict[str, Any], **more: Any) -> Pod:
    containers = [{"name": each, "resources": {"limits": {"memory": "1Gi"}}} for each in ("inference", "validate")]
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "shop",
                "uid": name,
                "creationTimestamp": ago(50),
                "labels": {
                    Label.REVISION: more.get("of_revision") or revision(of),
                    Label.MODEL_UID: UID,
                    Label.TYPE: "validation" if owner == "Job" else "inference",
                    **({Label.AT_CLOUD: "true"} if samples.serving(of).want.offload and owner != "Job" else {}),
                },
                "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": SET, "uid": owner, "controller": True}],
                **more.get("metadata", {}),
            },
            "spec": {
                "nodeName": "" if "unscheduled" in more else "node-1",
                "initContainers": [{"name": "fetch", "resources": {"limits": {"memory": "512Mi"}}}],
                "containers": containers,
            },
            "status": {
                "phase": phase,
                "reason": more.get("reason", ""),
                "message": more.get("told", ""),
                **rows,
                **_unscheduled(more),
                **_disrupted(more),
            },
        },
        Pod,
    )


def _unscheduled(more: dict[str, Any]) -> dict[str, Any]:
    if "unscheduled" not in more:
        return {}
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": more["unscheduled"]}
    return {"conditions": [told]}


def _disrupted(more: dict[str, Any]) -> dict[str, Any]:
    if "disrupted" not in more:
        return {}
    reason, message = more["disrupted"]
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]}


def _state(phase: str, **more: Any) -> dict[str, Any]:
    if "waiting" in more:
        return {"waiting": {"reason": more["waiting"], "message": more.get("said", "")}}
    if phase == "Running":
        return {"running": {"startedAt": ago(more.get("ran", 40))}}
    if phase == "Succeeded":
        done = {"exitCode": 0, "message": more.get("done", PREPARED), "finishedAt": ago(12)}
        return {"terminated": {**done, "startedAt": ago(12 + more.get("took", 30))}}
    return {"terminated": _terminated(more)} if phase == "Failed" else {}


def _terminated(more: dict[str, Any]) -> dict[str, Any]:
    why = {"exitCode": more.get("exit", 1), "reason": more.get("why", "Error"), "message": more.get("said", "")}
    return {**why, "finishedAt": ago(10), "startedAt": ago(10 + more.get("ran", 30))}
