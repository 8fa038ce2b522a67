"""Gangs at Modal: each is a live App with one call, whose id is a tag of the App."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import modal
import msgspec
from modal import exception
from modal.types import InputStatus

from skysail.cloud.account import Instance, Inventory
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors, identity
from skysail.cloud.modal.apps import Apps
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.gangs import markers, state
from skysail.cloud.modal.gangs.markers import Marker, MarkerSet
from skysail.cloud.modal.gangs.state import CallStatus, GangFacts, GangState
from skysail.cloud.modal.identity import InstanceTags
from skysail.runtimes.modal_gang.skysail_gang import MARK

_CALL_SECONDS = 20.0
_LOG_SECONDS = 60.0
_STOP_SECONDS = 60.0
# A gang that is read for longer is unreadable in a listing, so that the others are listed in time.
_LISTED_SECONDS = 10.0
_MAX_CONCURRENT = 8
# Raised by answers and tags with values that make no sense, such as a time before the year 1.
_NOT_UNDERSTOOD = (TypeError, LookupError, ArithmeticError, *errors.SDK_ERRORS)
# An ended gang stays in inventories for this long.
_REMEMBERED_SECONDS = 600.0
# Entries with markers that one reading takes. A gang of the largest size writes fewer than a hundred.
_MAX_ENTRIES = 10_000
# Logs may arrive this late, and clocks may differ by this much.
_OVERLAP_SECONDS = 120.0
_STATUSES: dict[InputStatus, CallStatus] = {
    InputStatus.SUCCESS: "success",
    InputStatus.FAILURE: "failure",
    InputStatus.INIT_FAILURE: "start-failed",
    InputStatus.TERMINATED: "terminated",
    InputStatus.TIMEOUT: "timeout",
}

log = logging.getLogger(__name__)


class Gang(msgspec.Struct, kw_only=True):
    """Facts about one gang.

    `state` is the last assessment; one with an exit is final. `ended`: when its App was stopped.
    """

    id: str
    tags: InstanceTags
    app: modal.App
    markers: MarkerSet = msgspec.field(default_factory=MarkerSet)
    markers_until: float = 0.0
    ended_seen: float | None = None
    is_asked: bool = False
    state: GangState = msgspec.field(default_factory=GangState)
    ended: float | None = None


class GangInventory:
    """Gangs of one cluster. `startup_seconds`: time after its creation in which all ranks of a gang must start."""

    def __init__(
        self,
        connection: Connection,
        apps: Apps,
        cluster: str,
        *,
        startup_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._apps = apps
        self._cluster = cluster
        self._startup_seconds = startup_seconds
        self._now = now
        self._gangs: dict[str, Gang] = {}
        # Apps of launches that failed and were undone: a claim must not take one of them for its gang.
        self._discarded: set[str] = set()
        # Claims whose gang this process is launching now.
        self._launching: set[str] = set()

    def begin(self, claim: str) -> None:
        """Record that this process launches the gang of a claim, until `finish` is called."""
        self._launching.add(claim)

    def finish(self, claim: str) -> None:
        self._launching.discard(claim)

    def discard(self, gang: Gang) -> None:
        """Forget the gang of a launch that was undone, even if a listing still shows its App."""
        self._gangs.pop(gang.id, None)
        self._discarded.add(gang.id)

    def add(self, app: modal.App, tags: dict[str, str]) -> Gang:
        """Record an App that this process has deployed."""
        assert app.app_id, "a deployed App has an id"
        gang = self._gangs[app.app_id] = Gang(id=app.app_id, tags=identity.decode_tags(tags), app=app)
        return gang

    async def list_all(self, apps: Iterable[modal.App]) -> Inventory:
        """Return the gangs of these live Apps, and those that have ended recently.

        A gang that cannot be read is among the unreadable ones, by its id and its claim. It does not hide the others.
        """
        listed = {app.app_id: app for app in apps if app.app_id}
        self._discarded &= listed.keys()
        live = {app_id: app for app_id, app in listed.items() if app_id not in self._discarded}
        limit = asyncio.Semaphore(_MAX_CONCURRENT)

        unreadable: set[str] = set()

        async def look(gang_id: str) -> Instance | None:
            try:
                async with limit:
                    looking = self._look(gang_id, live.get(gang_id))
                    return await errors.bounded(looking, _LISTED_SECONDS, "return the state of a gang")
            except (ProviderError, TimeoutError) as error:
                log.warning("gang not read, others listed", extra={"instance": gang_id, "why": str(error)})
            except _NOT_UNDERSTOOD:
                log.exception("gang not understood, others listed", extra={"instance": gang_id})
            unreadable.update({gang_id, self._claim(gang_id, live.get(gang_id))} - {""})
            return None

        oldest = self._now() - _REMEMBERED_SECONDS
        self._gangs = {id_: gang for id_, gang in self._gangs.items() if gang.ended is None or gang.ended > oldest}
        found = await asyncio.gather(*map(look, {*live, *self._gangs}))
        instances = tuple(instance for instance in found if instance is not None)
        return Inventory(instances, unreadable=frozenset(unreadable))

    async def get(self, gang_id: str) -> Instance | None:
        """Look up one gang. Returns None if Modal does not have it."""
        gang = await self.find(gang_id)
        return None if gang is None else await self._look(gang_id, gang.app)

    async def find(self, gang_id: str) -> Gang | None:
        """Return the facts about a gang, or None if neither this process nor Modal knows it."""
        if gang_id not in self._gangs:
            app = (await self._apps.list()).get(gang_id)
            if app is None or not self._apps.is_gang(app) or gang_id in self._discarded:
                return None
            await self._read_tags(gang_id, app)
        return self._gangs[gang_id]

    async def require(self, gang_id: str) -> Gang:
        """Return the facts about a gang. Raises Gone if neither this process nor Modal knows it."""
        gang = await self.find(gang_id)
        if gang is None:
            raise Gone(f"Modal has no gang {gang_id}.")
        return gang

    async def call(self, gang: Gang) -> modal.FunctionCall[None] | None:
        """Return the call of a gang, or None if it was not made."""
        if not gang.tags.call:
            return None
        client = await self._connection.client()
        return modal.FunctionCall.from_id(gang.tags.call, client=client)

    async def refresh(self, gang: Gang) -> GangState:
        """Read the status of the call and new markers, and return the state of the gang. A final state stays."""
        if gang.state.exit is None:
            call = await self.call(gang)
            status: CallStatus = "none" if call is None else await self._status(call)
            if call is not None and status != "gone":
                await self._read_markers(gang, call)
            if status not in {"none", "pending"}:
                gang.ended_seen = gang.ended_seen or self._now()
            gang.state = state.assess(self._facts(gang, status))
        return gang.state

    async def stop(self, gang: Gang) -> None:
        """Stop the App of a gang, and with it every container. Raises an error of `cloud.errors`."""
        client = await self._connection.client()
        try:
            await errors.bounded(gang.app.stop.aio(client=client), _STOP_SECONDS, "stop the App")
        except exception.NotFoundError:
            log.debug("app of a gang is gone", extra={"instance": gang.id})
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        gang.ended = gang.ended or max(self._now(), gang.tags.created)

    def _claim(self, gang_id: str, app: modal.App | None) -> str:
        """Return the claim of a gang by its tags, or by the name of its App if the tags were not read."""
        gang = self._gangs.get(gang_id)
        if gang is not None and gang.tags.claim:
            return gang.tags.claim
        return identity.gang_claim((app.name if app else None) or "", self._cluster)

    async def _look(self, gang_id: str, app: modal.App | None) -> Instance | None:
        gang = self._gangs.get(gang_id)
        if app is not None and (gang is None or not gang.tags.call):
            gang = await self._read_tags(gang_id, app)
        if gang is None or gang.tags.cluster != self._cluster:
            return None
        await self.refresh(gang)
        if app is None and gang.ended_seen is not None:
            gang.ended = gang.ended or gang.ended_seen
        return self.instance(gang)

    async def _read_tags(self, gang_id: str, app: modal.App) -> Gang:
        client = await self._connection.client()
        try:
            tags = await errors.bounded(app.get_tags.aio(client=client), _CALL_SECONDS, "return tags")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        found = identity.decode_tags(tags)
        gang = self._gangs.setdefault(gang_id, Gang(id=gang_id, tags=found, app=app))
        gang.tags = found
        return gang

    async def _status(self, call: modal.FunctionCall[None]) -> CallStatus:
        try:
            graph = await errors.bounded(call.get_call_graph.aio(), _CALL_SECONDS, "return the state of a call")
        except exception.NotFoundError:
            return "gone"
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        own = next((node for node in graph if node.function_call_id == call.object_id), None)
        return "pending" if own is None else _STATUSES.get(own.status, "pending")

    async def _read_markers(self, gang: Gang, call: modal.FunctionCall[None]) -> None:
        """Read the markers since the last time. Those of an earlier time may have arrived late."""
        now = self._now()
        since = max(gang.tags.created, gang.markers_until) - _OVERLAP_SECONDS
        reading = self._new_markers(call, since, now + _OVERLAP_SECONDS)
        try:
            found = await errors.bounded(reading, _LOG_SECONDS, "return the log of a call")
        except errors.SDK_ERRORS as error:
            if isinstance(failure := errors.of_read(error), Gone):
                log.debug("log of a gang is gone", extra={"instance": gang.id})
                return
            raise failure from error
        gang.markers.add(found, size=gang.tags.members)
        gang.markers_until = now

    async def _new_markers(self, call: modal.FunctionCall[None], since: float, until: float) -> list[Marker]:
        """Return the markers of this time, at most those of the first `_MAX_ENTRIES` entries."""
        found: list[Marker] = []
        entries = 0
        span = {"since": datetime.fromtimestamp(since, UTC), "until": datetime.fromtimestamp(until, UTC)}
        async for entry in call.logs.fetch.aio(**span, source="stdout", search_text=MARK.strip()):
            task = entry.context_ids[-1] if entry.context_ids else ""
            found += markers.of_entry(entry.message, task, entry.timestamp.timestamp())
            entries += 1
            if entries >= _MAX_ENTRIES:
                break
        return found

    def _facts(self, gang: Gang, status: CallStatus) -> GangFacts:
        is_launching = gang.tags.claim in self._launching
        return GangFacts(
            size=max(1, gang.tags.members),
            # A launch of this process is not overdue.
            created=self._now() if is_launching else gang.tags.created,
            status=status,
            markers=gang.markers.sorted(),
            now=self._now(),
            ended_seen=gang.ended_seen,
            is_asked=gang.is_asked,
            startup_seconds=self._startup_seconds,
            is_one_pod=gang.tags.is_one_pod,
        )

    def instance(self, gang: Gang) -> Instance:
        """Return the gang as an instance. It ends when its App is stopped."""
        tags, known = gang.tags, gang.state
        started = known.started
        seconds = None if gang.ended is None else max(0.0, gang.ended - (started or gang.ended))
        return Instance(
            id=gang.id,
            claim=tags.claim,
            cluster=tags.cluster,
            state="ended" if gang.ended is not None else "starting" if started is None else "running",
            created=tags.created,
            started=started,
            ended=gang.ended,
            exit=known.exit,
            usd_per_hour=tags.usd_per_hour,
            usd_total=None if seconds is None else round(tags.usd_per_hour * seconds / 3600, 6),
            region=tags.region,
            app=gang.id,
            ranks=known.ranks,
        )
