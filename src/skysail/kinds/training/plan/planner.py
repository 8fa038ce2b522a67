"""Planner of TrainingJobs: one attempt at a time, until one succeeds or no other is allowed. Pure.

The result of an attempt is written to the status first; then its Jobs are deleted; the next attempt starts when they
are gone. So after a crash there is either the evidence or the recorded result.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from skysail.base.names import Event, Reason
from skysail.base.timestamps import timestamp
from skysail.core import finalizers, pod_pending
from skysail.core.actions import Action, Delete, Note, Plan
from skysail.core.pod_pending import Wait
from skysail.kinds.training.api.training_job import (
    TRAINING_JOB,
    Attempt,
    NewestCheckpoint,
    Phase,
    TrainingJob,
    TrainingJobStatus,
)
from skysail.kinds.training.children.replica_groups import fewest, groups
from skysail.kinds.training.children.volumes import finds
from skysail.kinds.training.objects import EVALUATOR, Job, Pod
from skysail.kinds.training.plan import (
    api_errors,
    attempts,
    completion,
    failure,
    gang_admission,
    pending,
    stall,
    status,
)
from skysail.kinds.training.plan.child_actions import upkeep
from skysail.kinds.training.plan.events import fallen, news
from skysail.kinds.training.plan.termination import (
    End,
    deadline_sentence,
    end_of,
    outdated,
    unheeded,
    until_deadline,
    verdict,
    wrongs,
)
from skysail.kinds.training.snapshot import Predecessor, Run, Snapshot
from skysail.kube.api.resources import JOB, POD

# Interval for reading why pods are missing, because no event announces a raised quota.
_ASK_AGAIN = 10.0
# Interval for reading why a pod does not start on its node, and for repeating a failed preflight, because policies of
# the cluster may change.
_ASK_NODE = 30.0
# A node that has not confirmed the end of a pod this long after its grace period may be lost.
_LATE = timedelta(minutes=1)
# Interval for polling discovery and pending reports of finished pods.
_SOON = 1.0
OVER = frozenset({"Succeeded", "Failed"})
_HELD = frozenset({"Suspended", "Evicted"})


def plan(snapshot: Snapshot) -> Plan:
    job = snapshot.object
    if job.metadata.is_deleting:
        return Plan(actions=finalizers.let_go(TRAINING_JOB.resource, job))
    if job.spec.managed_by is not None:
        return Plan()
    if job.status.phase in OVER:
        return _over(snapshot)
    if not snapshot.is_settled:
        return Plan(look_again=_SOON)
    number = attempts.under_way(snapshot)
    return _between(snapshot) if number is None else _under_way(snapshot, snapshot.run(number))


def begins(snapshot: Snapshot) -> bool:
    """Return whether the next attempt may start now. Nothing of the last attempt is left."""
    job, late = snapshot.object, until_deadline(snapshot)
    is_free = not (snapshot.jobs or snapshot.pods or job.spec.suspend)
    return is_free and (late is None or late > 0) and attempts.pause(job, snapshot.now) <= timedelta()


def refused(snapshot: Snapshot, why: Note) -> Plan:
    job = snapshot.object
    if job.status.attempts or not api_errors.is_about_job(why.message):
        return Plan(status=status.refused(snapshot, why), notes=(why,))
    wrong = api_errors.sentence(why.message, has_template=job.spec.pod_template is not None)
    return Plan(
        status=status.unfit(snapshot, job.status, wrong), notes=(Note(Reason.INVALID_SPEC, wrong, warning=True),)
    )


def _under_way(snapshot: Snapshot, run: Run) -> Plan:
    job = snapshot.object
    before = msgspec.structs.replace(job.status, checkpoint=None) if snapshot.has_lost_checkpoint else job.status
    begun = Attempt(
        number=run.number,
        start_time=_begun(snapshot, run),
        resumed_from=_resumed_from(job, run, before.checkpoint),
        spec_hash="" if outdated(job.spec, run) else attempts.asked(job.spec),
    )
    known = status.seen(snapshot, attempts.opened(before, begun), run.number)
    since = _ran_since(snapshot, run)
    if since is not None:
        known = attempts.ran(known, since)
    end = end_of(snapshot, run)
    return _go_on(snapshot, run, known) if end is None else _close(snapshot, known, end)


def _go_on(snapshot: Snapshot, run: Run, known: TrainingJobStatus) -> Plan:
    stale = tuple(
        _delete(each) for each in snapshot.jobs if each.attempt < run.number and not each.metadata.is_deleting
    )
    wait, wrong = pending.waits_for(snapshot, run), " ".join(unheeded(snapshot, run))
    known = msgspec.structs.replace(known, failure=next(reversed(fallen(snapshot, run)), known.failure))
    shown, until_stall = stall.listened(snapshot, _shown(snapshot, known, wait, wrong))
    shown = status.gathered(snapshot, shown, None)
    return Plan(
        actions=stale if wrong else (*stale, *upkeep(snapshot, run, known, wait)),
        status=shown,
        can_wait=status.is_detail(snapshot.object.status, shown),
        notes=news(snapshot, run, wrong),
        look_again=_soonest(until_deadline(snapshot), until_stall, _until_asked(snapshot, run)),
    )


def _shown(snapshot: Snapshot, known: TrainingJobStatus, wait: Wait | None, wrong: str) -> TrainingJobStatus:
    if wait is None:
        all_ = f"All {len(completion.ranks(snapshot.object.spec))} pods run or have succeeded."
        return status.under_way(snapshot, known, "Running", Reason.RUNNING, all_, unheeded=wrong)
    phase: Phase = "Pending" if known.attempts[-1].run_time is None else "Running"
    return status.under_way(snapshot, known, phase, wait.reason, wait.message, unheeded=wrong)


def _until_asked(snapshot: Snapshot, run: Run) -> float | None:
    """Return the seconds until the next read of why pods are missing or do not start."""
    if completion.missing(snapshot.object.spec, run):
        return _ASK_AGAIN
    return _ASK_NODE if pod_pending.starting(run.pods) else None


def _close(snapshot: Snapshot, known: TrainingJobStatus, end: End) -> Plan:
    """Record the end of the attempt. The next reconcile acts on it."""
    known = stall.broken(attempts.closed(known, end.cause, end.failure, now=snapshot.now))
    final = verdict(snapshot.object.spec, known, end)
    if final is not None:
        shown = status.over(snapshot, known, final.phase, final.reason, final.message)
        return Plan(status=shown, notes=(*end.notes, final.note), look_again=0.0)
    if end.cause in _HELD:
        # The deadline does not run while the job is suspended or evicted, and starts again from zero.
        known = msgspec.structs.replace(known, start_time=None)
    if end.cause == "Suspended":
        shown = status.under_way(snapshot, known, "Suspended", Reason.SUSPENDED, end.message)
    else:
        reason = Reason.CRASH_LOOP if attempts.is_crash_loop(known) else Reason.RESTARTING
        shown = status.under_way(snapshot, known, "Restarting", reason, end.message)
    return Plan(status=shown, notes=end.notes, look_again=0.0)


def _between(snapshot: Snapshot) -> Plan:
    """Plan without a current attempt: wait for the old pods, for admission and for the backoff."""
    job = snapshot.object
    known = status.seen(snapshot, job.status, attempts.following(job.status) - 1)
    if begins(snapshot):
        if snapshot.before is not None:
            return _after(snapshot, known, snapshot.before)
        wrong = wrongs(snapshot)
        return _unfit(snapshot, known, wrong) if wrong else _begin(snapshot, known)
    phase: Phase = "Suspended" if job.spec.suspend else "Restarting"
    if snapshot.jobs or snapshot.pods:
        leftovers = tuple(_delete(each) for each in snapshot.jobs if not each.metadata.is_deleting)
        shown = status.under_way(snapshot, known, phase, Reason.PODS_ENDING, _ending(snapshot))
        return Plan(
            actions=(*leftovers, *_orphans(snapshot)),
            status=shown,
            look_again=_LATE.total_seconds() if snapshot.pods else None,
        )
    if job.spec.suspend:
        message = "The job is suspended. Set spec.suspend to false to resume."
        known = msgspec.structs.replace(known, start_time=None)
        shown = status.under_way(snapshot, known, "Suspended", Reason.SUSPENDED, message)
        return Plan(actions=gang_admission.unwanted(snapshot), status=shown)
    late = until_deadline(snapshot)
    if late is not None and late <= 0:
        return _out_of_time(snapshot, known)
    return _pause(snapshot, known, attempts.pause(job, snapshot.now))


def _after(snapshot: Snapshot, known: TrainingJobStatus, before: Predecessor) -> Plan:
    """Wait for the children of a deleted job of the same name, which occupy the names of the next attempt."""
    deleted = "of a deleted TrainingJob of the same name"
    message = f"Job {before.job} {deleted} is still being deleted."
    if before.pods:
        message = f"Pod {before.pods[0]} {deleted} is still terminating ({len(before.pods)} pods in total)."
    shown = status.under_way(snapshot, known, "Pending", Reason.PODS_ENDING, message)
    return Plan(status=shown, look_again=_SOON)


def _orphans(snapshot: Snapshot) -> tuple[Action, ...]:
    """Delete pods whose Job was deleted without them, because no other controller does."""
    left = (pod for pod in snapshot.pods if pod.is_orphan and not pod.metadata.is_deleting)
    return tuple(Delete(POD, pod) for pod in left)


def _begin(snapshot: Snapshot, known: TrainingJobStatus) -> Plan:
    """Start the next attempt once the gang scheduler admits it, if the job has one."""
    if gang_admission.is_unknown(snapshot):
        return Plan(look_again=_SOON)
    given = gang_admission.leave(snapshot)
    if given.reason is None:
        begun = _under_way(snapshot, Run(attempts.following(known)))
        return msgspec.structs.replace(begun, actions=(*given.actions, *begun.actions))
    missing = given.message if given.reason == Reason.GANG_UNAVAILABLE else None
    shown = status.under_way(snapshot, known, "Pending", given.reason, given.message)
    shown = status.gathered(snapshot, shown, missing)
    is_news = missing is not None and shown != snapshot.object.status
    notes = (Note(Reason.GANG_UNAVAILABLE, given.message, warning=True),) if is_news else ()
    return Plan(actions=given.actions, status=shown, notes=notes)


def _unfit(snapshot: Snapshot, known: TrainingJobStatus, wrong: tuple[str, ...]) -> Plan:
    """Report a spec that admission did not reject. No attempt starts until it is changed."""
    message = " ".join(wrong)
    shown = status.unfit(snapshot, known, message)
    notes = (Note(Reason.INVALID_SPEC, message, warning=True),) if shown != snapshot.object.status else ()
    return Plan(status=shown, notes=notes, look_again=None if snapshot.refusal is None else _ASK_NODE)


def _pause(snapshot: Snapshot, known: TrainingJobStatus, left: timedelta) -> Plan:
    last = known.attempts[-1]
    start, is_loop = timestamp(snapshot.now + left), attempts.is_crash_loop(known)
    message = f"The next attempt starts at {start}."
    if is_loop:
        message = f"The next attempt starts at {start}; all fail in the same way, so read the log in status.failure."
    if last.failure is not None:
        message = f"{failure.sentence(last.failure, last.cause)} {message}"
    reason = Reason.CRASH_LOOP if is_loop else Reason.RESTARTING
    shown = status.under_way(snapshot, known, "Restarting", reason, message)
    return Plan(actions=gang_admission.released(snapshot), status=shown, look_again=left.total_seconds())


def _over(snapshot: Snapshot) -> Plan:
    """Clean up a finished job according to its policies."""
    job = snapshot.object
    left = _until_forgotten(snapshot)
    if left is not None and left <= 0:
        return Plan(actions=(Delete(TRAINING_JOB.resource, job),))
    goes = tuple(_delete(each) for each in snapshot.jobs if not each.metadata.is_deleting and _goes(snapshot, each))
    shown = status.accepted(snapshot, status.last_seen(snapshot, job.status))
    return Plan(actions=(*goes, *gang_admission.over(snapshot)), status=shown, look_again=left)


def _until_forgotten(snapshot: Snapshot) -> float | None:
    """Return the seconds until the TTL expires, or None without a TTL."""
    ttl = snapshot.object.spec.run_policy.ttl_seconds_after_finished
    ended = snapshot.object.status.completion_time
    return None if ttl is None or ended is None else (attempts.moment(ended) - snapshot.now).total_seconds() + ttl


def _goes(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the Job is deleted now.

    A finished Job is deleted only after its pods were seen to have finished.
    """
    training = snapshot.object
    if job.attempt < attempts.following(training.status) - 1:
        return True
    has_ended = job.is_complete or job.failed is not None
    if not has_ended and training.status.attempts and training.status.attempts[-1].cause == "DeadlineExceeded":
        return True
    pods = [pod for pod in snapshot.pods if (pod.attempt, pod.role) == (job.attempt, job.role)]
    match training.spec.run_policy.clean_pod_policy:
        case "All":
            return not has_ended or (job.is_over and all(pod.is_over for pod in pods))
        case "Running":
            return not has_ended
        case "None":
            decisive = {group.role for group in groups(training.spec) if group.is_decisive}
            return training.status.phase == "Succeeded" and not has_ended and job.role not in decisive


def _delete(job: Job) -> Delete:
    """Keep the Job until its pods are gone: a surviving pod could still write the checkpoint."""
    return Delete(JOB, job, children_first=True)


def _resumed_from(job: TrainingJob, run: Run, newest: NewestCheckpoint | None) -> NewestCheckpoint | None:
    """Return the checkpoint of the attempt. Existing Jobs keep theirs, even if a newer one was reported since."""
    if run.jobs:
        return run.jobs[0].resumed_from
    return newest if newest is not None and finds(job, newest) else None


def _begun(snapshot: Snapshot, run: Run) -> str:
    """Return the creation time of the first Job, because the status may be written much later."""
    times = [job.metadata.creation_timestamp for job in run.jobs if job.metadata.creation_timestamp]
    return min(times, default=timestamp(snapshot.now))


def _ran_since(snapshot: Snapshot, run: Run) -> str | None:
    """Return when all required pods had started, or None.

    Read from the pods, so that it is known after a restart of the operator. The evaluator is not required.
    """
    started = {(pod.role, pod.index): pod.started_at for pod in run.pods if pod.started_at is not None}
    gone = completion.done(run) - started.keys()
    since = []
    for group in groups(snapshot.object.spec):
        needed = 0 if group.role == EVALUATOR else fewest(snapshot.object.spec, group)
        needed -= sum(1 for role, _ in gone if role == group.role)
        starts = sorted(start for (role, _), start in started.items() if role == group.role)
        if len(starts) < needed:
            return None
        since += starts[: max(needed, 0)]
    return max(since, default=None)


def _ending(snapshot: Snapshot) -> str:
    """Return which pods are still terminating, with the fix for a node that never confirms the end of its pod."""
    pods = [pod for pod in snapshot.pods if pod.metadata.is_deleting or not pod.is_over]
    if not pods:
        return "The pods of the last attempt are being deleted."
    late = [pod for pod in pods if _is_late(pod, snapshot)]
    pod = (late or pods)[0]
    name, node = pod.metadata.name, pod.spec.node_name
    if not late or not node:
        return f"Pod {name} of the last attempt is still terminating ({len(pods)} pods in total)."
    return (
        f"Pod {name} of the last attempt is still terminating ({len(pods)} pods in total): node {node} does not "
        f"confirm its end. If the node is lost for good, delete it: `kubectl delete node {node}`."
    )


def _is_late(pod: Pod, snapshot: Snapshot) -> bool:
    due = pod.metadata.deletion_timestamp
    return due is not None and snapshot.now - attempts.moment(due) > _LATE


def _out_of_time(snapshot: Snapshot, known: TrainingJobStatus) -> Plan:
    shown = status.over(snapshot, known, "Failed", Reason.DEADLINE_EXCEEDED, deadline_sentence(snapshot.object))
    note = Note(Event.TRAINING_FAILED, deadline_sentence(snapshot.object), warning=True)
    return Plan(status=shown, notes=(note,), look_again=0.0)


def _soonest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
