"""Actions that create missing children of an attempt and delete obsolete ones. Pure."""

from __future__ import annotations

from skysail.base.names import Annotation, Reason
from skysail.core.actions import Action, Apply, Create, Delete, Manifest, Owner, PatchSpec
from skysail.core.pod_pending import PendingReason
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob, TrainingJobStatus
from skysail.kinds.training.children.manifests import Children, build_children
from skysail.kinds.training.children.replica_groups import is_elastic, replica_groups
from skysail.kinds.training.children.spec_hash import attempt_spec_hash
from skysail.kinds.training.objects import WORKER
from skysail.kinds.training.plan import attempts, gang_admission
from skysail.kinds.training.snapshot import AttemptState, Snapshot
from skysail.kube.api.resources import JOB, SERVICE

# A pod with one of these pending reasons may lack a child that a user deleted.
_LACKING = frozenset({Reason.VOLUME_UNAVAILABLE, Reason.CONFIG_MISSING})


def child_actions(
    snapshot: Snapshot, attempt: AttemptState, status: TrainingJobStatus, pending: PendingReason | None
) -> tuple[Action, ...]:
    return (*_children(snapshot, attempt, status, pending), *gang_admission.upkeep(snapshot, all_run=pending is None))


def _children(
    snapshot: Snapshot, attempt: AttemptState, status: TrainingJobStatus, pending: PendingReason | None
) -> tuple[Action, ...]:
    """Return the actions for the children of the attempt.

    An existing Job is never changed, except for its number of elastic workers: another version of Skysail may render it
    differently, and its template is immutable.
    """
    job = snapshot.object
    children = build_children(job, attempt.number, status.attempts[-1].resumed_from, snapshot.config.reporting)
    owner, hash_ = Owner(TRAINING_JOB.resource, job), attempt_spec_hash(job.spec)
    is_new = attempts.find(job.status, attempt.number) is None
    # Jobs are created only for a new attempt: a Job that is missing later was deleted, and the other pods cannot
    # continue without it.
    jobs = tuple(
        Create(JOB, _marked(gang_admission.apply_placement(snapshot, manifest, replica_group.role), hash_), owner)
        for replica_group, (_, manifest) in zip(replica_groups(job.spec), children.jobs, strict=True)
        if is_new and attempt.job(manifest["metadata"]["name"]) is None
    )
    is_lacking = pending is not None and pending.reason in _LACKING
    # Children that pods need are created before the Jobs, so they exist if the Jobs exist.
    shared = _shared_children(children, owner, all_=bool(jobs) or is_lacking)
    return (*_unneeded_services(snapshot, children), *shared, *jobs, *_scaled(job, attempt))


def _unneeded_services(snapshot: Snapshot, children: Children) -> tuple[Action, ...]:
    """Delete the Service of a job that has only one pod now."""
    names = {manifest["metadata"]["name"] for resource, manifest in children.shared if resource == SERVICE}
    spare = [each for each in snapshot.services if each.metadata.name not in names and not each.metadata.is_deleting]
    return tuple(Delete(SERVICE, each) for each in spare)


def _shared_children(children: Children, owner: Owner, *, all_: bool) -> tuple[Action, ...]:
    """Return all children if some may be missing; otherwise only the Services, which are cached.

    Others would cost a read each time.
    """
    claims = tuple(Create(resource, manifest, owner, may_be_released=True) for resource, manifest in children.claims)
    shared = tuple(Apply(resource, manifest, owner) for resource, manifest in children.shared)
    return (*claims, *shared) if all_ else tuple(apply for apply in shared if apply.resource == SERVICE)


def _scaled(job: TrainingJob, attempt: AttemptState) -> tuple[Action, ...]:
    """Scale elastic workers in the existing Job."""
    number = job.spec.workers
    jobs = [each for each in attempt.jobs if is_elastic(job.spec) and each.role == WORKER]
    desired = {"parallelism": number, "completions": number}
    return tuple(PatchSpec(JOB, each, desired) for each in jobs if each.spec.parallelism != number)


def _marked(manifest: Manifest, hash_: str) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), Annotation.ATTEMPT_SPEC_HASH: hash_}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
