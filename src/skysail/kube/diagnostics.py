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
from skysail.kube.api.rbac import Right
from skysail.kube.api.resources import EVENT, POD
from skysail.kube.client.client import Client, decoded
from skysail.kube.client.errors import KubeError

RIGHTS = (Right(POD, ("get",), subresource="log"), Right(EVENT, ("list",)))

LOG_LINES = 20
# Maximum bytes of a log in memory. Not sent as limitBytes: the server would cut off the end, which matters most.
_LOG_BYTES = 65536
# Timeout of a log request, so that an unresponsive node does not delay the diagnosis of other pods.
_LOG_SECONDS = 5.0
_CANNOT_CREATE = "FailedCreate"
# Limit event requests: the API server scans all events of the namespace for each of them.
_EVENTS_A_SECOND = 2.0
_EVENTS_AT_ONCE = 10.0
_MOST_REMEMBERED = 1000


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: str | None = None


class Told(msgspec.Struct, frozen=True, rename="camel"):
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


class _Events(msgspec.Struct, frozen=True):
    items: tuple[Told, ...]


class Evidence:
    """Reads logs and events. Event requests are rate-limited; above the limit the last known events are returned."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ration = Ration(a_second=_EVENTS_A_SECOND, at_once=_EVENTS_AT_ONCE)
        self._remembered: dict[str, tuple[Told, ...]] = {}

    async def log(self, pod: Key, container: str, *, lines: int = LOG_LINES, before: bool = False) -> str | None:
        """Return the last lines of a container's log, or None on failure. `before` selects the previous instance."""
        query = {"container": container, "tailLines": str(lines)}
        if before:
            query["previous"] = "true"
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                return terminal_text.shown(await self._ending(POD.path(pod.namespace, pod.name, "log"), query))
        except (KubeError, TimeoutError):
            return None

    async def _ending(self, path: str, query: Mapping[str, str]) -> str:
        """Read the end of a stream. Bounded in bytes, because a single line can be huge, such as a progress bar."""
        held = b""
        async with await self._client.follow(path, query) as stream:
            async for chunk in stream:
                held = (held + chunk)[-_LOG_BYTES:]
        return held.decode(errors="replace")

    async def complaint(self, owner: Object) -> str | None:
        """Return the note of the last FailedCreate event of this owner, or None."""
        told = _last(await self._events(owner, f",reason={_CANNOT_CREATE}"))
        return told.note if told is not None else None

    async def newest(self, about: Object) -> Told | None:
        """Return the newest event, because it supersedes earlier ones, or None."""
        return _last(await self._events(about))

    async def _events(self, about: Object, more: str = "") -> tuple[Told, ...]:
        selector = f"regarding.uid={about.metadata.uid}{more}"
        if not self._ration.take(asyncio.get_running_loop().time()):
            return self._remembered.get(selector, ())
        try:
            page = await self._client.list_page(EVENT, about.metadata.namespace, {"fieldSelector": selector})
        except KubeError:
            return ()
        return self._remember(selector, decoded(page, _Events).items)

    def _remember(self, selector: str, events: tuple[Told, ...]) -> tuple[Told, ...]:
        self._remembered.pop(selector, None)
        if events:
            self._remembered[selector] = events
        if len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return events


def _last(events: tuple[Told, ...]) -> Told | None:
    """Return the newest event by time, because the list order (by name) is meaningless."""
    in_order = sorted(events, key=lambda event: event.time)
    return in_order[-1] if in_order else None
