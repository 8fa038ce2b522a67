"""Which ranks have done their work, and whether the job has. Pure.

A program that saves when it is told to go may exit with 0, and the Job controller counts its index as completed. Its
work is not done, though: whoever sees why it ended does not believe that.
"""

from __future__ import annotations

from skysail.kinds.training.api.training_job import TrainingJobSpec
from skysail.kinds.training.children.frameworks import FRAMEWORKS
from skysail.kinds.training.children.replica_groups import Group, groups
from skysail.kinds.training.objects import newest
from skysail.kinds.training.snapshot import Run

Rank = tuple[str, int]
# Elastic workers meet at this one.
RENDEZVOUS = 0


def ranks(spec: TrainingJobSpec) -> list[Rank]:
    """Every pod that the job has, by role and index."""
    return [(group.role, index) for group in groups(spec) for index in range(group.replicas)]


def done(run: Run) -> frozenset[Rank]:
    """Ranks that need no pod any more, also those whose pods are gone."""
    completed = {(job.role, index) for job in run.jobs for index in job.completed}
    ended = {rank for rank, pod in newest(run.pods).items() if pod.status.phase == "Succeeded"}
    return frozenset((completed | ended) - _cut_off(run))


def missing(spec: TrainingJobSpec, run: Run) -> set[Rank]:
    """Ranks that should have a pod and have none."""
    return set(ranks(spec)) - done(run) - {(pod.role, pod.index) for pod in run.pods}


def has_succeeded(spec: TrainingJobSpec, run: Run) -> bool:
    """As the Job controller says, unless one that speaks for the job was only told to go."""
    decisive = {group.role for group in groups(spec) if group.is_decisive}
    return decisive <= {job.role for job in run.jobs if job.is_complete} and not _speakers(spec) & _cut_off(run)


def is_about_to_succeed(spec: TrainingJobSpec, run: Run) -> bool:
    """All who decide are done, so the Job controller ends the others now, and will say so in a moment. What it has said
    stays, though: one that failed beside the last of them may have come first.
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
    """Who must have ended by itself. Workers that come and go meet at the first, which stays to the end."""
    comes_back = group.winner is None and FRAMEWORKS[spec.framework].scope(spec, group.role) == "index"
    return range(RENDEZVOUS, RENDEZVOUS + 1) if comes_back else _winners(group)


def _winners(group: Group) -> range:
    """Whose success is the group's, as its Job says."""
    return range(group.replicas) if group.winner is None else range(group.winner, group.winner + 1)
