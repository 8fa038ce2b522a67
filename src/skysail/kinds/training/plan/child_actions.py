"""Actions that create missing children of an attempt and delete obsolete ones. Pure."""

from __future__ import annotations

from skysail.base.names import Annotation, Reason
from skysail.core.actions import Action, Apply, Create, Delete, Manifest, Owner, Patch
from skysail.core.pod_pending import Wait
from skysail.kinds.training.api.training_job import TRAINING_JOB, TrainingJob, TrainingJobStatus
from skysail.kinds.training.children.manifests import Children, children
from skysail.kinds.training.children.replica_groups import groups, is_elastic
from skysail.kinds.training.objects import WORKER
from skysail.kinds.training.plan import attempts, gang_admission
from skysail.kinds.training.snapshot import Run, Snapshot
from skysail.kube.api.resources import JOB, SERVICE

# A pod with one of these pending reasons may lack a child that a user deleted.
_LACKING = frozenset({Reason.VOLUME_UNAVAILABLE, Reason.CONFIG_MISSING})


def upkeep(snapshot: Snapshot, run: Run, known: TrainingJobStatus, wait: Wait | None) -> tuple[Action, ...]:
    return (*_children(snapshot, run, known, wait), *gang_admission.upkeep(snapshot, all_run=wait is None))


def _children(snapshot: Snapshot, run: Run, known: TrainingJobStatus, wait: Wait | None) -> tuple[Action, ...]:
    """Return the actions for the children of the attempt.

    An existing Job is never changed, except for its number of elastic workers: another version of Skysail may render it
    differently, and its template is immutable.
    """
    job = snapshot.object
    wanted = children(job, run.number, known.attempts[-1].resumed_from, snapshot.terms.reporting)
    owner, hash_ = Owner(TRAINING_JOB.resource, job), attempts.trained(job.spec)
    is_new = attempts.recorded(job.status, run.number) is None
    # Jobs are created only for a new attempt: a Job that is missing later was deleted, and the other pods cannot
    # continue without it.
    jobs = tuple(
        Create(JOB, _marked(gang_admission.placed(snapshot, manifest, group.role), hash_), owner)
        for group, (_, manifest) in zip(groups(job.spec), wanted.jobs, strict=True)
        if is_new and run.job(manifest["metadata"]["name"]) is None
    )
    is_lacking = wait is not None and wait.reason in _LACKING
    # Children that pods need are created before the Jobs, so they exist if the Jobs exist.
    around = _surroundings(wanted, owner, all_=bool(jobs) or is_lacking)
    return (*_spare(snapshot, wanted), *around, *jobs, *_scaled(job, run))


def _spare(snapshot: Snapshot, wanted: Children) -> tuple[Action, ...]:
    """Delete the Service of a job that has only one pod now."""
    names = {manifest["metadata"]["name"] for resource, manifest in wanted.shared if resource == SERVICE}
    spare = [each for each in snapshot.services if each.metadata.name not in names and not each.metadata.is_deleting]
    return tuple(Delete(SERVICE, each) for each in spare)


def _surroundings(wanted: Children, owner: Owner, *, all_: bool) -> tuple[Action, ...]:
    """Return all children if some may be missing; otherwise only the Services, which are cached.

    Others would cost a read each time.
    """
    claims = tuple(Create(resource, manifest, owner) for resource, manifest in wanted.claims)
    shared = tuple(Apply(resource, manifest, owner) for resource, manifest in wanted.shared)
    return (*claims, *shared) if all_ else tuple(each for each in shared if each.resource == SERVICE)


def _scaled(job: TrainingJob, run: Run) -> tuple[Action, ...]:
    """Scale elastic workers in the existing Job."""
    number = job.spec.workers
    jobs = [each for each in run.jobs if is_elastic(job.spec) and each.role == WORKER]
    wanted = {"parallelism": number, "completions": number}
    return tuple(Patch(JOB, each, wanted) for each in jobs if each.spec.parallelism != number)


def _marked(manifest: Manifest, hash_: str) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), Annotation.TRAINED_SPEC: hash_}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
