"""The life of a TrainingJob: one attempt at a time, until one succeeds or no other is allowed. Pure.

What an attempt came to is written into the status first; only then its Jobs are deleted, and only when nothing of them
is left the next attempt begins. So whoever comes after a crash finds either the evidence or the verdict.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from skysail.base.names import Annotation, Event, Reason
from skysail.base.timestamps import timestamp
from skysail.core import finalizers
from skysail.core.actions import Action, Apply, Delete, Manifest, Note, Owner, Plan
from skysail.kinds.run import attempts, failure, silence, status
from skysail.kinds.run.ends import End, deadline_sentence, end_of, until_deadline, verdict
from skysail.kinds.run.gangs import leave
from skysail.kinds.run.groups import groups
from skysail.kinds.run.objections import objections
from skysail.kinds.run.render import Children, children
from skysail.kinds.run.snapshot import Run, Snapshot
from skysail.kinds.run.types import TRAINING_JOB, Phase, TrainingJob, TrainingJobStatus
from skysail.kinds.run.waiting import waits_for
from skysail.kinds.run.workload import Job, Pod
from skysail.kube.resources import JOB, SERVICE

# How soon to ask again why there are fewer pods than wanted: nobody tells us when a quota is raised.
_ASK_AGAIN = 10.0
# A node that has not confirmed the end of a pod so long after its grace will not do so by itself.
_LATE = timedelta(minutes=1)
# How soon to look again whether a kind is served: what has just appeared has to be listed first.
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
    number = attempts.under_way(snapshot)
    return _between(snapshot) if number is None else _under_way(snapshot, snapshot.run(number))


def begins(snapshot: Snapshot) -> bool:
    """Whether it is time for the next attempt, where none is under way: nothing of the last one is left."""
    job, late = snapshot.object, until_deadline(snapshot)
    is_free = not (snapshot.jobs or snapshot.pods or job.spec.suspend)
    return is_free and (late is None or late > 0) and attempts.pause(job.status, snapshot.now) <= timedelta()


def refused(snapshot: Snapshot, why: str) -> TrainingJobStatus:
    return status.refused(snapshot, why)


def _under_way(snapshot: Snapshot, run: Run) -> Plan:
    job = snapshot.object
    # Jobs that are there began where they began, whatever was reported before their attempt was written down.
    resumed_from = run.jobs[0].resumed_from if run.jobs else job.status.checkpoint
    known = attempts.opened(job.status, run.number, now=snapshot.now, resumed_from=resumed_from)
    known = status.seen(snapshot, known, run.number)
    since = _ran_since(snapshot, run)
    if since is not None:
        known = attempts.ran(known, since)
    end = end_of(snapshot, run)
    return _go_on(snapshot, run, known) if end is None else _close(snapshot, known, end)


def _go_on(snapshot: Snapshot, run: Run, known: TrainingJobStatus) -> Plan:
    job = snapshot.object
    stale = tuple(
        _delete(each) for each in snapshot.jobs if each.attempt < run.number and not each.metadata.is_deleting
    )
    wait = waits_for(snapshot, run)
    runs = known.attempts[-1].run_time is not None
    total = sum(group.replicas for group in groups(job.spec))
    if wait is None:
        shown = status.under_way(
            snapshot, known, "Running", Reason.RUNNING, f"All {total} pods run or have ended well."
        )
    else:
        shown = status.under_way(snapshot, known, "Running" if runs else "Pending", wait.reason, wait.message)
    made = attempts.recorded(job.status, run.number) is None
    shown, until_stall = silence.listened(snapshot, shown)
    return Plan(
        actions=(*stale, *_children(snapshot, run, known), *leave.upkeep(snapshot, all_run=wait is None)),
        status=status.gathered(snapshot, shown, None),
        notes=(_created(job),) if made else (),
        look_again=_soonest(until_deadline(snapshot), until_stall, _ASK_AGAIN if len(run.pods) < total else None),
    )


def _close(snapshot: Snapshot, known: TrainingJobStatus, end: End) -> Plan:
    """Write down what the attempt came to. What follows from it is the next pass's."""
    known = silence.broken(attempts.closed(known, end.cause, end.failure, now=snapshot.now))
    final = verdict(snapshot.object.spec, known, end)
    if final is not None:
        shown = status.over(snapshot, known, final.phase, final.reason, final.message)
        return Plan(status=shown, notes=(*end.notes, final.note), look_again=0.0)
    if end.cause in _HELD:
        # The clock of the deadline stands still while the job is held, and begins anew.
        known = msgspec.structs.replace(known, start_time=None)
    if end.cause == "Suspended":
        shown = status.under_way(snapshot, known, "Suspended", Reason.SUSPENDED, end.message)
    else:
        reason = Reason.CRASH_LOOP if attempts.is_crash_loop(known) else Reason.RESTARTING
        shown = status.under_way(snapshot, known, "Restarting", reason, end.message)
    return Plan(status=shown, notes=end.notes, look_again=0.0)


def _between(snapshot: Snapshot) -> Plan:
    """No attempt is under way. The next one waits for the pods of the last, for leave, and for its time."""
    job = snapshot.object
    known = status.seen(snapshot, job.status, attempts.following(job.status) - 1)
    if begins(snapshot):
        wrong = objections(job)
        return _unfit(snapshot, known, wrong) if wrong else _begin(snapshot, known)
    phase: Phase = "Suspended" if job.spec.suspend else "Restarting"
    if snapshot.jobs or snapshot.pods:
        leftovers = tuple(_delete(each) for each in snapshot.jobs if not each.metadata.is_deleting)
        shown = status.under_way(snapshot, known, phase, Reason.PODS_ENDING, _ending(snapshot))
        return Plan(actions=leftovers, status=shown, look_again=_LATE.total_seconds() if snapshot.pods else None)
    if job.spec.suspend:
        message = "The job is held. Set spec.suspend to false to go on."
        known = msgspec.structs.replace(known, start_time=None)
        shown = status.under_way(snapshot, known, "Suspended", Reason.SUSPENDED, message)
        return Plan(actions=leave.unwanted(snapshot), status=shown)
    late = until_deadline(snapshot)
    if late is not None and late <= 0:
        return _out_of_time(snapshot, known)
    return _pause(snapshot, known, attempts.pause(job.status, snapshot.now))


def _begin(snapshot: Snapshot, known: TrainingJobStatus) -> Plan:
    """The next attempt begins when the gang scheduler lets it, where the job asks for one."""
    if leave.is_unknown(snapshot):
        return Plan(look_again=_SOON)
    given = leave.leave(snapshot)
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
    """Nobody was asked before this was stored. Nothing begins until it is changed."""
    message = " ".join(wrong)
    shown = status.unfit(snapshot, known, message)
    notes = (Note(Reason.INVALID_SPEC, message, warning=True),) if shown != snapshot.object.status else ()
    return Plan(status=shown, notes=notes)


def _pause(snapshot: Snapshot, known: TrainingJobStatus, left: timedelta) -> Plan:
    last = known.attempts[-1]
    why = "" if last.failure is None else failure.sentence(last.failure, last.cause)
    is_loop = attempts.is_crash_loop(known)
    again = " It fails in the same way each time, so look at its log in status.failure." if is_loop else ""
    message = f"{why}{again} The next attempt begins at {timestamp(snapshot.now + left)}.".strip()
    reason = Reason.CRASH_LOOP if is_loop else Reason.RESTARTING
    shown = status.under_way(snapshot, known, "Restarting", reason, message)
    return Plan(actions=leave.released(snapshot), status=shown, look_again=left.total_seconds())


def _over(snapshot: Snapshot) -> Plan:
    """Nothing begins any more. Pods and the job itself go when their policies say so."""
    job = snapshot.object
    left = _until_forgotten(snapshot)
    if left is not None and left <= 0:
        return Plan(actions=(Delete(TRAINING_JOB.resource, job),))
    goes = tuple(_delete(each) for each in snapshot.jobs if not each.metadata.is_deleting and _goes(snapshot, each))
    shown = status.accepted(snapshot, status.last_seen(snapshot, job.status))
    return Plan(actions=(*goes, *leave.over(snapshot)), status=shown, look_again=left)


def _until_forgotten(snapshot: Snapshot) -> float | None:
    """Seconds until the job itself is deleted; None where nobody asked for that."""
    ttl = snapshot.object.spec.run_policy.ttl_seconds_after_finished
    ended = snapshot.object.status.completion_time
    return None if ttl is None or ended is None else (attempts.moment(ended) - snapshot.now).total_seconds() + ttl


def _goes(snapshot: Snapshot, job: Job) -> bool:
    """Whether a Job is cleaned up. One that has ended goes when its pods were seen to have ended."""
    training = snapshot.object
    if job.attempt < attempts.following(training.status) - 1:
        return True
    has_ended = job.is_complete or job.failed is not None
    pods = [pod for pod in snapshot.pods if (pod.attempt, pod.role) == (job.attempt, job.role)]
    match training.spec.run_policy.clean_pod_policy:
        case "All":
            return not has_ended or (job.is_over and all(pod.is_over for pod in pods))
        case "Running":
            return not has_ended
        case "None":
            outliving = {group.role for group in groups(training.spec) if group.outlives}
            return training.status.phase == "Succeeded" and not has_ended and job.role in outliving


def _children(snapshot: Snapshot, run: Run, known: TrainingJobStatus) -> tuple[Action, ...]:
    """What is missing of the attempt. A Job that is there stays as it was made, but for its number of elastic workers:
    another version of Skysail may render it otherwise, and its template cannot be changed.
    """
    job = snapshot.object
    wanted = children(job, run.number, known.attempts[-1].resumed_from, snapshot.terms.reporting)
    owner, hash_ = Owner(TRAINING_JOB.resource, job), attempts.trained(job.spec)
    is_new = attempts.recorded(job.status, run.number) is None
    jobs = tuple(
        Apply(JOB, _marked(leave.placed(snapshot, manifest, group.role), hash_), owner)
        for group, (_, manifest) in zip(groups(job.spec), wanted.jobs, strict=True)
        if _is_due(run, manifest, is_new=is_new)
    )
    return (*_spare(snapshot, wanted), *_surroundings(wanted, owner, is_new=is_new), *jobs)


def _spare(snapshot: Snapshot, wanted: Children) -> tuple[Action, ...]:
    """A worker that is alone needs no name that others could find it by."""
    names = {manifest["metadata"]["name"] for resource, manifest in wanted.shared if resource == SERVICE}
    spare = [each for each in snapshot.services if each.metadata.name not in names and not each.metadata.is_deleting]
    return tuple(Delete(SERVICE, each) for each in spare)


def _surroundings(wanted: Children, owner: Owner, *, is_new: bool) -> tuple[Action, ...]:
    """All of it for a new attempt; later only what is watched: looking for the rest would cost a read each time."""
    claims = tuple(Apply(resource, manifest, owner, only_once=True) for resource, manifest in wanted.claims)
    shared = tuple(Apply(resource, manifest, owner) for resource, manifest in wanted.shared)
    return (*claims, *shared) if is_new else tuple(each for each in shared if each.resource == SERVICE)


def _is_due(run: Run, manifest: Manifest, *, is_new: bool) -> bool:
    """Jobs are made for a new attempt only: one that is missing later was deleted, and the others cannot go on."""
    there = run.job(manifest["metadata"]["name"])
    return is_new if there is None else there.spec.parallelism != manifest["spec"]["parallelism"]


def _marked(manifest: Manifest, hash_: str) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), Annotation.TRAINED_SPEC: hash_}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _created(job: TrainingJob) -> Note:
    return Note(Event.WORKERS_CREATED, f"Created {job.spec.workers} worker pods")


def _delete(job: Job) -> Delete:
    """The Job stays until its pods are gone: when it has gone, nothing of the attempt runs."""
    return Delete(JOB, job, children_first=True)


def _ran_since(snapshot: Snapshot, run: Run) -> str | None:
    """When the last pod started, once all have: told by the pods, so that it is known also to who was not there."""
    started = {(pod.role, pod.index): pod.started_at for pod in run.pods if pod.started_at is not None}
    ranks = {(group.role, index) for group in groups(snapshot.object.spec) for index in range(group.replicas)}
    return max(started.values()) if ranks <= started.keys() else None


def _ending(snapshot: Snapshot) -> str:
    """Who is still there; and what to do about a node that never says that its pod has ended."""
    pods = [pod for pod in snapshot.pods if pod.metadata.is_deleting or not pod.is_over]
    if not pods:
        return "The pods of the last attempt are being removed."
    late = [pod for pod in pods if _is_late(pod, snapshot)]
    pod = (late or pods)[0]
    waits = f"{len(pods)} pods of the last attempt have not ended yet, such as {pod.metadata.name}"
    if not late or not pod.spec.node_name:
        return f"{waits}."
    return (
        f"{waits}, which node {pod.spec.node_name} does not confirm. If that node is lost for good, delete it: "
        f"`kubectl delete node {pod.spec.node_name}`."
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
