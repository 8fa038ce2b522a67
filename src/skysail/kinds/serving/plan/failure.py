"""Failures of a revision: the step, the container, the exit code, and the message with the fix. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, cast, get_args

import msgspec

from skysail.base import terminal_text, untrusted_json
from skysail.base.backoff import delay_bound
from skysail.base.names import Reason
from skysail.base.timestamps import timestamp
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import Failure, Step
from skysail.kinds.serving.children.fetch_container import NAME as FETCH
from skysail.kinds.serving.children.pod_templates import VALIDATION_CONTAINER
from skysail.kinds.serving.objects import Job, Pod, newest
from skysail.kinds.serving.plan import rollout_deadline
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Revision
from skysail.kube.api.workloads import Container, Terminated

# A server that restarted this often without becoming ready counts as failed. A run of at least `_HEALTHY` does not
# count, as kubelets reset their backoff then; the rollout deadline covers such servers.
_RESTARTS = 3
_HEALTHY = timedelta(minutes=10)
# Exit codes: of a transient download failure, of a program that a shell saw terminated by SIGTERM, and of a validation
# script that does not exist.
_MAY_PASS = 75
_SIGTERM_EXIT_CODE = 143
_NO_SCRIPT = 78
# The fetch container does both steps, and both can fail because a volume is unavailable for a while.
_OF_DOWNLOAD = ("Download", "Layout")
_OUT_OF_MEMORY = "OOMKilled"
_DEADLINE = "DeadlineExceeded"
_EVICTED = "Evicted"
_MAX_LOG_LENGTH = 4096
_MAX_MESSAGE_LENGTH = 2048
_FIRST_DELAY = 30.0
_AFTER_INTERRUPTION = timedelta(seconds=5)
_MAX_DELAY = 1800.0
# After this many transient failures in a row, the model is shown as failed.
_LASTING = 3
_REASONS = {reason.value: reason for reason in Reason}


class ContainerCrash(msgspec.Struct, frozen=True):
    """Termination of a container. If `is_running`, it was restarted, so the log is that of the previous run."""

    pod: Pod
    container: str
    end: Terminated
    message: str
    reason: str
    is_running: bool = False


class RevisionFailure(msgspec.Struct, frozen=True):
    """Failure of a revision.

    `crash` names the container whose log explains it; `is_transient` marks a transient failure. `is_counted` marks a
    failed attempt; an interruption from outside is not counted.
    """

    failure: Failure
    crash: ContainerCrash | None = None
    is_transient: bool = False
    is_counted: bool = True


class _FetchMessage(msgspec.Struct, frozen=True):
    """Termination message of a failed download."""

    reason: str
    message: str
    step: str = "Download"


class FetchResult(msgspec.Struct, frozen=True):
    """Result of a download, with its duration. All fields are empty if the model is part of the server image."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    bytes: int = 0
    files: int = 0
    seconds: int = 0


def succeeded_pod(pods: tuple[Pod, ...]) -> Pod | None:
    """Return the newest pod that succeeded, or None."""
    return newest(pod for pod in pods if pod.status.phase == "Succeeded")


def prepared(pod: Pod) -> FetchResult | None:
    """Return the result that a successful download reported, or None if it reported none."""
    fetch = pod.container(FETCH)
    end = fetch.state.terminated if fetch is not None else None
    if end is None:
        return None if pod.has_container(FETCH) else FetchResult()
    try:
        result = untrusted_json.decode(end.message, FetchResult)
    except untrusted_json.InvalidJson:
        return None
    return msgspec.structs.replace(result, seconds=_took(end))


def missing_digest(snapshot: Snapshot, job: Job, pod: Pod) -> RevisionFailure:
    """Return the failure of a download that succeeded without a result. A retry would not help."""
    message = (
        f"Container {FETCH} of pod {pod.metadata.name} succeeded but reported no digest. Image "
        f"{snapshot.config.fetch_image} does not match this version of Skysail; change the setting fetch_image."
    )
    failure = Failure(step="Download", reason=Reason.DOWNLOAD_FAILED, message=message, revision=job.revision)
    return RevisionFailure(msgspec.structs.replace(failure, exit_code=0, failure_time=_ended(job)))


def prepare_failure(snapshot: Snapshot, job: Job) -> RevisionFailure:
    """Return why a prepare Job failed."""
    pod = newest(pod for pod in snapshot.preparing(job.revision) if pod.status.phase == "Failed")
    time, failed = _ended(job), job.failed
    evicted = _evicted(pod) if pod is not None else ""
    if pod is None or evicted or pod.status.reason == _DEADLINE or pod.termination is None:
        is_late = pod is not None and pod.status.reason == _DEADLINE
        message = _too_slow(snapshot) if is_late else evicted or _gone(failed.message if failed else "")
        reason = Reason.DEADLINE_EXCEEDED if is_late else Reason.INTERRUPTED
        step: Step = "Validate" if (is_late or evicted) and _has_fetched(pod) else "Download"
        failure = Failure(step=step, reason=reason, message=message, revision=job.revision, failure_time=time)
        return RevisionFailure(
            failure, is_transient=is_transient(failure), is_counted=pod is None or not _is_interrupted(pod)
        )
    container_crash = _crash(pod, *pod.termination)
    is_interrupted = container_crash.end.exit_code == _SIGTERM_EXIT_CODE or container_crash.end.is_lost
    fetch_message = _word(container_crash.end) if container_crash.container == FETCH else None
    pinned = snapshot.serving.rollback_to if container_crash.reason == Reason.CHECKSUM_MISMATCH else None
    failure = Failure(
        step=_step(container_crash, fetch_message),
        reason=Reason.INTERRUPTED if is_interrupted else container_crash.reason,
        message=container_crash.message if pinned is None else _overwritten(snapshot, pinned),
        revision=job.revision,
        exit_code=container_crash.end.exit_code,
        failure_time=time,
    )
    return RevisionFailure(failure, container_crash, is_transient(failure), is_counted=not container_crash.end.is_lost)


def is_transient(failure: Failure) -> bool:
    """Return whether the failure is transient: an unavailable source, or an interruption from outside.

    The answer needs only the recorded failure, because the pod may be deleted.
    """
    if failure.reason == Reason.INTERRUPTED:
        return True
    return failure.step in _OF_DOWNLOAD and failure.exit_code in {None, _MAY_PASS}


def is_persistent(failure: Failure | None) -> bool:
    """Return whether a transient failure has happened several times in a row. It is still retried."""
    return failure is not None and failure.attempts >= _LASTING and is_transient(failure)


def _has_fetched(pod: Pod | None) -> bool:
    container = pod.container(FETCH) if pod is not None else None
    return (
        container is not None and container.state.terminated is not None and container.state.terminated.exit_code == 0
    )


def rollout_failure(snapshot: Snapshot, revision: Revision) -> RevisionFailure | None:
    """Return why the servers of a revision failed, or None while they may still become ready."""
    deployment = snapshot.deployment
    if deployment is None or deployment.revision != revision.hash or deployment.is_rolled_out:
        return None
    overdue_pods = [pod for pod in snapshot.serving_pods(revision.hash) if not pod.is_ready]
    crashes = [
        container_crash for pod in overdue_pods if (container_crash := crashed(snapshot, revision, pod)) is not None
    ]
    looping = next(
        (container_crash for container_crash in crashes if _loops(container_crash) and not _passes(container_crash)),
        None,
    )
    # Include finished pods: if each pod is replaced at once, no other may exist right now.
    pods = [pod for pod in snapshot.pods if pod.revision == revision.hash and not pod.prepares]
    if looping is None and not rollout_deadline.is_exceeded(deployment, pods):
        return None
    container_crash = looping or next(iter(crashes), None)
    if container_crash is not None:
        failure = Failure(
            step="Deploy",
            reason=container_crash.reason,
            message=container_crash.message,
            exit_code=container_crash.end.exit_code,
        )
    else:
        failure = rollout_deadline.deadline_failure(snapshot, revision, overdue_pods)
    now = timestamp(snapshot.now)
    return RevisionFailure(msgspec.structs.replace(failure, revision=revision.hash, failure_time=now), container_crash)


def rejected_spec(snapshot: Snapshot, revision: Revision, message: str) -> RevisionFailure:
    """Return the failure of servers that the API server rejected."""
    now = timestamp(snapshot.now)
    return RevisionFailure(
        Failure(step="Deploy", reason=Reason.INVALID_SPEC, message=message, revision=revision.hash, failure_time=now)
    )


def _passes(container_crash: ContainerCrash) -> bool:
    """Return whether only the model's source is unavailable. Then the rollout deadline decides about the revision."""
    code = container_crash.end.exit_code
    if container_crash.pod.is_at_cloud:
        return code == _MAY_PASS
    return container_crash.container == FETCH and code in {_MAY_PASS, _SIGTERM_EXIT_CODE}


def crashed(snapshot: Snapshot, revision: Revision, pod: Pod) -> ContainerCrash | None:
    """Return the container of this server that failed and has not become ready since, or None.

    A container that its node lost is not to blame, and is restarted.
    """
    for container in pod.containers:
        end = container.state.terminated or container.last_state.terminated
        if end is not None and end.is_lost:
            continue
        is_done = container.state.terminated is not None and container.state.terminated.exit_code == 0
        if end is not None and not is_done and not container.ready and (end.exit_code != 0 or container.restart_count):
            container_crash = _crash(pod, container.name, end)
            is_other = container_crash.reason == Reason.CHECKSUM_MISMATCH
            message = _overwritten(snapshot, revision.number) if is_other else container_crash.message
            return msgspec.structs.replace(
                container_crash, is_running=container.state.running is not None, message=message
            )
    return None


def with_attempt_count(previous: Failure | None, failure: Failure, *, is_attempt: bool = True) -> Failure:
    """Return the failure with the number of attempts. A recorded failure is not counted twice."""
    is_same = (
        previous is not None and previous.revision == failure.revision and previous.step not in {"Deploy", "Ready"}
    )
    if previous is None or not is_same:
        return msgspec.structs.replace(failure, attempts=int(is_attempt))
    if is_recorded(previous, failure):
        return previous
    return msgspec.structs.replace(failure, attempts=previous.attempts + int(is_attempt))


def is_recorded(previous: Failure | None, failure: Failure) -> bool:
    """Return whether the failure is recorded: each Job fails once, and the next Job is created much later."""
    return previous is not None and (previous.revision, previous.failure_time) == (
        failure.revision,
        failure.failure_time,
    )


def next_retry(failure: Failure) -> datetime:
    """Return the time of the next attempt: 30 s after the first failure, then twice as long each time.

    Soon after an interruption, if no attempt has failed.
    """
    if not failure.attempts:
        return datetime.fromisoformat(failure.failure_time or "") + _AFTER_INTERRUPTION
    seconds = delay_bound(max(failure.attempts - 1, 0), first=_FIRST_DELAY, longest=_MAX_DELAY)
    return datetime.fromisoformat(failure.failure_time or "") + timedelta(seconds=seconds)


def with_log(failure: Failure, log: str | None) -> Failure:
    return failure if log is None else msgspec.structs.replace(failure, log=log.strip("\n")[-_MAX_LOG_LENGTH:])


def reason(failure: Failure) -> Reason:
    """Return the reason for a condition. A reason that a container made up is replaced by ours."""
    return _REASONS.get(failure.reason, Reason.DOWNLOAD_FAILED)


def _crash(pod: Pod, container: str, end: Terminated) -> ContainerCrash:
    where = f"Container {container} of pod {pod.metadata.name}"
    if end.is_lost:
        line = _last_log_line(end)
        text = f"{where} was lost by its node: {line}" if line else f"{where} was lost by its node."
        return ContainerCrash(pod, container, end, text, Reason.INTERRUPTED)
    if end.reason == _OUT_OF_MEMORY:
        limit = pod.memory_limit(container)
        if not limit:
            text = f"{where} ran out of memory: set spec.resources.limits.memory."
        elif container == FETCH:
            text = f"{where} exceeded its fixed memory limit of {limit}: use a smaller model."
        else:
            text = f"{where} exceeded its memory limit of {limit}: raise spec.resources.limits.memory."
        return ContainerCrash(pod, container, end, text, Reason.OUT_OF_MEMORY)
    fetch_message = _word(end) if container == FETCH else _word_from_cloud(pod, end)
    if fetch_message is not None:
        known = _REASONS.get(fetch_message.reason, Reason.DOWNLOAD_FAILED)
        return ContainerCrash(pod, container, end, fetch_message.message, known)
    if container == FETCH:
        return ContainerCrash(pod, container, end, f"{where} exited with code {end.exit_code}.", Reason.DOWNLOAD_FAILED)
    if container == VALIDATION_CONTAINER:
        return _invalid(pod, where, end)
    line = _last_log_line(end)
    text = f"{where} exited with code {end.exit_code}: {line}" if line else f"{where} exited with code {end.exit_code}."
    return ContainerCrash(pod, container, end, text, Reason.CRASH_LOOP)


def _invalid(pod: Pod, where: str, end: Terminated) -> ContainerCrash:
    line = _last_log_line(end)
    if end.exit_code == _NO_SCRIPT:
        fetch_message = _word(end)
        text = (
            fetch_message.message
            if fetch_message
            else f"The validation script was not found: {line or 'check spec.validateScript.'}"
        )
        return ContainerCrash(pod, VALIDATION_CONTAINER, end, text, Reason.SCRIPT_NOT_FOUND)
    if line:
        text = f"The validation script failed with exit code {end.exit_code}: {line} {where} has the whole log."
    else:
        text = f"The validation script failed with exit code {end.exit_code}. {where} has the whole log."
    return ContainerCrash(pod, VALIDATION_CONTAINER, end, text, Reason.VALIDATION_FAILED)


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


def _last_log_line(end: Terminated) -> str:
    """Return the last line of the container's log, which explains most; empty if there is none."""
    lines = [line.strip() for line in terminal_text.strip_control(end.message).splitlines() if line.strip()]
    return pod_pending.truncate(lines[-1]) if lines else ""


def _word(end: Terminated) -> _FetchMessage | None:
    try:
        fetch_message = untrusted_json.decode(end.message, _FetchMessage)
    except untrusted_json.InvalidJson:
        return None
    return msgspec.structs.replace(
        fetch_message, message=terminal_text.strip_control(fetch_message.message)[:_MAX_MESSAGE_LENGTH]
    )


def _word_from_cloud(pod: Pod, end: Terminated) -> _FetchMessage | None:
    """Return the message of a download that failed in the container of a server, or None.

    Not every cloud returns the termination message. The log ends with the same reason and sentence.
    """
    if not pod.is_at_cloud:
        return None
    found = _word(end)
    if found is None:
        reason, mark, sentence = _last_log_line(end).partition(": ")
        found = _FetchMessage(reason, sentence) if mark and reason in _REASONS else None
    if found is None or end.exit_code != _MAY_PASS:
        return found
    hint = "The servers download the model at the cloud, which must reach its address."
    return msgspec.structs.replace(found, message=f"{found.message} {hint}")


def _step(container_crash: ContainerCrash, fetch_message: _FetchMessage | None) -> Step:
    if container_crash.container == VALIDATION_CONTAINER:
        return "Validate"
    is_step = fetch_message is not None and fetch_message.step in get_args(Step)
    return cast("Step", fetch_message.step) if fetch_message is not None and is_step else "Download"


def _loops(container_crash: ContainerCrash) -> bool:
    container: Container | None = container_crash.pod.container(container_crash.container)
    return container is not None and container.restart_count >= _RESTARTS and not _was_healthy(container_crash.end)


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
    limit = snapshot.config.prepare_deadline_seconds
    return f"Download and validation took longer than {limit} s: raise the setting prepare_deadline_seconds."


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
    message = pod.status.message or (disruption.message or disruption.reason if disruption is not None else "")
    return f"Download pod {pod.metadata.name} was disrupted: {pod_pending.truncate(message or pod.status.reason)}"


def _gone(message: str) -> str:
    if not message:
        return "The download pod is gone and its result is unknown."
    return (
        "The download pod is gone and its result is unknown. The Job controller reported: "
        f"{pod_pending.truncate(message)}"
    )
