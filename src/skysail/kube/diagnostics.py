"""What is asked about a pod beside what caches tell: the end of its log, and what others told about it in events.

All of it is for people: what cannot be read is not known, and nothing waits for it.
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
# Held of a log at a time. A server that is asked for so much gives the beginning of the last lines, and the end tells.
_LOG_BYTES = 65536
# A node that does not answer must not keep others from being looked at.
_LOG_SECONDS = 5.0
_CANNOT_CREATE = "FailedCreate"
# The API server reads all events of a namespace to find those of one object.
_EVENTS_A_SECOND = 2.0
_EVENTS_AT_ONCE = 10.0
_MOST_REMEMBERED = 1000


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: str | None = None


class Told(msgspec.Struct, frozen=True, rename="camel"):
    """An event, as far as it says what is wrong. Who tells decides which of its times are there."""

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
    """Asks for few events at a time. Who is not asked about again has not changed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ration = Ration(a_second=_EVENTS_A_SECOND, at_once=_EVENTS_AT_ONCE)
        self._remembered: dict[str, tuple[Told, ...]] = {}

    async def log(self, pod: Key, container: str, *, lines: int = LOG_LINES, before: bool = False) -> str | None:
        """The last lines of a container's log; `before`: of the one that was there before it was started again."""
        query = {"container": container, "tailLines": str(lines)}
        if before:
            query["previous"] = "true"
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                return terminal_text.shown(await self._ending(POD.path(pod.namespace, pod.name, "log"), query))
        except (KubeError, TimeoutError):
            return None

    async def _ending(self, path: str, query: Mapping[str, str]) -> str:
        """A line may be of any length: a bar of progress is one for as long as it moves."""
        held = b""
        async with await self._client.follow(path, query) as stream:
            async for chunk in stream:
                held = (held + chunk)[-_LOG_BYTES:]
        return held.decode(errors="replace")

    async def complaint(self, owner: Object) -> str | None:
        """What a controller last told about pods that it cannot make for this object."""
        told = _last(await self._events(owner, f",reason={_CANNOT_CREATE}"))
        return told.note if told is not None else None

    async def newest(self, about: Object) -> Told | None:
        """A later event says that an earlier one is overcome."""
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
    """By their times: they are listed in the order of their names, which tell nothing."""
    in_order = sorted(events, key=lambda event: event.time)
    return in_order[-1] if in_order else None
