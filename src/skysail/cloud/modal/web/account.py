"""Web Apps of one account: deployed, found by their instances, and stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from skysail.cloud import web_app
from skysail.cloud.account import Instance, LaunchProgress, LaunchSpec
from skysail.cloud.errors import Gone, ProviderError
from skysail.cloud.http_address import HttpAddress
from skysail.cloud.modal import errors
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.modal.web import tags as tags_module
from skysail.cloud.modal.web.deployer import WebDeployer
from skysail.cloud.modal.web.inventory import WebInventory
from skysail.cloud.modal.web.probe import verifies
from skysail.cloud.modal.web.proxy_tokens import ProxyTokens
from skysail.cloud.provider import Output

_STOP_SECONDS = 60.0
_RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class WebApps:
    """`shim` is the stand-alone file whose functions run in the containers. Must be closed."""

    def __init__(self, connection: Connection, cluster: str, *, prices: PriceTable, shim: Path) -> None:
        self._connection = connection
        self.inventory = WebInventory(connection, cluster)
        self._tokens = ProxyTokens(connection, cluster)
        self._deployer = WebDeployer(connection, self.inventory, self._tokens, prices=prices, shim=shim)

    def on_progress(self, progress: LaunchProgress) -> None:
        self._deployer.progress = progress

    async def close(self) -> None:
        await self._tokens.close()

    async def create(self, spec: LaunchSpec) -> Instance:
        web = web_app.find(spec.options)
        assert web is not None, "checked by the caller"
        return await self._deployer.create(spec, web)

    async def terminate(self, instance: str) -> str:
        """End the instance. Its App is stopped only if no other claim has it. Returns the claim.

        An App that a newer claim has taken over stays. One that was taken over from an earlier claim goes back to it.
        """
        _, claim = tags_module.split_id(instance)
        app = await self.inventory.find(instance)
        async with self._deployer.lock(app.name):
            app = await self.inventory.find(instance)
            client = await self._connection.client()
            try:
                claims = (app.tags.claim, *app.tags.earlier)
                others = tuple(each for each in claims if each != claim)
                if app.is_unfinished or not others:
                    await errors.bounded(app.handle.stop.aio(client=client), _STOP_SECONDS, "stop the App")
                elif claim in claims:
                    # The pod of the newest other claim may be the only one that is ready.
                    tags = tags_module.with_claims(app.written_tags, others)
                    await errors.bounded(app.handle.set_tags.aio(tags, client=client), _STOP_SECONDS, "tag the App")
                else:
                    raise Gone(f"App {app.app_id} no longer belongs to claim {claim}.")
            except errors.SDK_ERRORS as error:
                raise errors.of_read(error) from error
        self.inventory.end(app, claim)
        return claim

    async def http_address(self, instance: str) -> HttpAddress:
        app = await self.inventory.find(instance)
        if not app.url:
            raise Gone(f"App {app.app_id} is not deployed.")
        return HttpAddress(url=app.url, headers=await self._tokens.headers(), verifies=verifies(app.url))

    async def output(self, instance: str) -> AsyncIterator[Output]:
        """Yield the output of all containers of the App, until the App is stopped, over any number of breaks."""
        app = await self.inventory.find(instance)
        last = 0.0
        while True:
            reopened_after = last
            try:
                async for entry in app.handle.logs.stream.aio():
                    at = entry.timestamp.timestamp()
                    if at <= reopened_after:
                        continue  # read before the break
                    last = max(last, at)
                    stream: Literal["stdout", "stderr"] = "stderr" if entry.source == "stderr" else "stdout"
                    yield Output(at=at, stream=stream, data=entry.message.encode())
            except errors.SDK_ERRORS as error:
                log.debug("output of app interrupted, reopened", extra={"app": app.app_id, "why": errors.text(error)})
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)
            try:
                app = await self.inventory.find(instance)
            except Gone:
                return
            except ProviderError as error:
                log.debug("app not found for its output, retried", extra={"app": app.app_id, "why": str(error)})
