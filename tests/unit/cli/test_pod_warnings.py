"""Warnings about the pods of a TrainingJob."""

from typing import Any

import pytest

from skysail.cli import pod_logs, pod_warnings
from skysail.kube.client.errors import Forbidden
from skysail.kube.diagnostics import EventNote
from tests.unit.kinds.training.builders import pod


class Client:
    """Answers with events by pod, or with an error."""

    def __init__(self, events: dict[str, list[EventNote]], error: Exception | None = None) -> None:
        self._events = events
        self._error = error

    async def list_objects(self, _resource: Any, _namespace: str, query: dict[str, str], _type: Any) -> Any:
        if self._error is not None:
            raise self._error
        selector = query["fieldSelector"]
        assert "type=Warning" in selector
        return self._events.get(selector.partition(",")[0].removeprefix("regarding.uid="), [])


@pytest.fixture(autouse=True)
def _pods(monkeypatch):
    async def pods(_client: Any, _job: Any) -> tuple[Any, ...]:
        return pod(0), pod(1)

    monkeypatch.setattr(pod_logs, "pods", pods)


def note(text: str, time: str = "2026-01-01T00:00:00Z") -> EventNote:
    return EventNote(note=text, reason="ImageVersionMismatch", event_time=time)


async def test_read_names_the_rank_and_repeats_nothing():
    shared = note("trainer: Image a runs with torch 2.")
    late = note("Readiness probe failed: \x1b[31mno", "2026-01-02T00:00:00Z")
    client = Client({pod(0).metadata.uid: [late, shared], pod(1).metadata.uid: [shared]})
    assert await pod_warnings.read(client, None) == [
        "Worker 0: Image a runs with torch 2.",
        "Worker 0: Readiness probe failed: no",
    ]


async def test_read_without_the_right_to_read_events_is_empty():
    assert await pod_warnings.read(Client({}, Forbidden(403, "Forbidden", "no")), None) == []
