"""Completion of ranks and of the job. Pure.

A program that checkpoints on SIGTERM may exit 0, and the Job controller then counts its index as completed. Here such a
rank is not complete: a pod that was deleted or evicted before it finished has not done its work.
"""

from __future__ import annotations

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.replica_groups import ReplicaGroup, replica_groups
from skysail.kinds.training.objects import latest_by_rank
from skysail.kinds.training.snapshot import AttemptState

Rank = tuple[str, int]
# Index of the worker that hosts the rendezvous of elastic workers.
RENDEZVOUS = 0


def all_ranks(spec: TrainingJobSpec) -> list[Rank]:
    """Return all ranks of the job as (role, index)."""
    return [
        (replica_group.role, index) for replica_group in replica_groups(spec) for index in range(replica_group.replicas)
    ]


def completed_ranks(attempt: AttemptState) -> frozenset[Rank]:
    """Return the ranks that need no pod any more, also if their pods are deleted."""
    completed = {(job.role, index) for job in attempt.jobs for index in job.completed}
    ended = {rank for rank, pod in latest_by_rank(attempt.pods).items() if pod.status.phase == "Succeeded"}
    return frozenset((completed | ended) - _interrupted_ranks(attempt))


def missing_ranks(spec: TrainingJobSpec, attempt: AttemptState) -> set[Rank]:
    """Return the ranks that need a pod and have none."""
    return set(all_ranks(spec)) - completed_ranks(attempt) - {(pod.role, pod.index) for pod in attempt.pods}


def has_succeeded(spec: TrainingJobSpec, attempt: AttemptState) -> bool:
    """Return whether the Jobs of the decisive roles are complete and none of their deciding pods was interrupted."""
    decisive = {replica_group.role for replica_group in replica_groups(spec) if replica_group.decides_success}
    return decisive <= {job.role for job in attempt.jobs if job.is_complete} and not _deciding_ranks(
        spec
    ) & _interrupted_ranks(attempt)


def is_about_to_succeed(spec: TrainingJobSpec, attempt: AttemptState) -> bool:
    """Return whether all deciding ranks are done, so that the Job controller will soon report success.

    A failure that the Job controller has already reported stays a failure, because it may have come first.
    """
    decisive = [replica_group for replica_group in replica_groups(spec) if replica_group.decides_success]
    failed = {job.role for job in attempt.jobs if job.failed is not None}
    needed = {(replica_group.role, index) for replica_group in decisive for index in _winning_indexes(replica_group)}
    return needed <= completed_ranks(attempt) and not failed & {replica_group.role for replica_group in decisive}


def _interrupted_ranks(attempt: AttemptState) -> set[Rank]:
    return {rank for rank, pod in latest_by_rank(attempt.pods).items() if pod.is_finished and pod.was_interrupted}


def _deciding_ranks(spec: TrainingJobSpec) -> set[Rank]:
    return {
        (replica_group.role, index)
        for replica_group in replica_groups(spec)
        if replica_group.decides_success
        for index in _spoken_by(spec, replica_group)
    }


def _spoken_by(spec: TrainingJobSpec, replica_group: ReplicaGroup) -> range:
    """Return the indexes that must finish by themselves: of individually restarted workers only the rendezvous."""
    comes_back = (
        replica_group.success_index is None
        and FRAMEWORKS[spec.framework].restart_scope(spec, replica_group.role) == "index"
    )
    return range(RENDEZVOUS, RENDEZVOUS + 1) if comes_back else _winning_indexes(replica_group)


def _winning_indexes(replica_group: ReplicaGroup) -> range:
    """Return the indexes whose success is the success of the group, as in the success policy of its Job."""
    return (
        range(replica_group.replicas)
        if replica_group.success_index is None
        else range(replica_group.success_index, replica_group.success_index + 1)
    )
