"""Diagnostics of a pod that are not in caches: the tail of its log, and events about it.

All of it is for messages to users only: a failed read is ignored, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from skysail.base import terminal_text
from skysail.base.rate_limiter import Ration
from skysail.kube.api.objects import Key, Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import EVENT, POD
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError

POLICY_RULES = (PolicyRule(POD, ("get",), subresource="log"), PolicyRule(EVENT, ("list",)))

LOG_LINES = 20
# Maximum bytes of a log in memory. Not sent as limitBytes: the server would cut off the end, which matters most.
_LOG_BYTES = 65536
# Timeout of a log request, so that an unresponsive node does not delay the diagnosis of other pods.
_LOG_SECONDS = 5.0
_CANNOT_CREATE = "FailedCreate"
# Limit event requests: the API server scans all events of the namespace for each of them.
_EVENTS_RATE = 2.0
_EVENTS_BURST = 10.0
_MAX_CACHED = 1000


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: str | None = None


class EventNote(msgspec.Struct, frozen=True, rename="camel"):
    """An event, reduced to its reason, note and times. The reporter decides which times are set."""

    note: str = ""
    reason: str = ""
    event_time: str | None = None
    deprecated_last_timestamp: str | None = None
    series: _Series | None = None

    @property
    def time(self) -> str:
        last = self.series.last_observed_time if self.series else None
        return last or self.deprecated_last_timestamp or self.event_time or ""


class PodDiagnostics:
    """Reads logs and events. Event requests are rate-limited; above the limit the last known events are returned."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ration = Ration(rate=_EVENTS_RATE, burst=_EVENTS_BURST)
        self._remembered: dict[str, tuple[EventNote, ...]] = {}

    async def log_tail(self, pod: Key, container: str, *, lines: int = LOG_LINES, previous: bool = False) -> str | None:
        """Return the last lines of a container's log, or None on failure. `previous` selects the previous instance."""
        query = {"container": container, "tailLines": str(lines)}
        if previous:
            query["previous"] = "true"
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                return terminal_text.strip_control(await self._ending(POD.path(pod.namespace, pod.name, "log"), query))
        except (KubeError, TimeoutError):
            return None

    async def _ending(self, path: str, query: Mapping[str, str]) -> str:
        """Read the end of a stream. Bounded in bytes, because a single line can be huge, such as a progress bar."""
        held = b""
        async with await self._client.stream(path, query) as stream:
            async for chunk in stream:
                held = (held + chunk)[-_LOG_BYTES:]
        return held.decode(errors="replace")

    async def last_create_failure(self, owner: Object) -> str | None:
        """Return the note of the last FailedCreate event of this owner, or None."""
        event = _last(await self._events(owner, f",reason={_CANNOT_CREATE}"))
        return event.note if event is not None else None

    async def latest_event(self, about: Object) -> EventNote | None:
        """Return the newest event, because it supersedes earlier ones, or None."""
        return _last(await self._events(about))

    async def _events(self, about: Object, more: str = "") -> tuple[EventNote, ...]:
        selector = f"regarding.uid={about.metadata.uid}{more}"
        if not self._ration.try_acquire(asyncio.get_running_loop().time()):
            return self._remembered.get(selector, ())
        try:
            query = {"fieldSelector": selector}
            events = await self._client.list_objects(EVENT, about.metadata.namespace, query, EventNote)
        except KubeError:
            return ()
        return self._remember(selector, events)

    def _remember(self, selector: str, events: tuple[EventNote, ...]) -> tuple[EventNote, ...]:
        self._remembered.pop(selector, None)
        if events:
            self._remembered[selector] = events
        if len(self._remembered) > _MAX_CACHED:
            del self._remembered[next(iter(self._remembered))]
        return events


def _last(events: tuple[EventNote, ...]) -> EventNote | None:
    """Return the newest event by time, because the list order (by name) is meaningless."""
    in_order = sorted(events, key=lambda event: event.time)
    return in_order[-1] if in_order else None
