"""Instances of web Apps: an App is billed by its containers, whose number is sampled with each listing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import modal
import msgspec
from modal import exception

from skysail.cloud.account import Instance
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.web import tags as tags_module
from skysail.cloud.modal.web.tags import WebTags
from skysail.cloud.provider import Ended

FUNCTION = "web"
AnyFunction = modal.Function[Any, Any, Any]
_CALL_SECONDS = 20.0
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


class WebInventory:
    """Web Apps of one cluster."""

    def __init__(self, connection: Connection, cluster: str, now: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._cluster = cluster
        self._now = now
        self._meters: dict[str, _Meter] = {}
        self._ended: dict[str, Instance] = {}
        # Names of Apps that this process deploys now.
        self.deploying: set[str] = set()
        # Names of second Apps by which this process checks a revision now.
        self.checking: set[str] = set()

    async def instances(self) -> list[Instance]:
        """Return the instances of all Apps, and those that ended recently. Raises if one App cannot be read."""
        apps = await self.apps()
        found = []
        for app in apps:
            found += await self._instances(app)
        oldest = self._now() - _REMEMBERED_SECONDS
        self._ended = {id_: row for id_, row in self._ended.items() if (row.ended or 0.0) > oldest}
        listed = {instance.id for instance in found}
        return [*found, *(row for id_, row in self._ended.items() if id_ not in listed)]

    async def get(self, instance: str) -> Instance | None:
        """Return one instance. Returns None if Modal does not have it, or if its claim has handed the App over."""
        app_id, _ = tags_module.split_id(instance)
        for app in await self.apps():
            if app.app_id == app_id:
                rows = await self._instances(app)
                return next((row for row in rows if row.id == instance), self._ended.get(instance))
        return self._ended.get(instance)

    async def find(self, instance: str) -> DeployedApp:
        """Return the App of an instance. Raises Gone."""
        app_id, _ = tags_module.split_id(instance)
        for app in await self.apps():
            if app.app_id == app_id:
                return app
        raise Gone(f"Modal has no App {app_id}.")

    async def named(self, name: str) -> DeployedApp | None:
        """Return the deployed App with this name, or None."""
        return next((app for app in await self.apps() if app.name == name and app.function is not None), None)

    async def apps(self) -> list[DeployedApp]:
        client = await self._connection.client()
        try:
            listed = await errors.bounded(self._listed(client), _CALL_SECONDS, "list its Apps")
            limit = asyncio.Semaphore(_MAX_CONCURRENT)
            found = await asyncio.gather(*(self._read(client, handle, limit) for handle in listed))
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        return [app for app in found if app is not None]

    def end(self, app: DeployedApp, claim: str) -> None:
        """Record that the claim has ended, with its cost. The cost is unknown if this process never sampled it."""
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

    async def _listed(self, client: modal.Client) -> list[modal.App]:
        name = self._connection.environment
        if name:
            environment = modal.Environment.from_name(name, client=client)
        else:
            environment = modal.Environment.from_context(client=client)
        prefix = tags_module.prefix(self._cluster)
        apps: list[modal.App] = await environment.apps.list.aio()
        return [app for app in apps if app.app_id and (app.name or "").startswith(prefix)]

    async def _read(self, client: modal.Client, handle: modal.App, limit: asyncio.Semaphore) -> DeployedApp | None:
        """Read tags and function of an App. Returns None if the App has just ended."""
        async with limit:
            try:
                written = await errors.bounded(handle.get_tags.aio(client=client), _CALL_SECONDS, "return tags")
            except exception.NotFoundError:
                return None
            function, url = await self._function(client, handle)
        return DeployedApp(
            handle=handle, tags=tags_module.decode(written), written_tags=dict(written), function=function, url=url
        )

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
        if app.function is None:
            # A deploy that was never finished belongs to no claim: the orphan collector ends it.
            is_ours = app.name in self.deploying
            return [] if is_ours else [_instance(app, f"unfinished.{app.tags.claim}")]
        await self._sample(app)
        return [_instance(app, claim) for claim in (app.tags.claim, *app.tags.earlier)]

    async def _sample(self, app: DeployedApp) -> None:
        assert app.function is not None, "checked by the caller"
        try:
            stats = await errors.bounded(app.function.get_current_stats.aio(), _CALL_SECONDS, "count containers")
        except (*errors.SDK_ERRORS, ProviderError) as error:
            log.debug("containers not counted", extra={"app": app.app_id, "why": str(error)})
            return
        id_ = tags_module.instance_id(app.app_id, app.tags.claim)
        self._meters.setdefault(id_, _Meter()).add(self._now(), stats.num_total_runners, app.tags)


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
