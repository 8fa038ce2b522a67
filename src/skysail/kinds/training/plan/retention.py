"""Retention of checkpoints: whether the created PVC goes with its TrainingJob or outlives it. Pure.

The garbage collector deletes a PVC with its owner. So a PVC that must stay has none, and its labels say where it comes
from. The owner is removed before a checkpoint is recorded: a recorded checkpoint survives a deletion at any moment.
"""

from __future__ import annotations

import msgspec

from skysail.base.names import Annotation, EventReason, Label
from skysail.core.actions import Action, Event, Manifest, Owner, Plan, SetOwner
from skysail.kinds.training.api.training_job import (
    TRAINING_JOB,
    Checkpoint,
    CheckpointVolume,
    LatestCheckpoint,
    TrainingJob,
    TrainingJobStatus,
)
from skysail.kinds.training.children import naming
from skysail.kinds.training.children.manifests import labels_for
from skysail.kinds.training.children.volumes import (
    checkpoint_claim_name,
    checkpoint_directory,
    checkpoint_pvc,
    is_within,
)
from skysail.kinds.training.snapshot import Snapshot
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import PERSISTENT_VOLUME_CLAIM


def is_due(job: TrainingJob) -> bool:
    """Return whether the retention of the PVC differs from the one that the spec and the phase ask for."""
    saved, volume = job.status.checkpoint, job.status.checkpoint_volume
    if saved is None or saved.provider or checkpoint_pvc(job) is None:
        return False
    return _outlives(job) != (volume is not None and volume.retained)


def settle(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return the plan with a changed owner of the PVC, before any other action: one of them may delete the job."""
    job, pvc = snapshot.object, snapshot.checkpoint_pvc
    if pvc is None or not is_due(job):
        return plan
    outlives = _outlives(job)
    actions = (*_owner_change(job, pvc, outlives=outlives), *plan.actions)
    if not isinstance(plan.status, TrainingJobStatus):
        return msgspec.structs.replace(plan, actions=actions)
    volume = CheckpointVolume(claim_name=pvc.metadata.name, retained=outlives)
    return msgspec.structs.replace(
        plan, actions=actions, status=msgspec.structs.replace(plan.status, checkpoint_volume=volume)
    )


def pvc_patch(job: TrainingJob, pvc: Object, saved: LatestCheckpoint) -> Manifest | None:
    """Return the patch of the PVC before the checkpoint is recorded, or None for a PVC that Skysail did not create."""
    metadata = pvc.metadata
    if (metadata.labels or {}).get(Label.TRAINING_JOB_UID) is None:
        return None
    text = msgspec.json.encode(saved).decode()
    changes: Manifest = {"annotations": {Annotation.NEWEST_CHECKPOINT: text}}
    if metadata.is_controlled_by(job.metadata) and _outlives(job):
        changes |= {"ownerReferences": [], "labels": labels_for(job)}
    return {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version, **changes}}


def volume_after(job: TrainingJob, saved: LatestCheckpoint) -> CheckpointVolume | None:
    """Return the volume for the status after the PVC was patched."""
    if saved.provider or checkpoint_pvc(job) is None or not _outlives(job):
        return job.status.checkpoint_volume
    return CheckpointVolume(claim_name=checkpoint_claim_name(job), retained=True)


def needs_fresh_name(snapshot: Snapshot) -> bool:
    """Return whether the usual name is taken by a retained PVC of an earlier TrainingJob of the same name."""
    job, pvc = snapshot.object, snapshot.checkpoint_pvc
    if pvc is None or job.status.checkpoint_volume is not None or checkpoint_pvc(job) is None:
        return False
    creator = (pvc.metadata.labels or {}).get(Label.TRAINING_JOB_UID)
    return pvc.metadata.controller is None and creator not in {None, job.metadata.uid}


def start_fresh(snapshot: Snapshot, current: TrainingJobStatus) -> Plan:
    """Record the name of a new PVC. The attempt starts with the next reconcile, when the name is known."""
    job = snapshot.object
    usual, name = checkpoint_claim_name(job), naming.fresh_checkpoints(job.metadata.name, job.metadata.uid)
    message = (
        f"PVC {usual} has checkpoints of an earlier TrainingJob of this name, so this one starts from the beginning "
        f"with PVC {name}. To resume, create the TrainingJob again with spec.checkpoint.claimName: {usual}."
    )
    status = msgspec.structs.replace(current, checkpoint_volume=CheckpointVolume(claim_name=name))
    return Plan(status=status, events=(Event(EventReason.CHECKPOINTS_RETAINED, message),), requeue_after=0.0)


def inherited(snapshot: Snapshot) -> LatestCheckpoint | None:
    """Return the newest checkpoint of the PVC that the spec names, for the first attempt.

    Returns None if it is unknown, unreadable, or outside the mounted directory: tenants can write the annotation.
    """
    job, pvc = snapshot.object, snapshot.checkpoint_pvc
    if pvc is None or job.status.attempts or job.status.checkpoint is not None or not _settings(job).claim_name:
        return None
    text = (pvc.metadata.annotations or {}).get(Annotation.NEWEST_CHECKPOINT, "")
    try:
        saved = msgspec.json.decode(text, type=LatestCheckpoint) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if saved is None or saved.provider or not is_within(saved.path, checkpoint_directory(job.spec)):
        return None
    return msgspec.structs.replace(saved, claim_name=pvc.metadata.name)


def _outlives(job: TrainingJob) -> bool:
    match _settings(job).retain:
        case "Always":
            return True
        case "OnFailure":
            return job.status.phase != "Succeeded"
        case "Never":
            return False


def _owner_change(job: TrainingJob, pvc: Object, *, outlives: bool) -> tuple[Action, ...]:
    is_owned, metadata = pvc.metadata.is_controlled_by(job.metadata), pvc.metadata
    if is_owned and outlives:
        return (SetOwner(PERSISTENT_VOLUME_CLAIM, pvc, None),)
    is_ours = (metadata.labels or {}).get(Label.TRAINING_JOB_UID) == job.metadata.uid
    if not outlives and metadata.controller is None and is_ours:
        return (SetOwner(PERSISTENT_VOLUME_CLAIM, pvc, Owner(TRAINING_JOB.resource, job)),)
    return ()


def _settings(job: TrainingJob) -> Checkpoint:
    return job.spec.checkpoint or Checkpoint()
