"""Warning events of the pods of a TrainingJob, for `skysail why` and `skysail get`."""

from __future__ import annotations

import re

from skysail.base import terminal_text
from skysail.cli import pod_logs
from skysail.kinds.training.api.training_job import TrainingJob
from skysail.kinds.training.children.pod_template import CONTAINER
from skysail.kinds.training.objects import display_name
from skysail.kube.api.objects import Object
from skysail.kube.api.resources import EVENT
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError
from skysail.kube.diagnostics import EventNote

_NUMBER = re.compile(r"[0-9]+")
_MAX_PODS = 20
_MAX_LINES = 5


async def read(client: Client, job: TrainingJob) -> list[str]:
    """Return the newest warnings about all pods, each once. Empty if the user has no right to read events."""
    found: dict[str, str] = {}
    try:
        for pod in (await pod_logs.pods(client, job))[-_MAX_PODS:]:
            for time, text in await _warnings(client, pod):
                found.setdefault(text, f"{time} {display_name(pod.role, pod.index)}: {text}")
    except KubeError:
        return []
    return [line.partition(" ")[2] for line in sorted(found.values())][-_MAX_LINES:]


async def of_pod(client: Client, pod: Object) -> list[str]:
    """Return the newest warnings about one pod, each once. Empty if the user has no right to read events."""
    try:
        rows = sorted(await _warnings(client, pod))
    except KubeError:
        return []
    # Later rows replace earlier ones that differ in numbers only, such as the delay of a back-off.
    newest = {_NUMBER.sub("#", text): text for _, text in rows}
    return list(newest.values())[-_MAX_LINES:]


async def _warnings(client: Client, pod: Object) -> list[tuple[str, str]]:
    """Return time and text of each warning, without the name of the only container."""
    query = {"fieldSelector": f"regarding.uid={pod.metadata.uid},type=Warning"}
    events = await client.list_objects(EVENT, pod.metadata.namespace, query, EventNote)
    return [(event.time, _text(event.note)) for event in events]


def _text(note: str) -> str:
    container, colon, rest = " ".join(terminal_text.strip_control(note).split()).partition(": ")
    return rest if container in {CONTAINER, "main"} else f"{container}{colon}{rest}"
