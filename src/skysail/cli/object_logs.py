"""Logs of objects other than TrainingJobs: of their pods, container by container."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

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


class NoLogs(UserError):
    """The object has no pods with logs. The message says why."""


async def print_all(
    client: Client, found: Found, print_line: Callable[[str], None], *, tail: int | None, follow: bool
) -> None:
    """Print the logs of all containers that have started; with `follow`, until all have ended.

    Raises NoLogs if none has started, or if a container failed and nothing was printed.
    """
    all_pods = await pods(client, found)
    places = [(pod, container.name) for pod in all_pods for container in pod.containers if _has_begun(container)]
    if not places:
        raise NoLogs(_why_no_logs(found, all_pods))
    query = ({} if tail is None else {"tailLines": str(tail)}) | ({"follow": "true"} if follow else {})

    async def print_one(pod: Pod, container: str) -> bool:
        """Print one log. Returns whether it has a line."""
        prefix, has_lines = "" if len(places) == 1 else f"{pod.metadata.name}/{container} | ", False
        async for line in _lines(client, pod, {**query, "container": container}):
            print_line(f"{prefix}{terminal_text.strip_control(line)}")
            has_lines = True
        return has_lines

    if follow:
        printed = await asyncio.gather(*(print_one(*place) for place in places))
    else:
        printed = [await print_one(*place) for place in places]
    end = next(filter(None, map(_failure_message, all_pods)), "")
    if end and not any(printed):
        raise NoLogs(f"{found.resource.kind} {found.object.metadata.name} has printed nothing. {end}")


def _failure_message(pod: Pod) -> str:
    """Return why a container of the pod failed, such as an App that never started, or an empty string."""
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
