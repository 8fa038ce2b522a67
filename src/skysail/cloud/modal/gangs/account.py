"""Gangs of one account: their launcher, inventory and output, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal import errors
from skysail.cloud.modal.apps import Apps
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.gangs.inventory import Gang, GangInventory
from skysail.cloud.modal.gangs.launcher import GangLauncher
from skysail.cloud.modal.gangs.output import GangOutput
from skysail.cloud.modal.launch import LaunchConfig

_CALL_SECONDS = 20.0
_POLL_SECONDS = 1.0
# Added to the wait for capacity, for a gang that another process launches or has launched.
_STARTUP_MARGIN = 300.0

log = logging.getLogger(__name__)


def is_gang(instance: str) -> bool:
    """Return whether the id of an instance is that of a gang, which is the id of its App."""
    return instance.startswith("ap-")


class Gangs:
    def __init__(self, connection: Connection, apps: Apps, cluster: str, config: LaunchConfig) -> None:
        startup = config.capacity_timeout + _STARTUP_MARGIN
        self.inventory = GangInventory(connection, apps, cluster, startup_seconds=startup)
        self.launcher = GangLauncher(connection, apps, self.inventory, config)
        self.output = GangOutput(self.inventory)
        # Termination that gives the programs time, by instance.
        self._endings: dict[str, asyncio.Task[None]] = {}

    async def claim(self, instance: str) -> str:
        """Return the claim of a gang, or an empty string if it is not known."""
        try:
            return (await self.inventory.require(instance)).tags.claim
        except ProviderError:
            return ""

    async def terminate(self, instance: str, grace: float) -> str:
        """End a gang and return its claim. With a grace period, cancel its call first and return at once."""
        gang = await self.inventory.require(instance)
        previous = self._endings.pop(instance, None)
        if previous is not None:
            previous.cancel()
        if gang.ended is not None:
            return gang.tags.claim
        await self._read_end(gang)
        is_running = gang.state.exit is None and gang.ended_seen is None
        gang.is_asked = True
        if grace > 0 and is_running and previous is None and await self._cancel(gang):
            task = asyncio.get_running_loop().create_task(self._stop_after(gang, grace))
            self._endings[instance] = task
            task.add_done_callback(lambda done: self._forget(instance, done))
        else:
            await self.inventory.stop(gang)
        return gang.tags.claim

    async def close(self) -> None:
        for task in self._endings.values():
            task.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)

    async def _read_end(self, gang: Gang) -> None:
        """Read the last state: a gang that has ended by itself keeps its own exit codes."""
        try:
            await self.inventory.refresh(gang)
        except ProviderError as error:
            log.debug("gang not read before its end", extra={"instance": gang.id, "why": str(error)})

    async def _cancel(self, gang: Gang) -> bool:
        """Cancel the call, so that the shims stop their programs. Returns False if that is not possible."""
        try:
            call = await self.inventory.call(gang)
            if call is None:
                return False
            await errors.bounded(call.cancel.aio(), _CALL_SECONDS, "cancel the call")
        except (ProviderError, *errors.SDK_ERRORS) as error:
            log.debug("call of a gang not cancelled", extra={"instance": gang.id, "why": errors.text(error)})
            return False
        return True

    async def _stop_after(self, gang: Gang, grace: float) -> None:
        """Stop the App when all ranks have ended, or after the grace period."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while not await self._has_reported(gang):  # noqa: ASYNC110 (Modal has no event)
                    await asyncio.sleep(_POLL_SECONDS)
        await self.inventory.stop(gang)

    async def _has_reported(self, gang: Gang) -> bool:
        try:
            await self.inventory.refresh(gang)
        except ProviderError:
            return False
        return gang.state.exit is not None

    def _forget(self, instance: str, task: asyncio.Task[None]) -> None:
        if self._endings.get(instance) is task:
            del self._endings[instance]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("gang not terminated, retried", extra={"instance": instance, "why": errors.text(error)})
