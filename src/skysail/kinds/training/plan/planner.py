"""Planner of TrainingJobs: one attempt at a time, until one succeeds or no other is allowed. Pure.

The result of an attempt is written to the status first; then its Jobs are deleted; the next attempt starts when they
are gone. So after a crash there is either the evidence or the recorded result.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from skysail.base.names import EventReason, Reason
from skysail.base.timestamps import timestamp
from skysail.core import api_errors, pod_pending
from skysail.core.actions import Action, Delete, Event, Plan
from skysail.core.pod_pending import PendingReason
from skysail.kinds.training.api.training_job import (
    TRAINING_JOB,
    Attempt,
    LatestCheckpoint,
    Phase,
    TrainingJob,
    TrainingJobStatus,
)
from skysail.kinds.training.children.job_errors import user_message
from skysail.kinds.training.children.replica_groups import min_pods, replica_groups
from skysail.kinds.training.children.spec_hash import job_spec_hash
from skysail.kinds.training.children.volumes import is_reachable
from skysail.kinds.training.objects import EVALUATOR, Job, Pod
from skysail.kinds.training.plan import (
    attempts,
    cloud_placement,
    cloud_volumes,
    completion,
    failure,
    gang_admission,
    pending,
    retention,
    stall,
    status,
)
from skysail.kinds.training.plan.child_actions import child_actions
from skysail.kinds.training.plan.events import newly_failed, plan_events
from skysail.kinds.training.plan.field_names import field_names
from skysail.kinds.training.plan.termination import (
    AttemptEnd,
    attempt_end,
    deadline_sentence,
    ignored_change_errors,
    job_result,
    outdated_job,
    spec_errors,
    until_deadline,
)
from skysail.kinds.training.snapshot import AttemptState, NameHolder, Snapshot
from skysail.kube.api.resources import JOB, POD

# Interval for reading why pods are missing, because no event announces a raised quota.
_RETRY_SECONDS = 10.0
# Interval for reading why a pod does not start on its node, and for repeating a failed preflight, because policies of
# the cluster may change.
_ASK_NODE = 30.0
# A node that has not confirmed the end of a pod this long after its grace period may be lost.
_LATE = timedelta(minutes=1)
# Interval for polling discovery and pending reports of finished pods.
_SOON = 1.0
FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
_HELD = frozenset({"Suspended", "Evicted"})


def plan(snapshot: Snapshot) -> Plan:
    return cloud_volumes.settle(snapshot, retention.settle(snapshot, _plan(snapshot)))


def _plan(snapshot: Snapshot) -> Plan:
    job = snapshot.object
    if job.metadata.is_deleting:
        return cloud_volumes.plan_deletion(snapshot)
    if job.spec.managed_by is not None:
        return Plan()
    if job.status.phase in FINISHED_PHASES:
        return _plan_finished(snapshot)
    if not snapshot.progress_flushed:
        return Plan(requeue_after=_SOON)
    number = attempts.active_number(snapshot)
    return _plan_between_attempts(snapshot) if number is None else _plan_active_attempt(snapshot, snapshot.run(number))


def can_start_attempt(snapshot: Snapshot) -> bool:
    """Return whether the next attempt may start now. Nothing of the last attempt is left."""
    job, seconds_left = snapshot.object, until_deadline(snapshot)
    is_free = not (_is_occupied(snapshot) or job.spec.suspend)
    return (
        is_free
        and (seconds_left is None or seconds_left > 0)
        and attempts.restart_delay(job, snapshot.now) <= timedelta()
    )


def refused(snapshot: Snapshot, event: Event) -> Plan:
    job = snapshot.object
    if job.status.attempts or not api_errors.is_about_content(event.message, JOB):
        return Plan(status=status.write_rejected(snapshot, event), events=(event,))
    message = user_message(job, event.message)
    return Plan(
        status=status.invalid_spec(snapshot, job.status, message),
        events=(Event(Reason.INVALID_SPEC, message, warning=True),),
    )


def _plan_active_attempt(snapshot: Snapshot, attempt: AttemptState) -> Plan:
    job = snapshot.object
    previous = _known_checkpoint(snapshot)
    begun = Attempt(
        number=attempt.number,
        start_time=_begun(snapshot, attempt),
        resumed_from=_resumed_from(job, attempt, previous.checkpoint),
        spec_hash="" if outdated_job(job.spec, attempt) else job_spec_hash(job.spec),
    )
    current = status.with_workers(snapshot, attempts.open_attempt(previous, begun), attempt.number)
    since = _ran_since(snapshot, attempt)
    if since is not None:
        current = attempts.mark_running(current, since)
    current = cloud_volumes.record(snapshot, cloud_placement.record(snapshot, attempt, current))
    ending = attempt_end(snapshot, attempt)
    made = (
        _continue_attempt(snapshot, attempt, current) if ending is None else _close_attempt(snapshot, current, ending)
    )
    notes = cloud_placement.events(previous, current)
    return msgspec.structs.replace(made, events=(*notes, *made.events)) if notes else made


def _known_checkpoint(snapshot: Snapshot) -> TrainingJobStatus:
    """Return the status without a checkpoint that was deleted, or with the one of a PVC that the spec names."""
    old = snapshot.object.status
    if snapshot.has_lost_checkpoint:
        return msgspec.structs.replace(old, checkpoint=None)
    saved = retention.inherited(snapshot)
    return old if saved is None else msgspec.structs.replace(old, checkpoint=saved)


def _continue_attempt(snapshot: Snapshot, attempt: AttemptState, current: TrainingJobStatus) -> Plan:
    stale = tuple(
        _delete(job) for job in snapshot.jobs if job.attempt < attempt.number and not job.metadata.is_deleting
    )
    pending_reason, message = (
        pending.pending_reason(snapshot, attempt),
        " ".join(ignored_change_errors(snapshot, attempt)),
    )
    current = msgspec.structs.replace(current, failure=next(reversed(newly_failed(snapshot, attempt)), current.failure))
    new_status, until_stall = stall.check_stall(snapshot, _attempt_status(snapshot, current, pending_reason, message))
    new_status = status.with_gang_condition(snapshot, new_status, None)
    return Plan(
        actions=stale if message else (*stale, *child_actions(snapshot, attempt, current, pending_reason)),
        status=new_status,
        is_deferrable=status.is_deferrable(snapshot.object.status, new_status),
        events=plan_events(snapshot, attempt, message),
        requeue_after=_min_delay(until_deadline(snapshot), until_stall, _until_asked(snapshot, attempt)),
    )


def _attempt_status(
    snapshot: Snapshot, current: TrainingJobStatus, pending: PendingReason | None, message: str
) -> TrainingJobStatus:
    if pending is None:
        all_ = f"All {len(completion.all_ranks(snapshot.object.spec))} pods run or have succeeded."
        return status.in_progress(snapshot, current, "Running", Reason.RUNNING, all_, ignored_error=message)
    phase: Phase = "Pending" if current.attempts[-1].run_time is None else "Running"
    return status.in_progress(snapshot, current, phase, pending.reason, pending.message, ignored_error=message)


def _until_asked(snapshot: Snapshot, attempt: AttemptState) -> float | None:
    """Return the seconds until the next read of why pods are missing or do not start."""
    if completion.missing_ranks(snapshot.object.spec, attempt):
        return _RETRY_SECONDS
    return _ASK_NODE if pod_pending.starting_pods(attempt.pods) else None


def _close_attempt(snapshot: Snapshot, current: TrainingJobStatus, ending: AttemptEnd) -> Plan:
    """Record the end of the attempt. The next reconcile acts on it."""
    current = stall.clear_stall(attempts.close_attempt(current, ending.cause, ending.failure, now=snapshot.now))
    final = job_result(snapshot.object, current, ending)
    if final is not None:
        new_status = status.finished(snapshot, current, final.phase, final.reason, final.message)
        return Plan(status=new_status, events=(*ending.notes, final.note), requeue_after=0.0)
    if ending.cause in _HELD:
        # The deadline does not run while the job is suspended or evicted, and starts again from zero.
        current = msgspec.structs.replace(current, start_time=None)
    if ending.cause == "Suspended":
        new_status = status.in_progress(snapshot, current, "Suspended", Reason.SUSPENDED, ending.message)
    else:
        reason = Reason.CRASH_LOOP if attempts.is_crash_loop(current) else Reason.RESTARTING
        new_status = status.in_progress(snapshot, current, "Restarting", reason, ending.message)
    return Plan(status=new_status, events=ending.notes, requeue_after=0.0)


def _plan_between_attempts(snapshot: Snapshot) -> Plan:
    """Plan without a current attempt: wait for the old pods, for admission and for the backoff."""
    job = snapshot.object
    current = status.with_workers(snapshot, job.status, attempts.next_number(job.status) - 1)
    if can_start_attempt(snapshot):
        if snapshot.name_held_by is not None:
            return _after(snapshot, current, snapshot.name_held_by)
        errors = spec_errors(snapshot)
        return _invalid_spec(snapshot, current, errors) if errors else _begin(snapshot, current)
    phase: Phase = "Suspended" if job.spec.suspend else "Restarting"
    if _is_occupied(snapshot):
        leftovers = tuple(_delete(each) for each in snapshot.jobs if not each.metadata.is_deleting)
        new_status = status.in_progress(snapshot, current, phase, Reason.PODS_TERMINATING, _ending(snapshot))
        return Plan(
            actions=(*leftovers, *_orphans(snapshot)),
            status=new_status,
            requeue_after=_LATE.total_seconds(),
        )
    if job.spec.suspend:
        message = "The job is suspended. Set spec.suspend to false to resume."
        current = msgspec.structs.replace(current, start_time=None)
        new_status = status.in_progress(snapshot, current, "Suspended", Reason.SUSPENDED, message)
        return Plan(actions=gang_admission.delete_unwanted(snapshot), status=new_status)
    seconds_left = until_deadline(snapshot)
    if seconds_left is not None and seconds_left <= 0:
        return _out_of_time(snapshot, current)
    return _pause(snapshot, current, attempts.restart_delay(job, snapshot.now))


def _after(snapshot: Snapshot, current: TrainingJobStatus, previous: NameHolder) -> Plan:
    """Wait for the children of a deleted job of the same name, which occupy the names of the next attempt."""
    deleted = "of a deleted TrainingJob of the same name"
    message = f"Job {previous.job} {deleted} is still being deleted."
    if previous.pods:
        message = f"Pod {previous.pods[0]} {deleted} is still terminating ({len(previous.pods)} pods in total)."
    new_status = status.in_progress(snapshot, current, "Pending", Reason.PODS_TERMINATING, message)
    return Plan(status=new_status, requeue_after=_SOON)


def _is_occupied(snapshot: Snapshot) -> bool:
    """Return whether pods of an earlier attempt exist or may still be created.

    A Job without pods that was deleted long ago counts as gone: it creates none. Objects of other namespaces can keep
    such a Job for ever, by an owner reference with its UID and `blockOwnerDeletion`.
    """
    return bool(snapshot.pods) or not all(_is_late(job, snapshot) for job in snapshot.jobs)


def _orphans(snapshot: Snapshot) -> tuple[Action, ...]:
    """Delete pods whose Job was deleted without them, because no other controller does."""
    left = (pod for pod in snapshot.pods if pod.is_orphan and not pod.metadata.is_deleting)
    return tuple(Delete(POD, pod) for pod in left)


def _begin(snapshot: Snapshot, current: TrainingJobStatus) -> Plan:
    """Start the next attempt once the gang scheduler admits it, if the job has one."""
    if gang_admission.is_unknown(snapshot):
        return Plan(requeue_after=_SOON)
    if retention.needs_fresh_name(snapshot):
        return retention.start_fresh(snapshot, current)
    given = gang_admission.check(snapshot)
    if given.reason is None:
        begun = _plan_active_attempt(snapshot, AttemptState(attempts.next_number(current)))
        return msgspec.structs.replace(begun, actions=(*given.actions, *begun.actions))
    missing = given.message if given.reason == Reason.GANG_UNAVAILABLE else None
    new_status = status.in_progress(snapshot, current, "Pending", given.reason, given.message)
    new_status = status.with_gang_condition(snapshot, new_status, missing)
    is_news = missing is not None and new_status != snapshot.object.status
    events = (Event(Reason.GANG_UNAVAILABLE, given.message, warning=True),) if is_news else ()
    return Plan(actions=given.actions, status=new_status, events=events)


def _invalid_spec(snapshot: Snapshot, current: TrainingJobStatus, errors: tuple[str, ...]) -> Plan:
    """Report a spec that admission did not reject. No attempt starts until it is changed."""
    message = " ".join(errors)
    new_status = status.invalid_spec(snapshot, current, message)
    events = (Event(Reason.INVALID_SPEC, message, warning=True),) if new_status != snapshot.object.status else ()
    return Plan(status=new_status, events=events, requeue_after=None if snapshot.preflight_error is None else _ASK_NODE)


def _pause(snapshot: Snapshot, current: TrainingJobStatus, remaining: timedelta) -> Plan:
    last = current.attempts[-1]
    fields = field_names(snapshot.object)
    start, is_loop = timestamp(snapshot.now + remaining), attempts.is_crash_loop(current)
    message = f"The next attempt starts at {start}."
    if is_loop:
        message = f"The next attempt starts at {start}; all fail in the same way: {fields.log_hint}."
    if last.failure is not None:
        message = f"{failure.message(last.failure, last.cause, fields)} {message}"
    reason = Reason.CRASH_LOOP if is_loop else Reason.RESTARTING
    new_status = status.in_progress(snapshot, current, "Restarting", reason, message)
    return Plan(
        actions=gang_admission.confirm_released(snapshot), status=new_status, requeue_after=remaining.total_seconds()
    )


def _plan_finished(snapshot: Snapshot) -> Plan:
    """Clean up a finished job according to its policies."""
    job = snapshot.object
    seconds_left = _until_forgotten(snapshot)
    if seconds_left is not None and seconds_left <= 0:
        return Plan(actions=(Delete(TRAINING_JOB.resource, job),))
    goes = tuple(
        _delete(each) for each in snapshot.jobs if not each.metadata.is_deleting and _should_delete(snapshot, each)
    )
    new_status = status.accepted(snapshot, status.with_final_workers(snapshot, job.status))
    return Plan(actions=(*goes, *gang_admission.over(snapshot)), status=new_status, requeue_after=seconds_left)


def _until_forgotten(snapshot: Snapshot) -> float | None:
    """Return the seconds until the TTL expires, or None without a TTL."""
    ttl = snapshot.object.spec.run_policy.ttl_seconds_after_finished
    ended = snapshot.object.status.completion_time
    return None if ttl is None or ended is None else (attempts.parse_time(ended) - snapshot.now).total_seconds() + ttl


def _should_delete(snapshot: Snapshot, job: Job) -> bool:
    """Return whether the Job is deleted now.

    A finished Job is deleted only after its pods were seen to have finished.
    """
    training = snapshot.object
    if job.attempt < attempts.next_number(training.status) - 1:
        return True
    has_ended = job.is_complete or job.failed is not None
    if not has_ended and training.status.attempts and training.status.attempts[-1].cause == "DeadlineExceeded":
        return True
    pods = [pod for pod in snapshot.pods if (pod.attempt, pod.role) == (job.attempt, job.role)]
    match training.spec.run_policy.clean_pod_policy:
        case "All":
            return not has_ended or (job.is_over and all(pod.is_finished for pod in pods))
        case "Running":
            return not has_ended
        case "None":
            decisive = {
                replica_group.role for replica_group in replica_groups(training.spec) if replica_group.decides_success
            }
            return training.status.phase == "Succeeded" and not has_ended and job.role not in decisive


def _delete(job: Job) -> Delete:
    """Keep the Job until its pods are gone: a surviving pod could still write the checkpoint."""
    return Delete(JOB, job, foreground=True)


def _resumed_from(job: TrainingJob, attempt: AttemptState, newest: LatestCheckpoint | None) -> LatestCheckpoint | None:
    """Return the checkpoint of the attempt. Existing Jobs keep theirs, even if a newer one was reported since."""
    if attempt.jobs:
        return attempt.jobs[0].resumed_from
    return newest if newest is not None and is_reachable(job, newest) else None


def _begun(snapshot: Snapshot, attempt: AttemptState) -> str:
    """Return the creation time of the first Job, because the status may be written much later."""
    times = [job.metadata.creation_timestamp for job in attempt.jobs if job.metadata.creation_timestamp]
    return min(times, default=timestamp(snapshot.now))


def _ran_since(snapshot: Snapshot, attempt: AttemptState) -> str | None:
    """Return when all required pods had started, or None.

    Read from the pods, so that it is known after a restart of the operator. The evaluator is not required.
    """
    started = {(pod.role, pod.index): pod.started_at for pod in attempt.pods if pod.started_at is not None}
    gone = completion.completed_ranks(attempt) - started.keys()
    since = []
    for replica_group in replica_groups(snapshot.object.spec):
        needed = 0 if replica_group.role == EVALUATOR else min_pods(snapshot.object.spec, replica_group)
        needed -= sum(1 for role, _ in gone if role == replica_group.role)
        starts = sorted(start for (role, _), start in started.items() if role == replica_group.role)
        if len(starts) < needed:
            return None
        since += starts[: max(needed, 0)]
    return max(since, default=None)


def _ending(snapshot: Snapshot) -> str:
    """Return which pods are still terminating, with the fix for a node that never confirms the end of its pod."""
    pods = [pod for pod in snapshot.pods if pod.metadata.is_deleting or not pod.is_finished]
    if not pods:
        return "The pods of the last attempt are being deleted."
    overdue_pods = [pod for pod in pods if _is_late(pod, snapshot)]
    pod = (overdue_pods or pods)[0]
    name, node = pod.metadata.name, pod.spec.node_name
    if not overdue_pods or not node:
        return f"Pod {name} of the last attempt is still terminating ({len(pods)} pods in total)."
    return (
        f"Pod {name} of the last attempt is still terminating ({len(pods)} pods in total): node {node} does not "
        f"confirm its end. If the node is lost for good, delete it: `kubectl delete node {node}`."
    )


def _is_late(object_: Pod | Job, snapshot: Snapshot) -> bool:
    due = object_.metadata.deletion_timestamp
    return due is not None and snapshot.now - attempts.parse_time(due) > _LATE


def _out_of_time(snapshot: Snapshot, current: TrainingJobStatus) -> Plan:
    new_status = status.finished(
        snapshot, current, "Failed", Reason.DEADLINE_EXCEEDED, deadline_sentence(snapshot.object)
    )
    event = Event(EventReason.TRAINING_FAILED, deadline_sentence(snapshot.object), warning=True)
    return Plan(status=new_status, events=(event,), requeue_after=0.0)


def _min_delay(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
