"""Instances at Modal: what runs, and what became of one instance."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress

import modal
import msgspec
from modal import exception

from skysail.cloud.account import Instance, Inventory
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors, identity, internals
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.identity import InstanceTags
from skysail.cloud.modal.internals import SandboxResult, SandboxRow
from skysail.cloud.provider import LOST, Ended

_CALL_SECONDS = 20.0
_PAGE_SECONDS = 25.0
_MAX_CONCURRENT = 8
_MAX_KNOWN = 20_000
# An ended sandbox stays in inventories for this long.
_REMEMBERED_SECONDS = 600.0
# Exit codes of a sandbox that was ended from outside, as a shell and a kubelet report them.
_TIMEOUT_CODE = 124
_KILLED_CODE = 137
_START_FAILED_CODE = 128
_SIGNAL_BASE = 128

log = logging.getLogger(__name__)


class _Known(msgspec.Struct):
    """Facts about one sandbox that do not change, or that only this process has seen."""

    tags: InstanceTags
    created: float
    started: float | None = None
    ended: float | None = None
    exit: Ended | None = None


class SandboxInventory:
    """Sandboxes of one cluster. Facts about them are kept by id, because Modal answers each question separately."""

    def __init__(self, connection: Connection, cluster: str, now: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._cluster = cluster
        self._now = now
        self._known: dict[str, _Known] = {}
        # Apps that this process has created, which a listing of Apps may show late.
        self._apps: dict[str, str] = {}
        # When the last listing began, and the sandboxes that ran then.
        self._listing: tuple[float, frozenset[str]] = (0.0, frozenset())
        # Sandboxes whose termination this process has requested.
        self._asked: set[str] = set()

    def add_app(self, name: str, app_id: str) -> None:
        self._apps[name] = app_id

    def expect_end(self, sandbox_id: str) -> None:
        """Record a request to terminate. An end that nobody requested is a loss."""
        self._asked.add(sandbox_id)

    def created(self, sandbox_id: str, tags: dict[str, str]) -> Instance:
        """Record a new sandbox and return its instance."""
        decoded = identity.decode_tags(tags)
        known = _Known(decoded, decoded.created, started=max(self._now(), decoded.created))
        self._known[sandbox_id] = known
        return _instance(sandbox_id, known, is_started=True)

    async def list_all(self, app_ids: Collection[str]) -> Inventory:
        """List the running sandboxes of these Apps, and those that have ended recently.

        A sandbox that this process knows and that is not listed is looked up by its id: it has ended, or a listing
        shows it late. Raises if one App cannot be listed.
        """
        client, begun = await self._connection.client(), self._now()
        apps = {*app_ids, *self._apps.values()}
        try:
            limit = asyncio.Semaphore(_MAX_CONCURRENT)
            pages = await asyncio.gather(*(self._list_app(client, app_id, limit) for app_id in apps))
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        rows = [row for page in pages for row in page]
        self._forget(rows)
        self._listing = (begun, frozenset(row.id for row in rows))
        listed = [await self._listed(client, row) for row in rows]
        return Inventory((*listed, *await self._unlisted({row.id for row in rows}, limit)))

    async def _unlisted(self, listed: set[str], limit: asyncio.Semaphore) -> list[Instance]:
        async def look_up(sandbox_id: str) -> Instance | None:
            async with limit:
                try:
                    return await self.get(sandbox_id)
                except ProviderError as error:
                    log.debug("unlisted sandbox not looked up", extra={"instance": sandbox_id, "why": str(error)})
                    return None

        oldest = self._now() - _REMEMBERED_SECONDS
        ours = {id_: known for id_, known in self._known.items() if known.tags.cluster == self._cluster}
        ended = {id_ for id_, known in ours.items() if known.ended is not None and known.ended > oldest}
        missing = [id_ for id_, known in ours.items() if known.exit is None and id_ not in listed]
        found = await asyncio.gather(*map(look_up, missing))
        old = [_instance(id_, ours[id_], is_started=True) for id_ in ended - listed]
        return [*old, *(instance for instance in found if instance is not None)]

    async def get(self, sandbox_id: str) -> Instance | None:
        """Look up one sandbox. Returns None if Modal does not have it."""
        try:
            async with self.open(sandbox_id) as sandbox:
                result = await internals.result(sandbox)
                known = await self._facts(sandbox)
        except Gone:
            # Look up no sandbox for ever that Modal does not have. A late listing would show it again.
            if sandbox_id in self._known and self._known[sandbox_id].exit is None:
                del self._known[sandbox_id]
            return None
        if result is not None:
            self._end(known, result, was_asked=sandbox_id in self._asked)
            self._asked.discard(sandbox_id)
        return _instance(sandbox_id, known, is_started=known.started is not None or known.exit is not None)

    async def has_ended(self, sandbox_id: str, max_age: float = 0.0) -> bool:
        """Return whether the sandbox has ended. An unknown state ends nothing.

        A sandbox that ran in a listing of the last `max_age` seconds is not looked up.
        """
        begun, running = self._listing
        if sandbox_id in running and abs(self._now() - begun) < max_age:
            return False
        try:
            instance = await self.get(sandbox_id)
        except ProviderError:
            return False
        return instance is None or instance.state == "ended"

    async def finished(self, client: modal.Client, app_id: str, claim: str) -> Instance | None:
        """Return the sandbox of a claim whose program has ended by itself, or None.

        A terminated one does not count: the launcher terminates sandboxes that wait for capacity too long.
        """
        listing = internals.list_claim(client, app_id, claim)
        try:
            rows = await errors.bounded(listing, _PAGE_SECONDS, "list the sandboxes of a claim")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        for row in rows:
            async with self.open(row.id) as sandbox:
                result = await internals.result(sandbox)
            if result is not None and result.kind != "terminated":
                return await self.get(row.id)
        return None

    @asynccontextmanager
    async def open(self, sandbox_id: str) -> AsyncIterator[modal.Sandbox]:
        """Open a handle with the current result of the sandbox. Raises Gone if Modal does not have it."""
        client = await self._connection.client()
        try:
            looking_up = modal.Sandbox.from_id.aio(sandbox_id, client=client)
            sandbox = await errors.bounded(looking_up, _CALL_SECONDS, "look up a sandbox")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        try:
            yield sandbox
        finally:
            await detach(sandbox)

    async def _list_app(self, client: modal.Client, app_id: str, limit: asyncio.Semaphore) -> list[SandboxRow]:
        async with limit:
            try:
                return await errors.bounded(internals.list_rows(client, app_id), _PAGE_SECONDS, "list its sandboxes")
            except exception.NotFoundError:
                # An App ends with all of its sandboxes. One that is listed has just ended, and the next listing shows
                # it no more.
                name = next((name for name, known in self._apps.items() if known == app_id), "")
                if not self._apps.pop(name, ""):
                    raise
                return []

    async def _listed(self, client: modal.Client, row: SandboxRow) -> Instance:
        known = self._known.get(row.id)
        if known is None:
            tags = identity.decode_tags(row.tags or await self._read_tags(client, row.id))
            known = self._known[row.id] = _Known(tags, tags.created or row.created)
        is_started = row.has_task or not internals.is_v1(row.id)
        if known.started is None and is_started:
            known.started = max(row.started or known.created, known.created)
        return _instance(row.id, known, is_started=is_started)

    async def _read_tags(self, client: modal.Client, sandbox_id: str) -> dict[str, str]:
        try:
            sandbox = await errors.bounded(
                modal.Sandbox.from_id.aio(sandbox_id, client=client), _CALL_SECONDS, "look up a sandbox"
            )
            return await errors.bounded(sandbox.get_tags.aio(), _CALL_SECONDS, "return tags")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    async def _facts(self, sandbox: modal.Sandbox) -> _Known:
        found = self._known.get(sandbox.object_id)
        if found is None:
            try:
                tags = await errors.bounded(sandbox.get_tags.aio(), _CALL_SECONDS, "return tags")
            except errors.SDK_ERRORS as error:
                raise errors.of_read(error) from error
            decoded = identity.decode_tags(tags)
            # A sandbox with a GPU has been scheduled if its creator has returned, which an earlier process waited for.
            created = decoded.created or self._now()
            found = self._known[sandbox.object_id] = _Known(decoded, created, started=created)
        return found

    def _end(self, known: _Known, result: SandboxResult, *, was_asked: bool) -> None:
        """Record the end once. Modal does not say when it was, so it is now, or the deadline if that is earlier."""
        if known.exit is not None:
            return
        latest = known.created + known.tags.lifetime if known.tags.lifetime else self._now()
        known.ended = max(known.created, min(self._now(), latest))
        known.exit = _exit(result, known, was_asked=was_asked)

    def _forget(self, rows: list[SandboxRow]) -> None:
        """Bound the memory: drop the oldest facts of sandboxes that no longer run."""
        running = {row.id for row in rows}
        surplus = len(self._known) - _MAX_KNOWN
        for sandbox_id in [id_ for id_ in self._known if id_ not in running][: max(0, surplus)]:
            del self._known[sandbox_id]


async def detach(sandbox: modal.Sandbox) -> None:
    """Close a handle. Without this call, each handle keeps a connection to a worker open."""
    with suppress(*errors.SDK_ERRORS):
        detaching = sandbox.detach.aio()  # type: ignore[no-untyped-call]
        await errors.bounded(detaching, _CALL_SECONDS, "close a connection")


def _instance(sandbox_id: str, known: _Known, *, is_started: bool) -> Instance:
    tags = known.tags
    seconds = None if known.ended is None else known.ended - known.created
    return Instance(
        id=sandbox_id,
        claim=tags.claim,
        cluster=tags.cluster,
        state="ended" if known.exit is not None else "running" if is_started else "starting",
        created=known.created,
        started=known.started,
        ended=known.ended,
        exit=known.exit,
        usd_per_hour=tags.usd_per_hour,
        usd_total=None if seconds is None else round(tags.usd_per_hour * seconds / 3600, 6),
        region=tags.region,
        app=tags.app,
    )


def _exit(result: SandboxResult, known: _Known, *, was_asked: bool) -> Ended:
    code, reason, message = _outcome(result, was_asked=was_asked)
    assert known.ended is not None, "the end was recorded before"
    return Ended(code=code, reason=reason, message=message, started=known.started, ended=known.ended)


def _outcome(result: SandboxResult, *, was_asked: bool) -> tuple[int, str, str]:  # noqa: PLR0911 (one per kind of end)
    """Return exit code, reason and message."""
    match result.kind:
        case "timeout":
            return _TIMEOUT_CODE, "DeadlineExceeded", "Modal ended the sandbox at its maximum lifetime."
        case "terminated" if was_asked:
            return _KILLED_CODE, "Error", "The sandbox was terminated."
        case "terminated":
            return _KILLED_CODE, LOST, f"Modal terminated the sandbox: {result.message or 'it gave no reason.'}"
        case "out-of-memory":
            return _KILLED_CODE, "OOMKilled", result.message
        case "start-failed":
            return _START_FAILED_CODE, "StartError", result.message or "Modal could not start the program."
        case "lost":
            return _KILLED_CODE, LOST, result.message or "Modal lost the sandbox."
        case _:
            # A negative code is the number of a signal.
            code = result.code if result.code >= 0 else _SIGNAL_BASE - result.code
            return code, "Error" if code else "Completed", result.message
