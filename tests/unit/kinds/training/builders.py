"""A TrainingJob in some moment of its life, in few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from skysail.base.names import Annotation, Label
from skysail.base.timestamps import timestamp
from skysail.kinds.training.api.training_job import Attempt, TrainingJob, TrainingJobStatus
from skysail.kinds.training.children import naming, spec_hash
from skysail.kinds.training.children.replica_groups import replica_groups
from skysail.kinds.training.objects import INDEX_LABEL, Job, Pod
from skysail.kinds.training.snapshot import Snapshot
from tests.unit.kinds.training.samples import UID
from tests.unit.kinds.training.samples import job as training

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CHIEF = {"framework": "tensorflow", "roles": {"chief": {}, "parameterServers": {"replicas": 1}}}


_OWNER = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def job(*, metadata: dict[str, Any] | None = None, status: TrainingJobStatus | None = None, **spec: Any) -> TrainingJob:
    made = training(**{"workers": 2, **spec})
    meta = msgspec.structs.replace(made.metadata, **(metadata or {}))
    return msgspec.structs.replace(made, metadata=meta, status=status or TrainingJobStatus())


def attempt(number: int = 0, cause: str | None = None, **fields: Any) -> Attempt:
    """One that began a minute ago; with a cause, one that is over since five seconds."""
    ended = {} if cause is None else {"end_time": ago(5), "cause": cause}
    return Attempt(**{"number": number, "start_time": ago(60), **ended, **fields})


def status(*attempts: Attempt, **fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus(**{"phase": "Pending", "attempts": attempts, **fields})


def child(
    of: TrainingJob,
    role: str = "worker",
    number: int = 0,
    *,
    end: str = "",
    reason: str = "",
    shows: dict[str, str | None] | None = None,
    **metadata: Any,
) -> Job:
    """A Job of an attempt; `end` is a type of condition that holds, `shows` is what else its status has."""
    conditions = [{"type": end, "status": "True", "reason": reason, "message": "so says the controller"}] if end else []
    replicas = next(
        (replica_group.replicas for replica_group in replica_groups(of.spec) if replica_group.role == role), 1
    )
    return msgspec.convert(
        {
            "metadata": {
                "name": naming.job(of.metadata.name, role, number),
                "namespace": of.metadata.namespace,
                "uid": f"{role}-{number}",
                "creationTimestamp": ago(60),
                "labels": {Label.ATTEMPT: str(number), Label.WORKER: role},
                "annotations": {Annotation.ATTEMPT_SPEC_HASH: spec_hash.attempt_spec_hash(of.spec)},
                **metadata,
            },
            "spec": {"parallelism": replicas},
            "status": {"conditions": conditions, "startTime": ago(60), **(shows or {})},
        },
        Job,
    )


def pod(
    index: int = 0,
    phase: str = "Running",
    *,
    role: str = "worker",
    number: int = 0,
    life: int = 0,
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> Pod:
    """A pod of a rank, the `life`-th of it. `exit` and `finished` tell how its container ended."""
    return msgspec.convert(
        {
            "metadata": {
                "name": f"mnist-{role}-{number}-{index}-{life}",
                "namespace": "ml-jobs",
                "uid": f"{role}-{number}-{index}-{life}",
                "creationTimestamp": ago(50 - life),
                "labels": {Label.ATTEMPT: str(number), Label.WORKER: role, INDEX_LABEL: str(index), UID: ""},
                "ownerReferences": [{**_OWNER, "name": f"mnist-{role}-{number}", "uid": f"{role}-{number}"}],
                **(metadata or {}),
            },
            "spec": {"nodeName": "" if phase == "Pending" else f"node-{index}"},
            "status": {"phase": phase, "containerStatuses": [_container(phase, **more)], **_status(more)},
        },
        Pod,
    )


def disruption(reason: str = "PreemptionByScheduler", *, at: str = ago(15)) -> dict[str, str]:
    told = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "It has to give way."}
    return {**told, "lastTransitionTime": at}


def deleted(seconds: float = 15, *, grace: int = 30) -> dict[str, Any]:
    """Somebody asked for its end so many seconds ago."""
    return {"deletionTimestamp": ago(seconds - grace), "deletionGracePeriodSeconds": grace}


def changed(of: TrainingJob, **spec: Any) -> TrainingJob:
    """The same job, after somebody changed its spec."""
    return msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, **spec))


def snapshot(of: TrainingJob, *children: Job | Pod, **known: Any) -> Snapshot:
    return Snapshot(
        **{
            "object": of,
            "now": NOW,
            "jobs": tuple(each for each in children if isinstance(each, Job)),
            "pods": tuple(each for each in children if isinstance(each, Pod)),
            **known,
        }
    )


def _status(more: dict[str, Any]) -> dict[str, Any]:
    return {name: more[name] for name in ("conditions", "reason", "message") if name in more}


def _container(phase: str, **more: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if phase == "Running":
        state = {"running": {"startedAt": ago(40)}}
    elif phase in {"Succeeded", "Failed"}:
        ended = {"exitCode": more.get("exit", 0 if phase == "Succeeded" else 1), "reason": more.get("why", "Error")}
        said = {"message": more.get("said", ""), "finishedAt": more.get("finished", ago(10)), "startedAt": ago(40)}
        state = {"terminated": {**ended, **said}}
    elif "waiting" in more:
        state = {"waiting": {"reason": more["waiting"], "message": more.get("said", "")}}
    return {"name": "trainer", "state": state, "restartCount": more.get("restarts", 0)}
