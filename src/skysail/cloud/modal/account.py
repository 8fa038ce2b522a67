"""An account at Modal: `cloud.account.CloudAccount` over sandboxes and, for gangs, clustered Functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import modal
import msgspec
from modal import exception

from skysail.cloud import web_app
from skysail.cloud.account import Instance, Inventory, LaunchProgress, LaunchSpec, Timings
from skysail.cloud.change_feed import ChangeFeed
from skysail.cloud.errors import Gone, ProviderError, Unsupported
from skysail.cloud.http_address import HttpAddress
from skysail.cloud.lifetimes import MAX_LIFETIMES
from skysail.cloud.modal import errors, identity, internals, prices
from skysail.cloud.modal.apps import Apps
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.gangs.account import Gangs, is_gang
from skysail.cloud.modal.gangs.arguments import LIMITS
from skysail.cloud.modal.gangs.launcher import GangLauncher
from skysail.cloud.modal.inventory import SandboxInventory
from skysail.cloud.modal.launch import LaunchConfig
from skysail.cloud.modal.launcher import SandboxLauncher
from skysail.cloud.modal.output import SandboxOutput
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.modal.sessions import SandboxSessions
from skysail.cloud.modal.web import arguments as web_arguments
from skysail.cloud.modal.web.account import WebApps
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session

FEATURES = Features(
    exec=True,
    attach=True,
    port_forward=True,
    volumes=True,
    volume_deletion=True,
    needs_command=True,
    gang=True,
    gang_limits=LIMITS,
)
# The service answers a creation at once: the wait for capacity, up to 21 minutes, is the caller's own. A creation that
# a dead caller has sent is visible soon, and a second one with the same name adopts it.
TIMINGS = Timings(create_timeout=120.0, max_lifetime=MAX_LIFETIMES["modal"])
_TERMINATE_SECONDS = 60.0
_LAST_SECONDS = 5.0
_VOLUME_SECONDS = 60.0

log = logging.getLogger(__name__)


class ModalAccount:
    """The account of one cluster at one workspace and environment of Modal. Needs a running event loop.

    `shim` is the stand-alone file of web Apps; without it, an App is a sandbox with one container.
    `capacity_timeout`: seconds that a creation waits for GPUs before it reports that there is no capacity.
    """

    def __init__(  # noqa: PLR0913 (each from the settings)
        self,
        credentials: Mapping[str, str],
        *,
        cluster: str,
        environment: str = "",
        price_table: PriceTable | None = None,
        capacity_timeout: float = 600.0,
        shared_volumes: tuple[str, ...] = (),
        shim: Path | None = None,
    ) -> None:
        self._connection = Connection(credentials, environment)
        self._cluster = cluster
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
        self._web = WebApps(self._connection, cluster, prices=self._prices, shim=shim) if shim else None
        self._apps = Apps(self._connection, cluster)
        config = LaunchConfig(
            prices=self._prices, timings=TIMINGS, capacity_timeout=capacity_timeout, shared_volumes=shared_volumes
        )
        self._gangs = Gangs(self._connection, self._apps, cluster, config)
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
        return msgspec.structs.replace(FEATURES, web_apps=self._web is not None)

    @property
    def terms(self) -> Timings:
        return TIMINGS

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        self._connection.set_credentials(credentials)

    def on_progress(self, progress: LaunchProgress) -> None:
        self._launcher.progress = progress
        if self._web is not None:
            self._web.on_progress(progress)
        self._gangs.launcher.progress = progress

    async def close(self) -> None:
        for task in self._endings.values():
            task.cancel()
        await asyncio.gather(*self._endings.values(), return_exceptions=True)
        await self._gangs.close()
        if self._web is not None:
            await self._web.close()
        await self._connection.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        instance = await self._launcher_of(spec).create(spec)
        self._changes.publish(spec.claim)
        return instance

    async def terminate(self, instance: str, grace: float) -> None:
        """Terminate the sandbox, gang or App. With a grace period, ask its programs first and return at once."""
        if web_app.is_instance(instance):
            self._changes.publish(await self._web_apps().terminate(instance))
            return
        if is_gang(instance):
            self._changes.publish(await self._gangs.terminate(instance, grace))
            return
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

    async def delete_volume(self, namespace: str, volume: str) -> None:
        """Delete the Modal Volume by the name that launches of this namespace give it, so never a shared one."""
        name, client = identity.volume_name(self._cluster, namespace, volume, ()), await self._connection.client()
        environment = self._connection.environment or None
        deletion = modal.Volume.objects.delete.aio(
            name, allow_missing=True, environment_name=environment, client=client
        )
        try:
            await errors.bounded(deletion, _VOLUME_SECONDS, "delete the Volume")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error

    async def list(self) -> Inventory:
        apps = await self._apps.list()
        gangs = {app_id: app for app_id, app in apps.items() if self._apps.is_gang(app)}
        inventory = await self._inventory.list_all(apps.keys() - gangs.keys())
        if inventory.complete:
            self._output.keep({instance.id for instance in inventory.instances if instance.state != "ended"})
        found = await self._gangs.inventory.list_all(gangs.values())
        web = Inventory(()) if self._web is None else await self._web.inventory.list_all()
        return Inventory(
            (*inventory.instances, *found.instances, *web.instances),
            complete=inventory.complete and web.complete,
            problem=inventory.problem or web.problem,
            unreadable=found.unreadable | web.unreadable,
        )

    async def offers(self) -> OfferList:
        """Return the table of prices. Raises while the workspace is unknown: a claim needs the name of its account."""
        await self._connection.client()
        return self._prices.offers()

    async def get(self, instance: str) -> Instance | None:
        if web_app.is_instance(instance):
            return await self._web_apps().inventory.get(instance)
        return await (self._gangs.inventory if is_gang(instance) else self._inventory).get(instance)

    def watch(self) -> AsyncIterator[str]:
        """Yield claims whose sandbox this process has changed, or whose output has ended."""
        return self._changes.subscribe()

    async def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:
        if web_app.is_instance(instance):
            async for piece in self._web_apps().output(instance):
                yield piece
            return
        if is_gang(instance):
            async for piece in self._gangs.output.replay(instance, rank):
                yield piece
            self._changes.publish(await self._gangs.claim(instance))
            return
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
        rank: int = 0,
    ) -> Session:
        _check_sandbox(instance)
        _refuse_in_gang(instance, rank, "run a command")
        session = await self._sessions.exec(instance, command, tty=tty)
        if not stdin:
            await session.close_stdin()
        return session

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:  # noqa: ARG002 (always open)
        _check_sandbox(instance)
        _refuse_in_gang(instance, rank, "attach to the program")
        return await self._sessions.attach(instance)

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:
        _check_sandbox(instance)
        _refuse_in_gang(instance, rank, "connect to a port")
        return await self._sessions.dial(instance, port)

    async def http_address(self, instance: str, port: int) -> HttpAddress:
        if web_app.is_instance(instance):
            return await self._web_apps().http_address(instance)
        _refuse_in_gang(instance, 0, "connect to a port")
        return await self._sessions.http_address(instance, port)

    def _launcher_of(self, spec: LaunchSpec) -> SandboxLauncher | GangLauncher | WebApps:
        if self._web is not None and web_arguments.wants_web(spec.options):
            return self._web
        return self._gangs.launcher if spec.size > 1 else self._launcher

    def _web_apps(self) -> WebApps:
        if self._web is None:
            raise Unsupported("This process has no file for web Apps.")
        return self._web

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


def _check_sandbox(instance: str) -> None:
    if web_app.is_instance(instance):
        raise Unsupported("Modal starts and ends the containers of an App on its own: use its URL.")


def _refuse_in_gang(instance: str, rank: int, what: str) -> None:
    """Raise Unsupported for a rank of a gang: its containers are those of a Function, which nobody can enter."""
    if is_gang(instance):
        raise Unsupported(
            f"Modal has no way to {what} in rank {rank} of a gang: read its log, or run one worker alone, which is a "
            "sandbox."
        )
