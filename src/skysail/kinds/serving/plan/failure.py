"""Failures of a revision: the step, the container, the exit code, and the message with the fix. Pure."""

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

# A server that restarted this often without becoming ready counts as failed. A run of at least `_HEALTHY` does not
# count, as kubelets reset their backoff then; the rollout deadline covers such servers.
_RESTARTS = 3
_HEALTHY = timedelta(minutes=10)
# Exit codes: of a transient download failure, of a program that a shell saw terminated by SIGTERM, and of a validation
# script that does not exist.
_MAY_PASS = 75
_TOLD_TO_GO = 143
_NO_SCRIPT = 78
# The fetch container does both steps, and both can fail because a volume is unavailable for a while.
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
# After this many transient failures in a row, the model is shown as failed.
_LASTING = 3
_REASONS = {reason.value: reason for reason in Reason}


class Crash(msgspec.Struct, frozen=True):
    """Termination of a container. If `is_running`, it was restarted, so the log is that of the previous run."""

    pod: Pod
    container: str
    end: Terminated
    message: str
    reason: str
    is_running: bool = False


class Mishap(msgspec.Struct, frozen=True):
    """Failure of a revision.

    `crash` names the container whose log explains it; `may_pass` marks a transient failure. `is_counted` marks a failed
    attempt; an interruption from outside is not counted.
    """

    failure: Failure
    crash: Crash | None = None
    may_pass: bool = False
    is_counted: bool = True


class _Word(msgspec.Struct, frozen=True):
    """Termination message of a failed download."""

    reason: str
    message: str
    step: str = "Download"


class Prepared(msgspec.Struct, frozen=True):
    """Result of a download, with its duration. All fields are empty if the model is part of the server image."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    bytes: int = 0
    files: int = 0
    seconds: int = 0


def ended_well(pods: tuple[Pod, ...]) -> Pod | None:
    """Return the newest pod that succeeded, or None."""
    return newest(pod for pod in pods if pod.status.phase == "Succeeded")


def prepared(pod: Pod) -> Prepared | None:
    """Return the result that a successful download reported, or None if it reported none."""
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
    """Return the failure of a download that succeeded without a result. A retry would not help."""
    message = (
        f"Container {FETCH} of pod {pod.metadata.name} succeeded but reported no digest. Image "
        f"{snapshot.terms.fetch_image} does not match this version of Skysail; change the setting fetch_image."
    )
    found = Failure(step="Download", reason=Reason.DOWNLOAD_FAILED, message=message, revision=job.revision)
    return Mishap(msgspec.structs.replace(found, exit_code=0, failure_time=_ended(job)))


def of_preparation(snapshot: Snapshot, job: Job) -> Mishap:
    """Return why a prepare Job failed."""
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
    """Return whether the failure is transient: an unavailable source, or an interruption from outside.

    The answer needs only the recorded failure, because the pod may be deleted.
    """
    if found.reason == Reason.INTERRUPTED:
        return True
    return found.step in _OF_DOWNLOAD and found.exit_code in {None, _MAY_PASS}


def is_lasting(found: Failure | None) -> bool:
    """Return whether a transient failure has happened several times in a row. It is still retried."""
    return found is not None and found.attempts >= _LASTING and may_pass(found)


def _has_fetched(pod: Pod | None) -> bool:
    row = pod.container(FETCH) if pod is not None else None
    return row is not None and row.state.terminated is not None and row.state.terminated.exit_code == 0


def of_servers(snapshot: Snapshot, entry: Entry) -> Mishap | None:
    """Return why the servers of a revision failed, or None while they may still become ready."""
    deployment = snapshot.deployment
    if deployment is None or deployment.revision != entry.hash or deployment.is_rolled_out:
        return None
    late = [pod for pod in snapshot.serving_pods(entry.hash) if not pod.is_ready]
    crashes = [crash for pod in late if (crash := crashed(snapshot, entry, pod)) is not None]
    looping = next((crash for crash in crashes if _loops(crash) and not _passes(crash)), None)
    # Include finished pods: if each pod is replaced at once, no other may exist right now.
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
    """Return the failure of servers that the API server rejected."""
    now = timestamp(snapshot.now)
    return Mishap(
        Failure(step="Deploy", reason=Reason.INVALID_SPEC, message=why, revision=entry.hash, failure_time=now)
    )


def _passes(crash: Crash) -> bool:
    """Return whether only the model's source is unavailable. Then the rollout deadline decides about the revision."""
    return crash.container == FETCH and crash.end.exit_code in {_MAY_PASS, _TOLD_TO_GO}


def crashed(snapshot: Snapshot, entry: Entry, pod: Pod) -> Crash | None:
    """Return the container of this server that failed and has not become ready since, or None.

    A container that its node lost is not to blame, and is restarted.
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
    """Return the failure with the number of attempts. A recorded failure is not counted twice."""
    is_same = before is not None and before.revision == found.revision and before.step not in {"Deploy", "Ready"}
    if before is None or not is_same:
        return msgspec.structs.replace(found, attempts=int(is_attempt))
    if is_known(before, found):
        return before
    return msgspec.structs.replace(found, attempts=before.attempts + int(is_attempt))


def is_known(before: Failure | None, found: Failure) -> bool:
    """Return whether the failure is recorded: each Job fails once, and the next Job is created much later."""
    return before is not None and (before.revision, before.failure_time) == (found.revision, found.failure_time)


def again_at(found: Failure) -> datetime:
    """Return the time of the next attempt: 30 s after the first failure, then twice as long each time.

    Soon after an interruption, if no attempt has failed.
    """
    if not found.attempts:
        return datetime.fromisoformat(found.failure_time or "") + _AFTER_INTERRUPTION
    doublings = min(max(found.attempts - 1, 0), _MOST_DOUBLINGS)
    pause: timedelta = min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE)
    return datetime.fromisoformat(found.failure_time or "") + pause


def with_log(found: Failure, log: str | None) -> Failure:
    return found if log is None else msgspec.structs.replace(found, log=log.strip("\n")[-_LONGEST_LOG:])


def reason(found: Failure) -> Reason:
    """Return the reason for a condition. A reason that a container made up is replaced by ours."""
    return _REASONS.get(found.reason, Reason.DOWNLOAD_FAILED)


def _crash(pod: Pod, container: str, end: Terminated) -> Crash:
    where = f"Container {container} of pod {pod.metadata.name}"
    if end.is_lost:
        line = _said(end)
        text = f"{where} was lost by its node: {line}" if line else f"{where} was lost by its node."
        return Crash(pod, container, end, text, Reason.INTERRUPTED)
    if end.reason == _OUT_OF_MEMORY:
        limit = pod.memory_limit(container)
        if not limit:
            text = f"{where} ran out of memory: set spec.resources.limits.memory."
        elif container == FETCH:
            text = f"{where} exceeded its fixed memory limit of {limit}: use a smaller model."
        else:
            text = f"{where} exceeded its memory limit of {limit}: raise spec.resources.limits.memory."
        return Crash(pod, container, end, text, Reason.OUT_OF_MEMORY)
    word = _word(end) if container == FETCH else None
    if word is not None:
        known = _REASONS.get(word.reason, Reason.DOWNLOAD_FAILED)
        return Crash(pod, container, end, word.message, known)
    if container == FETCH:
        return Crash(pod, container, end, f"{where} exited with code {end.exit_code}.", Reason.DOWNLOAD_FAILED)
    if container == VALIDATION_CONTAINER:
        return _invalid(pod, where, end)
    line = _said(end)
    text = f"{where} exited with code {end.exit_code}: {line}" if line else f"{where} exited with code {end.exit_code}."
    return Crash(pod, container, end, text, Reason.CRASH_LOOP)


def _invalid(pod: Pod, where: str, end: Terminated) -> Crash:
    line = _said(end)
    if end.exit_code == _NO_SCRIPT:
        word = _word(end)
        text = word.message if word else f"The validation script was not found: {line or 'check spec.validateScript.'}"
        return Crash(pod, VALIDATION_CONTAINER, end, text, Reason.SCRIPT_NOT_FOUND)
    if line:
        text = f"The validation script failed with exit code {end.exit_code}: {line} {where} has the whole log."
    else:
        text = f"The validation script failed with exit code {end.exit_code}. {where} has the whole log."
    return Crash(pod, VALIDATION_CONTAINER, end, text, Reason.VALIDATION_FAILED)


def _overwritten(snapshot: Snapshot, number: int) -> str:
    """Return the message for content that changed: the download only knows the digests, not the revision."""
    if snapshot.serving.rollback_to is not None:
        return (
            f"The content at the model's address changed after revision {number} was downloaded: restore it, or "
            "remove spec.rollbackTo."
        )
    return (
        f"The content at the model's address changed after revision {number} was downloaded: restore it, or set a new "
        "spec.version to serve the new content."
    )


def _said(end: Terminated) -> str:
    """Return the last line of the container's log, which explains most; empty if there is none."""
    lines = [line.strip() for line in terminal_text.shown(end.message).splitlines() if line.strip()]
    return pod_pending.cut(lines[-1]) if lines else ""


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
    """Return the duration in seconds, at least 1; 0 if the node reported none."""
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
    return f"Download and validation took longer than {limit} s: raise the setting prepare_seconds."


def _is_interrupted(pod: Pod) -> bool:
    """Return whether the pod was disrupted from outside.

    Evictions count as failures: a node without space evicts each attempt.
    """
    return pod.disruption is not None and pod.status.reason not in {_EVICTED, _DEADLINE}


def _evicted(pod: Pod) -> str:
    """Return why a pod was evicted, preempted or drained, with the reason it reports; empty if it was not."""
    disruption = pod.disruption
    if disruption is None and pod.status.reason != _EVICTED:
        return ""
    told = pod.status.message or (disruption.message or disruption.reason if disruption is not None else "")
    return f"Download pod {pod.metadata.name} was disrupted: {pod_pending.cut(told or pod.status.reason)}"


def _gone(told: str) -> str:
    if not told:
        return "The download pod is gone and its result is unknown."
    return f"The download pod is gone and its result is unknown. The Job controller reported: {pod_pending.cut(told)}"
