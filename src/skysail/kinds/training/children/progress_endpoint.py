"""Access of a pod to the progress server: URL, token and CA, as Kubeflow Trainer provides them. Pure.

The token belongs to the service account and is valid only for this TrainingJob and for the lifetime of the pod. The CA
is an annotation of the pod, so that no further object is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class ProgressEndpoint(msgspec.Struct, frozen=True):
    """Progress server: URL `https://host:port` and its CA bundle."""

    server: str
    authority: str


class TrainingConfig(msgspec.Struct, frozen=True):
    """Settings for all TrainingJobs. Without `reporting` there is no progress server.

    `cloud_nodes`: providers by the names of the nodes that stand for clouds. `deletable_volumes`: providers at which
    volumes with checkpoints can be deleted. `missing_accounts`: providers of these nodes without an account, because
    their credentials are missing or cannot be read. A later process may have one.
    """

    reporting: ProgressEndpoint | None = None
    stall: timedelta = timedelta(minutes=15)
    cloud_nodes: Mapping[str, str] = msgspec.field(default_factory=dict)
    deletable_volumes: frozenset[str] = frozenset()
    missing_accounts: frozenset[str] = frozenset()


def path(key: Key) -> str:
    """Return the URL path for reports of a job."""
    return TRAINING_JOB.resource.path(key.namespace, key.name, "status")


def token_audience(job: TrainingJob) -> str:
    """Return the audience of the token. The UID distinguishes the job from a later one of the same name."""
    return f"{TRAINING_JOB.resource.crd_name}/{job.metadata.uid}"


def variables(job: TrainingJob, progress_endpoint: ProgressEndpoint) -> dict[str, str]:
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": progress_endpoint.server + path(job.metadata.key),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": f"{_FOLDER}/{_AUTHORITY}",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{_FOLDER}/{_TOKEN}",
    }


def ca_annotation(progress_endpoint: ProgressEndpoint) -> dict[str, str]:
    return {Annotation.PROGRESS_CA: progress_endpoint.authority}


def volume(job: TrainingJob) -> Volume:
    token = {"audience": token_audience(job), "expirationSeconds": _TOKEN_SECONDS, "path": _TOKEN}
    field = {"fieldPath": f"metadata.annotations['{Annotation.PROGRESS_CA}']"}
    sources = [
        {"serviceAccountToken": token},
        {"downwardAPI": {"items": [{"path": _AUTHORITY, "fieldRef": field}]}},
    ]
    mount = {"name": _NAME, "mountPath": _FOLDER, "readOnly": True}
    return Volume({"name": _NAME, "projected": {"sources": sources}}, mount)
