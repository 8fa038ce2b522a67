"""What made a revision fail: the step, the container, how it ended, and what to do about it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, cast, get_args

import msgspec

from skysail.base import terminal_text, untrusted_json
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import Failure, Step
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.children.pod_templates import VALIDATION_CONTAINER
from skysail.kinds.serving.objects import Job, Pod, newest
from skysail.kinds.serving.plan import rollout_deadline
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kube.api.workloads import Container, Terminated

# A server that was started so often and does not answer will not answer. One that ran so long before is not counted
# among them: kubelets begin to count anew then, too, and what else keeps it from answering is told by its deadline.
_RESTARTS = 3
_HEALTHY = timedelta(minutes=10)
# By which the download says that its failure may pass; by which a shell says that a program was told to go.
_MAY_PASS = 75
_TOLD_TO_GO = 143
_NO_SCRIPT = 78
# Steps of one program: a volume that was away while a model was laid out on it may be back.
_OF_DOWNLOAD = ("Download", "Layout")
_OUT_OF_MEMORY = "OOMKilled"
_DEADLINE = "DeadlineExceeded"
_EVICTED = "Evicted"
_LONGEST_LOG = 4096
_LONGEST_MESSAGE = 2048
_FIRST_PAUSE = timedelta(seconds=30)
_AFTER_INTERRUPTION = timedelta(seconds=5)
_LONGEST_PAUSE = timedelta(minutes=30)
_MOST_DOUBLINGS = 10
# After so many failures in a row nobody should have to look closely in order to see that there is one.
_LASTING = 3
_REASONS = {reason.value: reason for reason in Reason}


class Crash(msgspec.Struct, frozen=True):
    """How a container ended; `is_running`: it was started again, so that its log is that of the one before."""

    pod: Pod
    container: str
    end: Terminated
    message: str
    reason: str
    is_running: bool = False


class Mishap(msgspec.Struct, frozen=True):
    """`crash` has the log that tells more. `may_pass`: the same may go well another time.

    `is_counted`: one failed attempt. An interruption from outside is none.
    """

    failure: Failure
    crash: Crash | None = None
    may_pass: bool = False
    is_counted: bool = True


class _Word(msgspec.Struct, frozen=True):
    """The last word of a download."""

    reason: str
    message: str
    step: str = "Download"


class Prepared(msgspec.Struct, frozen=True):
    """What a download came to, and how many seconds it took. Nothing of it where the model is in the server's image."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    bytes: int = 0
    files: int = 0
    seconds: int = 0


def ended_well(pods: tuple[Pod, ...]) -> Pod | None:
    return newest(pod for pod in pods if pod.status.phase == "Succeeded")


def prepared(pod: Pod) -> Prepared | None:
    """What a download that ended well came to; None where it does not say so."""
    fetch = pod.container(FETCH)
    end = fetch.state.terminated if fetch is not None else None
    if end is None:
        return None if pod.has_container(FETCH) else Prepared()
    try:
        told = untrusted_json.read(end.message, Prepared)
    except untrusted_json.Unreadable:
        return None
    return msgspec.structs.replace(told, seconds=_took(end))


def of_silence(snapshot: Snapshot, job: Job, pod: Pod) -> Mishap:
    """A download that ended well and did not say what it came to. Another one would not, either."""
    message = (
        f"Container {FETCH} of pod {pod.metadata.name} ended well, but its last word is no digest: "
        f"use an image for downloads that fits this Skysail, instead of {snapshot.terms.fetch_image}."
    )
    found = Failure(step="Download", reason=Reason.DOWNLOAD_FAILED, message=message, revision=job.revision)
    return Mishap(msgspec.structs.replace(found, exit_code=0, failure_time=_ended(job)))


def of_preparation(snapshot: Snapshot, job: Job) -> Mishap:
    """Why a Job that has failed did so."""
    pod = newest(pod for pod in snapshot.preparing(job.revision) if pod.status.phase == "Failed")
    time, failed = _ended(job), job.failed
    evicted = _evicted(pod) if pod is not None else ""
    if pod is None or evicted or pod.status.reason == _DEADLINE or pod.exit is None:
        is_late = pod is not None and pod.status.reason == _DEADLINE
        message = _too_slow(snapshot) if is_late else evicted or _gone(failed.message if failed else "")
        reason = Reason.DEADLINE_EXCEEDED if is_late else Reason.INTERRUPTED
        step: Step = "Validate" if (is_late or evicted) and _has_fetched(pod) else "Download"
        found = Failure(step=step, reason=reason, message=message, revision=job.revision, failure_time=time)
        return Mishap(found, may_pass=may_pass(found), is_counted=pod is None or not _is_interrupted(pod))
    crash = _crash(pod, *pod.exit)
    is_interrupted = crash.end.exit_code == _TOLD_TO_GO or crash.end.is_lost
    word = _word(crash.end) if crash.container == FETCH else None
    pinned = snapshot.serving.rollback_to if crash.reason == Reason.CHECKSUM_MISMATCH else None
    found = Failure(
        step=_step(crash, word),
        reason=Reason.INTERRUPTED if is_interrupted else crash.reason,
        message=crash.message if pinned is None else _overwritten(snapshot, pinned),
        revision=job.revision,
        exit_code=crash.end.exit_code,
        failure_time=time,
    )
    return Mishap(found, crash, may_pass(found), is_counted=not crash.end.is_lost)


def may_pass(found: Failure) -> bool:
    """Whether it may go well the next time with nothing changed: a place that was away, or an end from outside.

    What was written down says so by itself: the pod that it was read from may be gone.
    """
    if found.reason == Reason.INTERRUPTED:
        return True
    return found.step in _OF_DOWNLOAD and found.exit_code in {None, _MAY_PASS}


def is_lasting(found: Failure | None) -> bool:
    """Whether what may pass has not for a while. It is tried again all the same."""
    return found is not None and found.attempts >= _LASTING and may_pass(found)


def _has_fetched(pod: Pod | None) -> bool:
    row = pod.container(FETCH) if pod is not None else None
    return row is not None and row.state.terminated is not None and row.state.terminated.exit_code == 0


def of_servers(snapshot: Snapshot, entry: Entry) -> Mishap | None:
    """Why servers of a revision will not answer; None while they may."""
    deployment = snapshot.deployment
    if deployment is None or deployment.revision != entry.hash or deployment.is_rolled_out:
        return None
    late = [pod for pod in snapshot.serving_pods(entry.hash) if not pod.is_ready]
    crashes = [crash for pod in late if (crash := crashed(snapshot, entry, pod)) is not None]
    looping = next((crash for crash in crashes if _loops(crash) and not _passes(crash)), None)
    # Also those that have ended: where each is replaced at once, there may be no other just now.
    made = [pod for pod in snapshot.pods if pod.revision == entry.hash and not pod.prepares]
    if looping is None and not rollout_deadline.is_late(deployment, made):
        return None
    crash = looping or next(iter(crashes), None)
    if crash is not None:
        found = Failure(step="Deploy", reason=crash.reason, message=crash.message, exit_code=crash.end.exit_code)
    else:
        found = rollout_deadline.late(snapshot, entry, late)
    now = timestamp(snapshot.now)
    return Mishap(msgspec.structs.replace(found, revision=entry.hash, failure_time=now), crash)


def of_refusal(snapshot: Snapshot, entry: Entry, why: str) -> Mishap:
    """Servers that the API server does not take."""
    now = timestamp(snapshot.now)
    return Mishap(
        Failure(step="Deploy", reason=Reason.INVALID_SPEC, message=why, revision=entry.hash, failure_time=now)
    )


def _passes(crash: Crash) -> bool:
    """A place of models that is away for a while says nothing about the revision: only the deadline does then."""
    return crash.container == FETCH and crash.end.exit_code in {_MAY_PASS, _TOLD_TO_GO}


def crashed(snapshot: Snapshot, entry: Entry, pod: Pod) -> Crash | None:
    """A container of a server of this revision that ended badly and has not answered since.

    One that its node lost did nothing wrong, and is started again.
    """
    for row in pod.containers:
        end = row.state.terminated or row.last_state.terminated
        if end is not None and end.is_lost:
            continue
        is_done = row.state.terminated is not None and row.state.terminated.exit_code == 0
        if end is not None and not is_done and not row.ready and (end.exit_code != 0 or row.restart_count):
            crash = _crash(pod, row.name, end)
            is_other = crash.container == FETCH and crash.reason == Reason.CHECKSUM_MISMATCH
            message = _overwritten(snapshot, entry.number) if is_other else crash.message
            return msgspec.structs.replace(crash, is_running=row.state.running is not None, message=message)
    return None


def counted(before: Failure | None, found: Failure, *, is_attempt: bool = True) -> Failure:
    """With the number of failed attempts. One that was written down already is not counted again."""
    is_same = before is not None and before.revision == found.revision and before.step not in {"Deploy", "Ready"}
    if before is None or not is_same:
        return msgspec.structs.replace(found, attempts=int(is_attempt))
    if is_known(before, found):
        return before
    return msgspec.structs.replace(found, attempts=before.attempts + int(is_attempt))


def is_known(before: Failure | None, found: Failure) -> bool:
    """Whether it was written down: each Job ends once, and the next one is made much later."""
    return before is not None and (before.revision, before.failure_time) == (found.revision, found.failure_time)


def again_at(found: Failure) -> datetime:
    """When what may pass is tried again: after half a minute at first, and twice as long each time.

    Soon, if nothing but interruptions kept it from going well.
    """
    if not found.attempts:
        return datetime.fromisoformat(found.failure_time or "") + _AFTER_INTERRUPTION
    doublings = min(max(found.attempts - 1, 0), _MOST_DOUBLINGS)
    pause: timedelta = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
    return datetime.fromisoformat(found.failure_time or "") + pause


def with_log(found: Failure, log: str | None) -> Failure:
    return found if log is None else msgspec.structs.replace(found, log=log.strip("\n")[-_LONGEST_LOG:])


def reason(found: Failure) -> Reason:
    """For a condition. Containers say what they like, and a condition takes one of our words."""
    return _REASONS.get(found.reason, Reason.DOWNLOAD_FAILED)


def _crash(pod: Pod, container: str, end: Terminated) -> Crash:
    where = f"Container {container} of pod {pod.metadata.name}"
    if end.is_lost:
        return Crash(pod, container, end, f"{where} was lost by its node{_said(end)}", Reason.INTERRUPTED)
    if end.reason == _OUT_OF_MEMORY:
        limit = pod.memory_limit(container)
        more = "the limit is fixed, so use a smaller model" if container == FETCH else "raise resources.limits.memory"
        text = f"{where} was ended because it used more memory than its limit{f' of {limit}' if limit else ''}: {more}."
        return Crash(pod, container, end, text, Reason.OUT_OF_MEMORY)
    word = _word(end) if container == FETCH else None
    if word is not None:
        known = _REASONS.get(word.reason, Reason.DOWNLOAD_FAILED)
        return Crash(pod, container, end, word.message, known)
    if container == FETCH:
        return Crash(pod, container, end, f"{where} ended with exit code {end.exit_code}.", Reason.DOWNLOAD_FAILED)
    if container == VALIDATION_CONTAINER:
        return _invalid(pod, where, end)
    text = f"{where} ended with exit code {end.exit_code}{_said(end)}"
    return Crash(pod, container, end, text, Reason.CRASH_LOOP)


def _invalid(pod: Pod, where: str, end: Terminated) -> Crash:
    if end.exit_code == _NO_SCRIPT:
        word = _word(end)
        text = word.message if word else f"The validation script was not found{_said(end)}"
        return Crash(pod, VALIDATION_CONTAINER, end, text, Reason.SCRIPT_NOT_FOUND)
    text = f"The validation script failed with exit code {end.exit_code}{_said(end)} {where} has the whole log."
    return Crash(pod, VALIDATION_CONTAINER, end, text, Reason.VALIDATION_FAILED)


def _overwritten(snapshot: Snapshot, number: int) -> str:
    """The download knows only that it is not what it was told; here is known that it was."""
    changed = f"What is at the address of the model has changed since revision {number} was found good"
    if snapshot.serving.rollback_to is not None:
        return f"{changed}: put the former content back there, or remove spec.rollbackTo."
    return f"{changed}: set a new spec.version to serve what is there now, or put the former content back there."


def _said(end: Terminated) -> str:
    """The last line that a container left, which tells most."""
    lines = [line.strip() for line in terminal_text.shown(end.message).splitlines() if line.strip()]
    return f": {pod_pending.cut(lines[-1])}" if lines else "."


def _word(end: Terminated) -> _Word | None:
    try:
        word = untrusted_json.read(end.message, _Word)
    except untrusted_json.Unreadable:
        return None
    return msgspec.structs.replace(word, message=terminal_text.shown(word.message)[:_LONGEST_MESSAGE])


def _step(crash: Crash, word: _Word | None) -> Step:
    if crash.container == VALIDATION_CONTAINER:
        return "Validate"
    is_step = word is not None and word.step in get_args(Step)
    return cast("Step", word.step) if word is not None and is_step else "Download"


def _loops(crash: Crash) -> bool:
    row: Container | None = crash.pod.container(crash.container)
    return row is not None and row.restart_count >= _RESTARTS and not _was_healthy(crash.end)


def _was_healthy(end: Terminated) -> bool:
    return (ran := _ran(end)) is not None and ran >= _HEALTHY


def _took(end: Terminated) -> int:
    """Seconds, at least one; 0 where its node does not say."""
    ran = _ran(end)
    return 0 if ran is None else max(int(ran.total_seconds()), 1)


def _ran(end: Terminated) -> timedelta | None:
    if end.started_at is None or end.finished_at is None:
        return None
    return datetime.fromisoformat(end.finished_at) - datetime.fromisoformat(end.started_at)


def _ended(job: Job) -> str:
    end = job.failed or job.success
    time = end.last_transition_time if end is not None else None
    return time or job.metadata.creation_timestamp or ""


def _too_slow(snapshot: Snapshot) -> str:
    limit = snapshot.terms.prepare_seconds
    return f"Download and validation took longer than {limit} s, which the setting prepare_seconds allows: raise it."


def _is_interrupted(pod: Pod) -> bool:
    """Whether it had to go for reasons that are not its own. Evictions count: a node without room evicts each time."""
    return pod.disruption is not None and pod.status.reason not in {_EVICTED, _DEADLINE}


def _evicted(pod: Pod) -> str:
    """What took a pod away that did nothing wrong, in its own words: a node without room, the scheduler, a drain."""
    disruption = pod.disruption
    if disruption is None and pod.status.reason != _EVICTED:
        return ""
    told = pod.status.message or (disruption.message or disruption.reason if disruption is not None else "")
    return f"The pod of the download was taken away: {pod_pending.cut(told or pod.status.reason)}"


def _gone(told: str) -> str:
    more = f" The Job's controller says: {pod_pending.cut(told)}" if told else ""
    return f"The pod of the download is gone, and nobody knows how it ended.{more}"
