"""How a pod reaches the operator to report: address, token and authority, as Kubeflow Trainer hands them out. Pure.

The token is the service account's, made for this TrainingJob alone and for as long as the pod lives. The authority
comes by an annotation of the pod, so that no further object is needed for it.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from skysail.base.names import Annotation
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob
from skysail.kinds.training.children.volumes import Volume
from skysail.kube.api.objects import Key

_NAME = "kubeflow-trainer-token"
_FOLDER = "/var/run/secrets/kubeflow/trainer"
_TOKEN = "token"  # noqa: S105 (a file's name)
_AUTHORITY = "ca.crt"
_TOKEN_SECONDS = 3600


class Reporting(msgspec.Struct, frozen=True):
    """Where reports go: `https://host:port`, and who vouches for that host."""

    server: str
    authority: str


class Terms(msgspec.Struct, frozen=True):
    """What the operator was told that holds for every TrainingJob. Without `reporting` nobody listens."""

    reporting: Reporting | None = None
    stall: timedelta = timedelta(minutes=15)


def path(key: Key) -> str:
    """Of a job's reports on the server."""
    return TRAINING_JOB.resource.path(key.namespace, key.name, "status")


def audience(job: TrainingJob) -> str:
    """Whom the token is for. The UID is in it: a job of the same name that comes later is another one."""
    return f"{TRAINING_JOB.resource.crd_name}/{job.metadata.uid}"


def variables(job: TrainingJob, reporting: Reporting) -> dict[str, str]:
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": reporting.server + path(job.metadata.key),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{_FOLDER}/{_AUTHORITY}",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{_FOLDER}/{_TOKEN}",
    }


def announced(reporting: Reporting) -> dict[str, str]:
    return {Annotation.REPORTS_AUTHORITY: reporting.authority}


def volume(job: TrainingJob) -> Volume:
    token = {"audience": audience(job), "expirationSeconds": _TOKEN_SECONDS, "path": _TOKEN}
    field = {"fieldPath": f"metadata.annotations['{Annotation.REPORTS_AUTHORITY}']"}
    sources = [
        {"serviceAccountToken": token},
        {"downwardAPI": {"items": [{"path": _AUTHORITY, "fieldRef": field}]}},
    ]
    mount = {"name": _NAME, "mountPath": _FOLDER, "readOnly": True}
    return Volume({"name": _NAME, "projected": {"sources": sources}}, mount)
