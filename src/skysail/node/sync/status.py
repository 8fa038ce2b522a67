"""The status of a pod as other components of Kubernetes expect it: phase, conditions, containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from skysail.base.names import Condition, Reason
from skysail.cloud.provider import EVICTED, LOST, NO_CAPACITY, Ended, Pending, Running
from skysail.node.pod_types import Container, Pod
from skysail.node.sync.snapshot import HEALTHY, RunHistory, Snapshot, is_hopeless, is_sidecar, timestamp
from skysail.node.sync.unsupported_fields import NO_EPHEMERAL_CONTAINERS

# The kubelet's limits: messages of one container, and of all containers of a pod together.
_MAX_MESSAGE_LENGTH = 4096
_MAX_MESSAGES = 12 * 1024
# By this condition a Job's podFailurePolicy distinguishes disruptions by the node from failures of the program.
_DISRUPTED = "DisruptionTarget"
_UNUSABLE_IMAGE = {Reason.ENTRYPOINT_UNKNOWN, Reason.NO_SHELL}
_DISRUPTIONS = {EVICTED: "TerminationByKubelet", LOST: "TerminationByKubelet", NO_CAPACITY: Reason.NO_CAPACITY}
_CRASH_LOOP = "CrashLoopBackOff"
_HOPELESS = "Not launched again, because it would end the same way. Delete the pod to try again."
_NEVER_RAN = 128  # exit code that container runtimes report if the start fails

Json = dict[str, Any]


class FinalStatus(msgspec.Struct, frozen=True):
    """Phase, reason and message of a finished pod."""

    phase: str
    reason: str | None = None
    message: str | None = None


def build(snapshot: Snapshot, histories: Mapping[str, RunHistory], final_status: FinalStatus | None = None) -> Json:
    """Return all status fields that the node owns. None means that the field is absent."""
    pod = snapshot.pod
    initialised = _is_initialised(pod, histories)
    inits = [
        _container(snapshot, c, histories[c.name], final_status=final_status, initialised=False)
        for c in pod.spec.init_containers
    ]
    mains = [
        _container(snapshot, c, histories[c.name], final_status=final_status, initialised=initialised)
        for c in pod.spec.containers
    ]
    address = snapshot.address or (pod.status.pod_ip or "" if final_status or pod.metadata.is_deleting else "")
    return {
        "phase": final_status.phase if final_status else _phase(pod, histories),
        "reason": final_status.reason if final_status else None,
        "message": final_status.message if final_status else None,
        "observedGeneration": pod.metadata.generation or None,
        "startTime": pod.status.start_time or timestamp(_beginning(snapshot, histories)),
        "hostIP": snapshot.host_ip or None,
        "hostIPs": [{"ip": snapshot.host_ip}] if snapshot.host_ip else None,
        "podIP": address or None,
        "podIPs": [{"ip": address}] if address else None,
        "conditions": _conditions(snapshot, histories, final_status, [*inits, *mains]),
        "initContainerStatuses": inits,
        "containerStatuses": mains,
        "ephemeralContainerStatuses": [_unsupported_ephemeral(c) for c in pod.spec.ephemeral_containers],
    }


def differs(pod: Pod, new_status: Json) -> bool:
    """Return whether this status differs from the one that was written."""
    written = msgspec.to_builtins(pod.status)
    return any(_bare(written.get(name)) != _bare(value) for name, value in new_status.items())


def new_backoffs(pod: Pod, new_status: Json) -> list[str]:
    """Return messages about containers in CrashLoopBackOff that the written status does not have yet."""
    written = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    previous = {(row["name"], row.get("restartCount")) for row in written if _is_crash_loop(row)}
    new = (*new_status["initContainerStatuses"], *new_status["containerStatuses"])
    rows = [row for row in new if _is_crash_loop(row)]
    return [row["state"]["waiting"]["message"] for row in rows if (row["name"], row["restartCount"]) not in previous]


def _is_crash_loop(row: Json) -> bool:
    waiting = (row.get("state") or {}).get("waiting") or {}
    return waiting.get("reason") == _CRASH_LOOP


def _bare(value: Any) -> Any:
    """Return the value without null and empty parts, because the API server drops or adds them."""
    if isinstance(value, Mapping):
        bare = {name: _bare(part) for name, part in value.items()}
        return {name: part for name, part in bare.items() if part not in (None, {}, [])}
    if isinstance(value, (list, tuple)):
        return [_bare(part) for part in value]
    return value


def _beginning(snapshot: Snapshot, histories: Mapping[str, RunHistory]) -> float:
    """Return when the pod came to the node: its first status may be written later, after a container has started."""
    states = [state for past in histories.values() for state in (past.state, past.previous)]
    begun = [state.started for state in states if isinstance(state, (Running, Ended)) and state.started is not None]
    return min((snapshot.now - snapshot.active_seconds, *begun))


def _phase(pod: Pod, histories: Mapping[str, RunHistory]) -> str:
    """Return the phase. A pod that was Running never becomes Pending again."""
    if pod.status.phase == "Running":
        return "Running"
    if not _is_initialised(pod, histories):
        return "Pending"
    states = [histories[container.name].state for container in pod.spec.containers]
    has_begun = all(isinstance(state, (Running, Ended)) for state in states)
    return "Running" if has_begun else "Pending"


def _is_initialised(pod: Pod, histories: Mapping[str, RunHistory]) -> bool:
    return not _uninitialised(pod, histories)


def _uninitialised(pod: Pod, histories: Mapping[str, RunHistory]) -> list[str]:
    waiting = []
    for container in pod.spec.init_containers:
        past = histories[container.name]
        done = past.state is not None if is_sidecar(container) else past.ended is not None and past.ended.code == 0
        if not done:
            waiting.append(container.name)
    return waiting


def _container(
    snapshot: Snapshot,
    container: Container,
    past: RunHistory,
    *,
    final_status: FinalStatus | None,
    initialised: bool = True,
) -> Json:
    run = snapshot.run(container.name, max(past.has_started, 0))
    probe_state = snapshot.health.get(run, HEALTHY)
    is_running = past.is_running and run not in snapshot.starting
    state, last = _states(snapshot, container, past, final_status=final_status, initialised=initialised)
    is_init = container in snapshot.pod.spec.init_containers and not is_sidecar(container)
    return {
        "name": container.name,
        "image": container.image,
        "imageID": _image_id(container, past),
        "containerID": f"skysail://{run.pod}.{run.container}.{run.number}" if past.has_started >= 0 else None,
        "restartCount": max(past.has_started, 0),
        "started": is_running and probe_state.started,
        "ready": bool(past.ended and past.ended.code == 0)
        if is_init
        else is_running and probe_state.started and probe_state.ready,
        "state": state,
        "lastState": last,
    }


def _unsupported_ephemeral(container: Container) -> Json:
    """Return the status of an unsupported ephemeral container, because `kubectl debug` waits for its end."""
    end = {"exitCode": _NEVER_RAN, "reason": Reason.UNSUPPORTED, "message": f"{NO_EPHEMERAL_CONTAINERS}."}
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "restartCount": 0,
        "ready": False,
        "state": {"terminated": end},
    }


def _image_id(container: Container, past: RunHistory) -> str:
    if past.has_started < 0:
        return ""
    state = past.previous if isinstance(past.state, Pending) else past.state
    return (state.image_id if isinstance(state, (Running, Ended)) else "") or f"skysail://{container.image}"


def _states(
    snapshot: Snapshot, container: Container, past: RunHistory, *, final_status: FinalStatus | None, initialised: bool
) -> tuple[Json, Json]:
    """Return the state of the current run, and the last state of the previous one."""
    previous = {"terminated": _terminated(snapshot, container, past.number - 1, past.previous)} if past.previous else {}
    if isinstance(past.state, Running) and snapshot.run(container.name, past.number) not in snapshot.starting:
        return {"running": {"startedAt": timestamp(past.state.started)}}, previous
    if past.ended is None:
        return _unstarted(snapshot, container, past, initialised=initialised), previous
    end = {"terminated": _terminated(snapshot, container, past.number, past.ended)}
    is_ending = final_status or snapshot.pod.metadata.is_deleting
    backoff = None if is_ending else _restart_backoff(snapshot, container, past, past.ended)
    return (backoff, end) if backoff else (end, previous)


def _unstarted(snapshot: Snapshot, container: Container, past: RunHistory, *, initialised: bool) -> Json:
    if snapshot.unsupported.rejected:
        return _waiting(Reason.UNSUPPORTED, " ".join(snapshot.unsupported.rejected))
    backoff = snapshot.waiting.get(container.name) or snapshot.waiting.get("")
    if backoff is not None:
        return _waiting(backoff.reason, backoff.message)
    if isinstance(past.state, Pending):
        return _waiting(past.state.reason, past.state.message)
    progress = snapshot.image_progress.get(container.name, "")
    message = f"preparing its image: {progress}" if progress else ""
    return _waiting("ContainerCreating" if initialised else "PodInitializing", message)


def _restart_backoff(snapshot: Snapshot, container: Container, past: RunHistory, end: Ended) -> Json | None:
    """Return the waiting state of a container before its restart, or if a restart would change nothing.

    Returns None if the container restarts at once, or never by the pod's restart policy.
    """
    if not restarts(snapshot.pod, container, end):
        return None
    if is_hopeless(end):
        return _waiting(end.reason, _HOPELESS)
    backoff = snapshot.waiting.get(container.name) or snapshot.waiting.get("")
    if backoff is not None:
        return _waiting(backoff.reason, backoff.message)
    if not past.restart_delay:
        return None
    where = f"container={container.name} pod={snapshot.pod.metadata.key}"
    return _waiting(_CRASH_LOOP, f"back-off {past.restart_delay:.0f}s restarting failed {where}")


def restarts(pod: Pod, container: Container, end: Ended) -> bool:
    if is_sidecar(container):
        return True
    if container in pod.spec.init_containers:
        return bool(end.code) and pod.spec.restart_policy != "Never"
    return pod.spec.restart_policy == "Always" or (pod.spec.restart_policy == "OnFailure" and end.code != 0)


def _waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}


def _terminated(snapshot: Snapshot, container: Container, number: int, end: Ended) -> Json:
    run = snapshot.run(container.name, number)
    terminated: Json = {
        "exitCode": end.code,
        "reason": end.reason or ("Error" if end.code else "Completed"),
        "startedAt": timestamp(end.ended if end.started is None else end.started),
        "finishedAt": timestamp(end.ended),
        "containerID": f"skysail://{run.pod}.{run.container}.{run.number}",
    }
    if end.message:
        containers = len(snapshot.pod.spec.init_containers) + len(snapshot.pod.spec.containers)
        terminated["message"] = end.message[-min(_MAX_MESSAGE_LENGTH, _MAX_MESSAGES // containers) :]
    return terminated


def _conditions(
    snapshot: Snapshot,
    histories: Mapping[str, RunHistory],
    final_status: FinalStatus | None,
    containers: Iterable[Json],
) -> list[Json]:
    pod = snapshot.pod
    mains = {container.name for container in pod.spec.containers}
    sidecars = {container.name for container in pod.spec.init_containers if is_sidecar(container)}
    unready = [row["name"] for row in containers if row["name"] in mains | sidecars and not row["ready"]]
    ready = _readiness(final_status, unready)
    gates = _open_gates(pod)
    rows: dict[str, tuple[str, str | None, str | None]] = {
        "PodReadyToStartContainers": ("False" if snapshot.address is None or final_status else "True", None, None),
        "Initialized": _initialised(pod, histories, final_status),
        "ContainersReady": ready,
        "Ready": ready if ready[0] == "False" or not gates else ("False", "ReadinessGatesNotReady", gates),
    }
    if messages := snapshot.unsupported.rejected + snapshot.unsupported.ignored:
        reason = Reason.UNSUPPORTED if snapshot.unsupported.rejected else Reason.FIELDS_IGNORED
        rows[Condition.SUPPORTED] = ("False", reason, " ".join(messages))
    elif entrypoint := _entrypoint(snapshot):
        rows[Condition.SUPPORTED] = entrypoint
    if final_status is not None and final_status.reason in _DISRUPTIONS:
        rows[_DISRUPTED] = ("True", _DISRUPTIONS[final_status.reason], final_status.message)
    foreign = [row for row in pod.status.conditions if row["type"] not in rows]
    return [*foreign, *(_condition(snapshot, name, *row) for name, row in rows.items())]


def _entrypoint(snapshot: Snapshot) -> tuple[str, str | None, str | None] | None:
    """Return the condition of a pod whose image could not be read or has no shell, until that has changed."""
    for waiting in snapshot.waiting.values():
        if waiting.reason in _UNUSABLE_IMAGE:
            return "False", waiting.reason, waiting.message
    written = next((row for row in snapshot.pod.status.conditions if row["type"] == Condition.SUPPORTED), {})
    return ("True", None, None) if written.get("reason") in _UNUSABLE_IMAGE else None


def _readiness(final_status: FinalStatus | None, unready: list[str]) -> tuple[str, str | None, str | None]:
    if final_status is not None:
        return "False", "PodCompleted" if final_status.phase == "Succeeded" else "PodFailed", None
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return "True", None, None


def _initialised(
    pod: Pod, histories: Mapping[str, RunHistory], final_status: FinalStatus | None
) -> tuple[str, str | None, str | None]:
    waiting = _uninitialised(pod, histories)
    if waiting:
        return "False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting)}]"
    return "True", "PodCompleted" if final_status and final_status.phase == "Succeeded" else None, None


def _open_gates(pod: Pod) -> str:
    true = {row["type"] for row in pod.status.conditions if row["status"] == "True"}
    missing = [gate.condition_type for gate in pod.spec.readiness_gates if gate.condition_type not in true]
    return f"the status of pod readiness gates is not True: {' '.join(missing)}" if missing else ""


def _condition(snapshot: Snapshot, name: str, value: str, reason: str | None, message: str | None) -> Json:
    previous = next((row for row in snapshot.pod.status.conditions if row["type"] == name), {})
    unchanged = previous.get("status") == value
    condition: Json = {
        "type": name,
        "status": value,
        "observedGeneration": snapshot.pod.metadata.generation or None,
        "lastTransitionTime": previous["lastTransitionTime"] if unchanged else timestamp(snapshot.now),
        "reason": reason,
        "message": message,
    }
    return {field: content for field, content in condition.items() if content is not None}
