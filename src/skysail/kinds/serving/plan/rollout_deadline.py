"""Why servers of a revision have not answered in the time that they had, and do not say so themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from skysail.base.names import Annotation, Reason
from skysail.core import pod_pending
from skysail.kinds.serving.api.types import Failure
from skysail.kinds.serving.children import pod_templates
from skysail.kinds.serving.objects import Deployment, Pod
from skysail.kinds.serving.snapshot import Snapshot
from skysail.kinds.serving.spec.revisions import Entry
from skysail.kinds.serving.spec.runtimes import ROWS


def is_late(deployment: Deployment, pods: Iterable[Pod]) -> bool:
    """Whether these servers of it have not come up in the time that they had.

    Where servers are asked for again that there were before, the verdict on others stays until one of these moves. It
    names whom it is about, and so do the servers; only where none could be made, nobody is there to compare.
    """
    sets = {owner.name for pod in pods if (owner := pod.metadata.controller) is not None}
    if deployment.refusal is not None:
        return bool(deployment.overdue)
    return any(f'"{name}"' in deployment.overdue for name in sets)


def late(snapshot: Snapshot, entry: Entry, waited_for: list[Pod]) -> Failure:
    """Servers that could not be made, did not start, still download, or run and do not become ready."""
    deployment = snapshot.deployment
    assert deployment is not None, "only servers that are there can be late"
    if deployment.refusal is not None:
        wait = pod_pending.refused(deployment.refusal)
        return Failure(step="Deploy", reason=wait.reason, message=wait.message)
    for pod in waited_for:
        keeps = pod_pending.obstacle(pod, f"Server {pod.metadata.name}", told=snapshot.obstacle)
        if keeps is not None:
            return Failure(step="Deploy", reason=keeps.reason, message=keeps.message)
    slow = next((pod for pod in waited_for if pod.is_downloading), None)
    seconds = pod_templates.patience(snapshot.serving, entry, snapshot.terms)
    if slow is not None:
        return _downloads(slow, entry, seconds)
    if not waited_for:
        return _missing(deployment, seconds)
    who = f"Server {waited_for[0].metadata.name}"
    told = f"{who} runs, but did not become ready within {seconds} s. Its log tells what it waits for."
    message = f"{told}{_asked(snapshot, entry)}"
    return Failure(step="Ready", reason=Reason.NOT_READY, message=message)


def _missing(deployment: Deployment, seconds: int) -> Failure:
    """Nothing is heard of servers that should be there."""
    message = (
        f"{deployment.status.updated_replicas} of {deployment.spec.replicas} servers were made within {seconds} s, and "
        f"nothing says what keeps them: `kubectl describe deployment {deployment.metadata.name}` may tell more."
    )
    return Failure(step="Deploy", reason=Reason.NOT_READY, message=message)


def _asked(snapshot: Snapshot, entry: Entry) -> str:
    """Where an image of the user's is asked, which may well answer elsewhere."""
    want = entry.want
    if snapshot.terms.known(want.image, want.runtime) and not want.ready:
        return ""
    return (
        f" It is asked at {place(snapshot, entry)}: if it says at another path that it is ready, name that in "
        f"annotation {Annotation.READY_PATH}."
    )


def place(snapshot: Snapshot, entry: Entry) -> str:
    """Where a server is asked whether it is ready."""
    row = ROWS[entry.want.runtime]
    return f"{entry.want.ready or row.ready_path(snapshot.serving.names.model)} of port {row.port}"


def _downloads(pod: Pod, entry: Entry, seconds: int) -> Failure:
    before = f", although that took {entry.seconds} s before it was served" if entry.seconds else ""
    message = (
        f"Server {pod.metadata.name} still downloads the model after {seconds} s{before}: see why its node reaches the "
        "place of the model so slowly, or raise the setting rollout_seconds."
    )
    return Failure(step="Deploy", reason=Reason.DEADLINE_EXCEEDED, message=message)
