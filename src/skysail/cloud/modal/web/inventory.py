"""Instances of web Apps: an App is billed by its containers, whose number is sampled with each listing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import modal
import msgspec
from modal import exception

from skysail.cloud.account import Instance, Inventory
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.web import tags as tags_module
from skysail.cloud.modal.web.tags import WebTags
from skysail.cloud.provider import Ended

FUNCTION = "web"
AnyFunction = modal.Function[Any, Any, Any]
_CALL_SECONDS = 20.0
# An App that is read for longer is unreadable in a listing, so that the others are listed in time.
_LISTED_SECONDS = 10.0
# All Apps of a listing together: a poll that takes 30 seconds fails as a whole.
_LISTING_SECONDS = 15.0
_SAMPLE_SECONDS = 5.0
_MAX_CONCURRENT = 8
# Without a sample for this long, all containers count as billed.
_MAX_GAP = 60.0
_REMEMBERED_SECONDS = 600.0

log = logging.getLogger(__name__)


class _Meter(msgspec.Struct):
    """Cost of one claim so far. Between two samples, the number of containers was that of the later one."""

    usd: float = 0.0
    at: float = 0.0

    def add(self, now: float, count: int, tags: WebTags) -> None:
        since = self.at or tags.created
        seconds = max(0.0, now - since)
        billed = tags.max_containers if seconds > _MAX_GAP else count
        self.usd += billed * tags.usd_per_hour * seconds / 3600
        self.at = now


class DeployedApp(msgspec.Struct, frozen=True, kw_only=True):
    """A live App. `url` is empty until its first deploy has ended."""

    handle: modal.App
    tags: WebTags
    written_tags: dict[str, str]
    function: AnyFunction | None
    url: str

    @property
    def app_id(self) -> str:
        return self.handle.app_id or ""

    @property
    def name(self) -> str:
        return self.handle.name or ""

    @property
    def is_unfinished(self) -> bool:
        """Return whether the App serves no claim: its first deploy has not ended, or it was never asked."""
        return self.function is None or self.tags.is_unverified


class WebInventory:
    """Web Apps of one cluster."""

    def __init__(self, connection: Connection, cluster: str, now: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._cluster = cluster
        self._now = now
        self._meters: dict[str, _Meter] = {}
        self._ended: dict[str, Instance] = {}
        # Claims of each live App by its tags when they were last read.
        self._claims: dict[str, tuple[str, ...]] = {}
        # Claim that takes over each App, until its tags name it.
        self._expected: dict[str, str] = {}
        # Ids of Apps whose last reading failed or did not end in time.
        self._slow: set[str] = set()
        # Names of Apps that this process checks now: new Apps, and second Apps of a new revision.
        self.checking: set[str] = set()

    async def list_all(self) -> Inventory:
        """Return the instances of all Apps, and those that ended recently.

        The claims of an App that cannot be read are unreadable. They do not hide the others. If such an App was never
        read, its claims are not known, and the inventory is not complete.
        """
        handles = await self._handles()
        ids = _ids(handles)
        self._claims = {app_id: self._claims[app_id] for app_id in self._claims.keys() & ids}
        self._expected = {app_id: self._expected[app_id] for app_id in self._expected.keys() & ids}
        self._slow &= ids
        read = await self._read_all(handles)
        if ids - read.keys():
            log.warning("apps not read in time, others listed", extra={"apps": sorted(ids - read.keys())})
        unknown = [handle.name or "" for handle in handles if handle.app_id not in read.keys() | self._claims.keys()]
        problem = f"Modal does not return the state of App {min(unknown)}." if unknown else ""
        instances = (*(row for rows in read.values() for row in rows), *self._recently_ended(read))
        return Inventory(instances, not unknown, problem, unreadable=self._unreadable(ids - read.keys()))

    async def _read_all(self, handles: list[modal.App]) -> dict[str, list[Instance]]:
        """Return the instances of the Apps that Modal returns in time. Those that were slow the last time come last."""
        read: dict[str, list[Instance]] = {}
        limit = asyncio.Semaphore(_MAX_CONCURRENT)

        async def look(handle: modal.App) -> None:
            app_id = handle.app_id or ""
            async with limit:
                self._slow.add(app_id)
                try:
                    looking = self._look(handle)
                    read[app_id] = await errors.bounded(looking, _LISTED_SECONDS, "return the state of an App")
                except (ProviderError, TimeoutError) as error:
                    log.info("app not read", extra={"app": app_id, "why": str(error)})
                else:
                    self._slow.discard(app_id)

        order = sorted(handles, key=lambda handle: handle.app_id in self._slow)
        await _run_all([asyncio.ensure_future(look(handle)) for handle in order])
        return read

    def _recently_ended(self, read: dict[str, list[Instance]]) -> list[Instance]:
        """Forget the instances that ended long ago, and return the others that are not listed."""
        oldest = self._now() - _REMEMBERED_SECONDS
        self._ended = {id_: row for id_, row in self._ended.items() if (row.ended or 0.0) > oldest}
        listed = {row.id for rows in read.values() for row in rows}
        return [row for id_, row in self._ended.items() if id_ not in listed]

    def _unreadable(self, app_ids: set[str]) -> frozenset[str]:
        """Return the names and instances of the claims that these Apps had when last read, or may have now."""
        claims = [(app_id, claim) for app_id in app_ids for claim in self._claims.get(app_id, ())]
        claims += [(app_id, self._expected[app_id]) for app_id in app_ids & self._expected.keys()]
        return frozenset(name for app_id, claim in claims for name in (claim, tags_module.instance_id(app_id, claim)))

    async def get(self, instance: str) -> Instance | None:
        """Return one instance. Returns None if Modal does not have it, or if its claim has handed the App over."""
        try:
            app = await self.find(instance)
        except Gone:
            return self._ended.get(instance)
        rows = await self._instances(app)
        return next((row for row in rows if row.id == instance), self._ended.get(instance))

    async def find(self, instance: str) -> DeployedApp:
        """Return the App of an instance. Raises Gone. Other Apps are not read: they may not answer."""
        app_id, _ = tags_module.split_id(instance)
        handles = (handle for handle in await self._handles() if handle.app_id == app_id)
        app = await self._first(handles, lambda _: True)
        if app is None:
            raise Gone(f"Modal has no App {app_id}.")
        return app

    async def named(self, name: str) -> DeployedApp | None:
        """Return the deployed App with this name, or None."""
        handles = (handle for handle in await self._handles() if handle.name == name)
        return await self._first(handles, lambda app: app.function is not None)

    def expect(self, app: DeployedApp, claim: str) -> None:
        """Record that the claim takes the App over: while its new tags cannot be read, the claim is not absent."""
        self._expected[app.app_id] = claim

    def begin(self, app: DeployedApp, claim: str, usd: float) -> None:
        """Count the cost of a new App from now on. `usd`: what it has cost until it answered."""
        self._meters[tags_module.instance_id(app.app_id, claim)] = _Meter(usd=usd, at=self._now())

    def end(self, app: DeployedApp, claim: str) -> None:
        """Record that the claim has ended, with its cost.

        The cost is unknown if this process never sampled it, or not before a newer claim had the App.
        """
        id_, now = tags_module.instance_id(app.app_id, claim), self._now()
        meter = self._meters.pop(id_, None)
        if meter is not None and claim == app.tags.claim:
            # Nobody has counted since the last sample.
            meter.add(now, app.tags.max_containers, app.tags)
        if claim == app.tags.claim and app.tags.earlier:
            self._count_from_now(app, app.tags.earlier[0])
        row = _instance(app, claim)
        exit_ = Ended(code=0, reason="Completed", message="The App was stopped.", started=row.started, ended=now)
        self._ended[id_] = msgspec.structs.replace(
            row, state="ended", ended=now, exit=exit_, usd_total=None if meter is None else round(meter.usd, 6)
        )

    def _count_from_now(self, app: DeployedApp, claim: str) -> None:
        """Bill a claim that has its App back from now on: until now, a newer claim has paid."""
        meter = self._meters.get(tags_module.instance_id(app.app_id, claim))
        if meter is not None:
            meter.at = self._now()

    async def _handles(self) -> list[modal.App]:
        """Return the live Apps of the cluster."""
        client = await self._connection.client()
        name = self._connection.environment
        if name:
            environment = modal.Environment.from_name(name, client=client)
        else:
            environment = modal.Environment.from_context(client=client)
        try:
            apps: list[modal.App] = await errors.bounded(environment.apps.list.aio(), _CALL_SECONDS, "list its Apps")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        prefix = tags_module.prefix(self._cluster)
        return [app for app in apps if app.app_id and (app.name or "").startswith(prefix)]

    async def _first(self, handles: Iterable[modal.App], accepts: Callable[[DeployedApp], bool]) -> DeployedApp | None:
        for handle in handles:
            app = await self._read(handle)
            if app is not None and accepts(app):
                return app
        return None

    async def _look(self, handle: modal.App) -> list[Instance]:
        app = await self._read(handle)
        return [] if app is None else await self._instances(app)

    async def _read(self, handle: modal.App) -> DeployedApp | None:
        """Read tags and function of an App. Returns None if the App has just ended."""
        client = await self._connection.client()
        try:
            written = await errors.bounded(handle.get_tags.aio(client=client), _CALL_SECONDS, "return tags")
            tags = tags_module.decode(written)
            self._note_claims(handle.app_id or "", (tags.claim, *tags.earlier) if tags.claim else ())
            function, url = await self._function(client, handle)
        except exception.NotFoundError:
            return None
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        return DeployedApp(handle=handle, tags=tags, written_tags=dict(written), function=function, url=url)

    def _note_claims(self, app_id: str, claims: tuple[str, ...]) -> None:
        self._claims[app_id] = claims
        if self._expected.get(app_id) in claims:
            del self._expected[app_id]

    async def _function(self, client: modal.Client, handle: modal.App) -> tuple[AnyFunction | None, str]:
        """Return the function and its URL, None before the first deploy has ended."""
        found = modal.Function.from_name(
            handle.name or "", FUNCTION, environment_name=self._connection.environment or None, client=client
        )
        try:
            url = await errors.bounded(found.get_web_url.aio(), _CALL_SECONDS, "return a URL")
        except exception.NotFoundError:
            return None, ""
        return found, url or ""

    async def _instances(self, app: DeployedApp) -> list[Instance]:
        """Return the instance of the claim that pays, and those of earlier claims."""
        if app.tags.cluster != self._cluster or app.name in self.checking:
            return []
        if app.is_unfinished:
            # Belongs to no claim: its claim launches again, or else the orphan collector ends the App.
            return [_instance(app, f"unfinished.{app.tags.claim}")]
        await self._sample(app)
        return [_instance(app, claim) for claim in (app.tags.claim, *app.tags.earlier)]

    async def _sample(self, app: DeployedApp) -> None:
        assert app.function is not None, "checked by the caller"
        try:
            stats = await errors.bounded(app.function.get_current_stats.aio(), _SAMPLE_SECONDS, "count containers")
        except (*errors.SDK_ERRORS, ProviderError) as error:
            log.debug("containers not counted", extra={"app": app.app_id, "why": str(error)})
            return
        id_ = tags_module.instance_id(app.app_id, app.tags.claim)
        if app.tags.is_returned and id_ not in self._meters:
            return  # what the claim has cost before the newer one is not known any more
        self._meters.setdefault(id_, _Meter()).add(self._now(), stats.num_total_runners, app.tags)


async def _run_all(tasks: list[asyncio.Future[None]]) -> None:
    """Run the tasks until all have ended, or until the listing has to end. Raises the first error."""
    try:
        done, _ = await asyncio.wait(tasks, timeout=_LISTING_SECONDS) if tasks else ((), ())
        for task in done:
            task.result()
    finally:
        # A cancelled call of the SDK may clean up for longer than the listing can wait.
        for task in tasks:
            task.cancel()


def _ids(handles: Iterable[modal.App]) -> set[str]:
    return {handle.app_id for handle in handles if handle.app_id}


def _instance(app: DeployedApp, claim: str) -> Instance:
    tags = app.tags
    return Instance(
        id=tags_module.instance_id(app.app_id, claim),
        claim=claim,
        cluster=tags.cluster,
        state="running",
        created=tags.created,
        started=tags.created,
        usd_per_hour=round(tags.usd_per_hour * tags.max_containers, 6) if claim == tags.claim else 0.0,
        app=app.app_id,
        url=app.url,
    )
