"""An account at Modal: `cloud.account.CloudAccount` over sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from modal import exception

from skysail.cloud.account import Instance, Inventory, LaunchProgress, LaunchSpec, Timings
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.modal import errors, internals, prices
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.inventory import SandboxInventory
from skysail.cloud.modal.launcher import SandboxLauncher
from skysail.cloud.modal.output import SandboxOutput
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.modal.sessions import SandboxSessions
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session

FEATURES = Features(exec=True, attach=True, port_forward=True, volumes=True, needs_command=True)
TIMINGS = Timings()
_TERMINATE_SECONDS = 60.0
_LAST_SECONDS = 5.0

log = logging.getLogger(__name__)


class ModalAccount:
    """The account of one cluster at one workspace and environment of Modal. Needs a running event loop.

    `capacity_timeout`: seconds that a creation waits for GPUs before it reports that there is no capacity.
    """

    def __init__(
        self,
        credentials: Mapping[str, str],
        *,
        cluster: str,
        environment: str = "",
        price_table: PriceTable | None = None,
        capacity_timeout: float = 600.0,
        shared_volumes: tuple[str, ...] = (),
    ) -> None:
        self._connection = Connection(credentials, environment)
        self._prices = price_table or PriceTable()
        self._inventory = SandboxInventory(self._connection, cluster)
        self._launcher = SandboxLauncher(
            self._connection,
            self._inventory,
            prices=self._prices,
            timings=TIMINGS,
            capacity_timeout=capacity_timeout,
            shared_volumes=shared_volumes,
        )
        self._output = SandboxOutput(self._inventory)
        self._sessions = SandboxSessions(self._connection, self._inventory, self._output)
        self._changes: ChangeFeed[str] = ChangeFeed()
        # Termination that gives the program time, by instance.
        self._endings: dict[str, asyncio.Task[None]] = {}

    @property
    def name(self) -> str:
        return prices.NAME

    @property
    def account(self) -> str:
        return self._connection.account

    @property
    def is_stand_in(self) -> bool:
        return self._connection.is_stand_in

    @property
    def features(self) -> Features:
        return FEATURES

    @property
    def terms(self) -> Timings:
        return TIMINGS

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        self._connection.set_credentials(credentials)

    def on_progress(self, progress: LaunchProgress) -> None:
        self._launcher.progress = progress

    async def close(self) -> None:
        for task in self._endings.values():
            task.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)
        await self._connection.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        instance = await self._launcher.create(spec)
        self._changes.publish(spec.claim)
        return instance

    async def terminate(self, instance: str, grace: float) -> None:
        """Terminate the sandbox. With a grace period, ask its program first and return at once."""
        found = await self._inventory.get(instance)
        if found is None:
            raise Gone(f"Modal has no sandbox {instance}.")
        self._inventory.expect_end(instance)
        previous = self._endings.pop(instance, None)
        if previous is not None:
            previous.cancel()
        if found.state == "ended":
            return
        if grace > 0 and previous is None and await self._sessions.stop_program(instance, found.claim):
            task = asyncio.get_running_loop().create_task(self._end_after(instance, found.claim, grace))
            self._endings[instance] = task
            task.add_done_callback(lambda done: self._forget_ending(instance, done))
            return
        await self._end(instance, found.claim)

    async def list(self) -> Inventory:
        inventory = await self._inventory.list_all()
        if inventory.complete:
            self._output.keep({instance.id for instance in inventory.instances if instance.state != "ended"})
        return inventory

    async def offers(self) -> OfferList:
        """Return the table of prices. Raises while the workspace is unknown: a claim needs the name of its account."""
        await self._connection.client()
        return self._prices.offers()

    async def get(self, instance: str) -> Instance | None:
        return await self._inventory.get(instance)

    def watch(self) -> AsyncIterator[str]:
        """Yield claims whose sandbox this process has changed, or whose output has ended."""
        return self._changes.subscribe()

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:  # noqa: ARG002 (one rank only)
        async for piece in self._output.replay(instance):
            yield piece
        # The output ends a moment before the sandbox does, or long before it if the program closes its output.
        with contextlib.suppress(ProviderError, *errors.SDK_ERRORS):
            async with self._inventory.open(instance) as sandbox:
                waiting = sandbox.wait.aio(raise_on_termination=False)
                await errors.bounded(waiting, _LAST_SECONDS, "end the sandbox")
        with contextlib.suppress(ProviderError):
            found = await self._inventory.get(instance)
            self._changes.publish(found.claim if found else "")

    async def exec(
        self,
        instance: str,
        command: tuple[str, ...],
        *,
        stdin: bool,
        tty: bool,
        rank: int = 0,  # noqa: ARG002 (one rank only)
    ) -> Session:
        session = await self._sessions.exec(instance, command, tty=tty)
        if not stdin:
            await session.close_stdin()
        return session

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:  # noqa: ARG002 (one rank only)
        return await self._sessions.attach(instance)

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:  # noqa: ARG002 (one rank only)
        return await self._sessions.dial(instance, port)

    async def _end_after(self, instance: str, claim: str, grace: float) -> None:
        """Terminate the sandbox when its program has had `grace` seconds, or do nothing if it has ended before."""
        try:
            async with self._inventory.open(instance) as sandbox:
                waiting = sandbox.wait.aio(raise_on_termination=False)
                await errors.bounded(waiting, grace, "end the program")
        except errors.SDK_ERRORS:
            await self._end(instance, claim)
        self._changes.publish(claim)

    async def _end(self, instance: str, claim: str) -> None:
        try:
            async with self._inventory.open(instance) as sandbox:
                if await internals.result(sandbox) is None:
                    ending = sandbox.terminate.aio(wait=True)
                    await errors.bounded(ending, _TERMINATE_SECONDS, "terminate the sandbox")
        except exception.NotFoundError as error:
            raise Gone(f"Modal has no sandbox {instance}.") from error
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        self._changes.publish(claim)

    def _forget_ending(self, instance: str, task: asyncio.Task[None]) -> None:
        if self._endings.get(instance) is task:
            del self._endings[instance]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("sandbox not terminated, retried", extra={"instance": instance, "why": errors.text(error)})
