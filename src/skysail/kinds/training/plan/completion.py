"""Completion of ranks and of the job. Pure.

A program that checkpoints on SIGTERM may exit 0, and the Job controller then counts its index as completed. Here such a
rank is not complete: a pod that was deleted or evicted before it finished has not done its work.
"""

from __future__ import annotations

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.replica_groups import Group, groups
from skysail.kinds.training.objects import newest
from skysail.kinds.training.snapshot import Run

Rank = tuple[str, int]
# Index of the worker that hosts the rendezvous of elastic workers.
RENDEZVOUS = 0


def ranks(spec: TrainingJobSpec) -> list[Rank]:
    """Return all ranks of the job as (role, index)."""
    return [(group.role, index) for group in groups(spec) for index in range(group.replicas)]


def done(run: Run) -> frozenset[Rank]:
    """Return the ranks that need no pod any more, also if their pods are deleted."""
    completed = {(job.role, index) for job in run.jobs for index in job.completed}
    ended = {rank for rank, pod in newest(run.pods).items() if pod.status.phase == "Succeeded"}
    return frozenset((completed | ended) - _cut_off(run))


def missing(spec: TrainingJobSpec, run: Run) -> set[Rank]:
    """Return the ranks that need a pod and have none."""
    return set(ranks(spec)) - done(run) - {(pod.role, pod.index) for pod in run.pods}


def has_succeeded(spec: TrainingJobSpec, run: Run) -> bool:
    """Return whether the Jobs of the decisive roles are complete and none of their deciding pods was interrupted."""
    decisive = {group.role for group in groups(spec) if group.is_decisive}
    return decisive <= {job.role for job in run.jobs if job.is_complete} and not _speakers(spec) & _cut_off(run)


def is_about_to_succeed(spec: TrainingJobSpec, run: Run) -> bool:
    """Return whether all deciding ranks are done, so that the Job controller will soon report success.

    A failure that the Job controller has already reported stays a failure, because it may have come first.
    """
    decisive = [group for group in groups(spec) if group.is_decisive]
    failed = {job.role for job in run.jobs if job.failed is not None}
    needed = {(group.role, index) for group in decisive for index in _winners(group)}
    return needed <= done(run) and not failed & {group.role for group in decisive}


def _cut_off(run: Run) -> set[Rank]:
    return {rank for rank, pod in newest(run.pods).items() if pod.is_over and pod.was_cut_off}


def _speakers(spec: TrainingJobSpec) -> set[Rank]:
    return {(group.role, index) for group in groups(spec) if group.is_decisive for index in _spoken_by(spec, group)}


def _spoken_by(spec: TrainingJobSpec, group: Group) -> range:
    """Return the indexes that must finish by themselves: of individually restarted workers only the rendezvous."""
    comes_back = group.winner is None and FRAMEWORKS[spec.framework].scope(spec, group.role) == "index"
    return range(RENDEZVOUS, RENDEZVOUS + 1) if comes_back else _winners(group)


def _winners(group: Group) -> range:
    """Return the indexes whose success is the success of the group, as in the success policy of its Job."""
    return range(group.replicas) if group.winner is None else range(group.winner, group.winner + 1)
