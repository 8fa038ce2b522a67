"""Children of one attempt, as manifests. Pure: same job, same number, same children.

One Indexed Job per role: the Job controller keeps index, host name and exit of each pod. Skysail decides when and how
often an attempt starts, so a Job of a gang fails with its first pod.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Annotation, Label
from skysail.core.actions import Manifest
from skysail.kinds.training.api.training_job import LatestCheckpoint, TrainingJob, TrainingJobSpec
from skysail.kinds.training.children import naming, pod_template
from skysail.kinds.training.children.frameworks import FRAMEWORKS, WorldInfo
from skysail.kinds.training.children.progress_endpoint import ProgressEndpoint
from skysail.kinds.training.children.replica_groups import ReplicaGroup, RoleName, replica_groups
from skysail.kinds.training.children.volumes import checkpoint_pvc, hyperparameters
from skysail.kube.api.resources import CONFIG_MAP, JOB, PERSISTENT_VOLUME_CLAIM, SERVICE, Resource

Child = tuple[Resource, Manifest]


class Children(msgspec.Struct, frozen=True, kw_only=True):
    """Children of an attempt. `claims` are created if missing and never changed, because PVCs are immutable.

    `shared` is used by all attempts; `jobs` belong to this attempt, in the order of ranks.
    """

    claims: tuple[Child, ...] = ()
    shared: tuple[Child, ...] = ()
    jobs: tuple[Child, ...] = ()


def build_children(
    job: TrainingJob, number: int, resume: LatestCheckpoint | None, progress_endpoint: ProgressEndpoint | None = None
) -> Children:
    """Return the children of attempt `number`, with the checkpoint to resume from and the progress server, if any."""
    world = WorldInfo(job.metadata.name, job.spec, number)
    claim, config = checkpoint_pvc(job), hyperparameters(job)
    shared: list[Child] = []
    if config is not None:
        shared.append((CONFIG_MAP, _labelled(job, config)))
    if not world.is_single_pod:
        shared.append((SERVICE, _labelled(job, _service(job))))
    return Children(
        claims=() if claim is None else ((PERSISTENT_VOLUME_CLAIM, _labelled(job, claim)),),
        shared=tuple(shared),
        jobs=tuple(
            (JOB, _job(job, world, replica_group, resume, progress_endpoint))
            for replica_group in replica_groups(job.spec)
        ),
    )


def labels_for(job: TrainingJob) -> dict[str, str]:
    """Return the labels of all children of the job. The UID distinguishes it from a later job of the same name."""
    return {
        Label.TRAINING_JOB: naming.label_value(job.metadata.name),
        Label.TRAINING_JOB_UID: job.metadata.uid,
    }


def _labelled(job: TrainingJob, manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels_for(job)}}


def _service(job: TrainingJob) -> Manifest:
    """Return the headless Service.

    Names resolve before pods are ready, because pods become ready only after they have connected.
    """
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {"name": naming.service(job.metadata.name), "namespace": job.metadata.namespace},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {Label.TRAINING_JOB_UID: job.metadata.uid},
            "ports": [{"name": "training", "port": FRAMEWORKS[job.spec.framework].port, "protocol": "TCP"}],
        },
    }


def _job(
    job: TrainingJob,
    world: WorldInfo,
    replica_group: ReplicaGroup,
    resume: LatestCheckpoint | None,
    progress_endpoint: ProgressEndpoint | None,
) -> Manifest:
    labels = {**labels_for(job), Label.WORKER: replica_group.role, Label.ATTEMPT: str(world.number)}
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": replica_group.replicas,
        "parallelism": replica_group.replicas,
        # Never run two pods of one index: both would write to the same checkpoint.
        "podReplacementPolicy": "Failed",
        **_restarts(job.spec, replica_group.role),
        "template": pod_template.build(
            job, world, replica_group, resume=resume, reports=progress_endpoint, labels=labels
        ),
    }
    if replica_group.success_index is not None:
        spec["successPolicy"] = {"rules": [{"succeededIndexes": str(replica_group.success_index)}]}
    name = naming.job(job.metadata.name, replica_group.role, world.number)
    metadata: Manifest = {"name": name, "namespace": job.metadata.namespace, "labels": labels}
    if resume is not None:
        # The status is written after this Job and may name a newer checkpoint by then.
        metadata["annotations"] = {Annotation.RESUMED_FROM: msgspec.json.encode(resume).decode()}
    return {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": metadata, "spec": spec}


def _restarts(spec: TrainingJobSpec, role: RoleName) -> Manifest:
    """Return the restart fields. Gang roles restart as a whole.

    Other roles restart per index, and disruptions do not count against the limit.
    """
    if FRAMEWORKS[spec.framework].restart_scope(spec, role) == "gang":
        return {"backoffLimit": 0, "podFailurePolicy": _when_disrupted("FailJob")}
    return {
        "backoffLimitPerIndex": spec.run_policy.backoff_limit if spec.restart_policy == "OnFailure" else 0,
        "maxFailedIndexes": 0,
        "podFailurePolicy": _when_disrupted("Ignore"),
    }


def _when_disrupted(action: str) -> Manifest:
    return {"rules": [{"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
