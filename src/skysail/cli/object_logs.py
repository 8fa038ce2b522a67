"""Logs of objects other than TrainingJobs: of their pods, container by container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from skysail.base import terminal_text
from skysail.base.errors import UserError
from skysail.base.names import Label
from skysail.claims.types import CloudInstance
from skysail.cli import explanations
from skysail.cli.lookup import Found
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import MLModel, ModelDeployment
from skysail.kube.api.resources import POD
from skysail.kube.api.workloads import Container, Job, Pod
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Invalid, KubeError, NotFound

# Set by the Job controller on the pods of a Job.
_JOB_UID = "batch.kubernetes.io/controller-uid"
# What `skysail why` shows of a log. A node that does not answer must not hold up the explanation.
_LAST_LINES = 10
_READ_SECONDS = 5.0
_ENDPOINTS = {"ModalEndpoint", "ModalFunction"}
# Delay before pods that have not started are read again.
_RETRY_SECONDS = 1.0

LinePrinter = Callable[[str], None]


class NoLogs(UserError):
    """The object has no pods with logs. The message says why."""


class NotStarted(NoLogs):
    """No container of the object has started. The message says why."""

    exit_code = 1


async def print_all(client: Client, found: Found, print_line: LinePrinter, *, tail: int | None) -> None:
    """Print the logs of all containers that have started.

    Raises NoLogs if none has started, or if a container failed and nothing was printed.
    """
    all_pods = await pods(client, found)
    places = _started(all_pods)
    if not places:
        raise NotStarted(_why_no_logs(found, all_pods))
    has_lines = False
    for pod, container in places:
        prefix = "" if len(places) == 1 else _prefix(pod, container)
        has_lines |= await _print_one(client, pod, container, _query(tail), print_line, prefix)
    if not has_lines:
        _check_failure(found, all_pods)


async def follow(
    client: Client, found: Found, print_line: LinePrinter, *, tail: int | None, report: LinePrinter
) -> None:
    """Print the logs of all containers as they start, until all have ended. Raises NoLogs.

    `report` gets why no line comes from a pod that has not started, when that changes.
    """
    try:
        await _Follower(client, found, print_line, {**_query(tail), "follow": "true"}, report).run()
    except* (BrokenPipeError, KubeError) as group:  # the reader closed the pipe, or has no right to read logs
        raise group.exceptions[0] from None


class _Follower:
    def __init__(
        self, client: Client, found: Found, print_line: LinePrinter, query: dict[str, str], report: LinePrinter
    ) -> None:
        self._client = client
        self._found = found
        self._print_line = print_line
        self._query = query
        self._report = report
        self._reported: dict[str, str] = {}
        self._followed: set[tuple[str, str]] = set()
        self._has_one_container = True
        self._has_lines = False

    async def run(self) -> None:
        known: Sequence[Pod] = await pods(self._client, self._found)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._begin(tasks, known)
                if not self._may_start(known):
                    break
                self._report_pending(known)
                await asyncio.sleep(_RETRY_SECONDS)
                if not await self._refresh():
                    break
                known = await pods(self._client, self._found)
        if not self._followed:
            raise NotStarted(_why_no_logs(self._found, known))
        if not self._has_lines:
            _check_failure(self._found, known)

    async def _refresh(self) -> bool:
        """Read the object again. Return False if it is deleted or was replaced by another one of the same name."""
        resource, metadata = self._found.resource, self._found.object.metadata
        now = await self._client.find(resource, metadata.namespace, metadata.name, type(self._found.object))
        if now is None or now.metadata.uid != metadata.uid:
            return False
        self._found = self._found._replace(object=now)
        return True

    def _begin(self, tasks: asyncio.TaskGroup, known: Sequence[Pod]) -> None:
        self._has_one_container = sum(len(pod.containers) for pod in known) == 1
        for pod, container in _started(known):
            if (pod.metadata.uid, container) not in self._followed:
                self._followed.add((pod.metadata.uid, container))
                tasks.create_task(self._follow(pod, container))

    async def _follow(self, pod: Pod, container: str) -> None:
        prefix = "" if self._has_one_container else _prefix(pod, container)
        if await _print_one(self._client, pod, container, self._query, self._print_line, prefix):
            self._has_lines = True

    def _may_start(self, known: Sequence[Pod]) -> bool:
        """Return whether a container of the object may start that has not started yet."""
        object_ = self._found.object
        if not known:
            # A claim without a pod is that of a gang, or its pod is gone.
            return not isinstance(object_, CloudInstance) and not (isinstance(object_, Job) and object_.is_over)
        return any(_is_pending(pod) for pod in known)

    def _report_pending(self, known: Sequence[Pod]) -> None:
        if not known:
            self._report_once("", f"{self._found.resource.kind} {self._found.object.metadata.name} has no pod yet.")
        for pod in filter(_is_pending, known):
            name = f"Pod {pod.metadata.name}"
            reason = pod_pending.pending_reason(pod, name)
            is_partly_started = any(_has_begun(container) for container in pod.containers)
            if reason is not None:
                self._report_once(pod.metadata.uid, reason.message)
            elif not is_partly_started:
                self._report_once(pod.metadata.uid, f"{name} has not started yet.")

    def _report_once(self, uid: str, message: str) -> None:
        if self._reported.get(uid) != message:
            self._reported[uid] = message
            self._report(message)


def _started(pods: Iterable[Pod]) -> list[tuple[Pod, str]]:
    """Return the containers that have a log."""
    return [(pod, container.name) for pod in pods for container in pod.containers if _has_begun(container)]


def _is_pending(pod: Pod) -> bool:
    is_started = bool(pod.containers) and all(_has_begun(container) for container in pod.containers)
    return not pod.is_finished and not pod.metadata.is_deleting and not is_started


def _prefix(pod: Pod, container: str) -> str:
    return f"{pod.metadata.name}/{container} | "


def _query(tail: int | None) -> dict[str, str]:
    return {} if tail is None else {"tailLines": str(tail)}


async def _print_one(
    client: Client, pod: Pod, container: str, query: dict[str, str], print_line: LinePrinter, prefix: str
) -> bool:
    """Print one log. Returns whether it has a line."""
    has_lines = False
    async for line in _lines(client, pod, {**query, "container": container}):
        print_line(f"{prefix}{terminal_text.strip_control(line)}")
        has_lines = True
    return has_lines


def _check_failure(found: Found, pods: Iterable[Pod]) -> None:
    """Raise NoLogs if a container failed, such as an App that never started."""
    if end := next(filter(None, map(_failure_message, pods)), ""):
        raise NoLogs(f"{found.resource.kind} {found.object.metadata.name} has printed nothing. {end}")


def _failure_message(pod: Pod) -> str:
    """Return why a container of the pod failed, or an empty string."""
    ends = (container.state.terminated or container.last_state.terminated for container in pod.containers)
    return next((pod_pending.truncate(end.message) for end in ends if end and end.exit_code and end.message), "")


def _why_no_logs(found: Found, pods: Iterable[Pod]) -> str:
    """Return the pending reason of the first pod that has one, such as the progress of its image, and the command."""
    metadata, kind = found.object.metadata, found.resource.kind
    reasons = (pod_pending.pending_reason(pod, f"Pod {pod.metadata.name}") for pod in pods)
    why = next((f" {reason.message}" for reason in reasons if reason is not None), "")
    return f"{kind} {metadata.name} has no container that has started.{why} `{_why_command(found)}` says more."


def _why_command(found: Found) -> str:
    metadata = found.object.metadata
    namespace = f" -n {metadata.namespace}" if metadata.namespace else ""
    return f"skysail why {found.resource.kind.lower()}/{metadata.name}{namespace}"


async def last_lines_of_failed(client: Client, pod: Pod) -> list[str]:
    """Return the end of the log of the container that failed. Empty if none failed, or its log cannot be read."""
    failure = explanations.failed_container(pod)
    if failure is None:
        return []
    query = {"container": failure[0], "tailLines": str(_LAST_LINES)}
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return [terminal_text.strip_control(line) async for line in _lines(client, pod, query)]
    except (KubeError, TimeoutError):
        return []


async def pods(client: Client, found: Found) -> list[Pod]:
    """Return the pods of an object. Raises NoLogs for a kind without pods."""
    object_, metadata = found.object, found.object.metadata
    if isinstance(object_, Pod):
        return [object_]
    if isinstance(object_, CloudInstance):
        owner = object_.spec.owner
        pod = await client.find(POD, owner.namespace, owner.name, Pod) if owner.kind == POD.kind else None
        return [] if pod is None else [pod]
    label: str
    if isinstance(object_, Job):
        label = _JOB_UID
    elif isinstance(object_, ModelDeployment | MLModel):
        label = Label.MODEL_UID
    elif found.resource.kind in _ENDPOINTS:
        label = Label.ENDPOINT_UID
    else:
        missing = f"{found.resource.kind} {metadata.name} has no pods, so it has no logs."
        raise NoLogs(f"{missing} `{_why_command(found)}` shows its state.")
    query = {"labelSelector": f"{label}={metadata.uid}"}
    return sorted(await client.list_objects(POD, metadata.namespace, query, Pod), key=lambda pod: pod.metadata.name)


def _has_begun(container: Container) -> bool:
    """Return whether the container has a log: of its current run, or of the last one while it waits for the next."""
    runs = (container.state.running, container.state.terminated, container.last_state.terminated)
    return any(run is not None for run in runs)


async def _lines(client: Client, pod: Pod, query: dict[str, str]) -> AsyncIterator[str]:
    """Yield the lines of a log. A pod that was deleted meanwhile has none."""
    rest = b""
    try:
        async with await client.stream(POD.path(pod.metadata.namespace, pod.metadata.name, "log"), query) as stream:
            async for chunk in stream:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
    except (NotFound, Invalid):
        return
    if rest:
        yield rest.decode(errors="replace")
