"""Deploys web Apps: `app.deploy` from a stand-alone file, which is all of Skysail that gets into a tenant's container.

A new revision of a live App is deployed to a second App first, and asked whether it works. So an update that cannot
serve changes nothing for callers. A new scale, or a new claim for the same revision, needs no deploy.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import modal
from modal import exception

from skysail.cloud.account import Instance, LaunchProgress, LaunchSpec
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.modal import errors
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.launcher import image as base_image
from skysail.cloud.modal.prices import PriceTable
from skysail.cloud.modal.web import arguments as arguments_module
from skysail.cloud.modal.web import probe as probe_module
from skysail.cloud.modal.web import tags as tags_module
from skysail.cloud.modal.web.arguments import WebArguments
from skysail.cloud.modal.web.inventory import FUNCTION, AnyFunction, DeployedApp, WebInventory
from skysail.cloud.modal.web.proxy_tokens import ProxyTokens
from skysail.cloud.web_app import WebApp

_CALL_SECONDS = 30.0
# A process that ends waits for this.
_ABANDON_SECONDS = 5.0
_DEPLOY_SECONDS = 3600.0
_PROBE_SECONDS = 1200.0
_STARTUP_SECONDS = 900.0
_SCALEDOWN_SECONDS = 60
# Modal ends a request this long after the handler server has answered for it.
_TIMEOUT_MARGIN = 60
_MAX_TIMEOUT = 86400
_MAX_INPUTS = 1000
_LOG_LINES = 5

log = logging.getLogger(__name__)


class WebDeployer:
    """Deploys one App at a time for each name. `progress` gets each step of each deploy."""

    def __init__(
        self,
        connection: Connection,
        inventory: WebInventory,
        tokens: ProxyTokens,
        *,
        prices: PriceTable,
        shim: Path,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._inventory = inventory
        self._tokens = tokens
        self._prices = prices
        self._shim = _load(shim)
        self._now = now
        self._locks: dict[str, asyncio.Lock] = {}
        self.progress: LaunchProgress = lambda _claim, _step, _message: None

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of an App: a deploy and a termination must not overlap."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def create(self, spec: LaunchSpec, web: WebApp) -> Instance:
        """Bring the App to this launch spec, and make its claim the one that pays. Idempotent.

        Raises Rejected if the revision cannot serve. An App that was live before is not changed then.
        """
        arguments = arguments_module.web_arguments(spec, web, self._prices)
        async with self.lock(arguments.app):
            live = await self._live(spec, arguments)
            if live is None or live.tags.is_unverified:
                await self._begin(spec, arguments, live)
            elif live.tags.revision == arguments.revision:
                await self._take_over(live, spec, arguments)
            else:
                await self._check(spec, arguments)
                await self._deploy(spec, arguments, live)
            return await self._deployed(spec, arguments)

    async def _live(self, spec: LaunchSpec, arguments: WebArguments) -> DeployedApp | None:
        """Return the App of this name, or None. Raises Rejected if another owner has the name."""
        try:
            live = await self._inventory.named(arguments.app)
        except OutcomeUnknown as error:
            raise Throttled(str(error), _CALL_SECONDS) from error
        if live is not None and (not live.tags.claim or live.tags.cluster != spec.cluster):
            raise Rejected(
                "NameConflict",
                f"App {arguments.app} at Modal does not belong to this cluster: stop it, or rename the object.",
            )
        return live

    async def _take_over(self, live: DeployedApp, spec: LaunchSpec, arguments: WebArguments) -> None:
        """Scale the App without a deploy, and let this claim pay for it."""
        self._inventory.expect(live, spec.claim)
        try:
            await self._scale(live, arguments)
            await self._tag(live, spec, arguments)
        except errors.SDK_ERRORS as error:
            raise errors.of_creation(error) from error
        log.info("app scaled without a deploy", extra={"claim": spec.claim, "app": live.app_id})

    async def _scale(self, live: DeployedApp, arguments: WebArguments) -> None:
        assert live.function is not None, "a deployed App has its function"
        scaling = live.function.autoscaler.update.aio(
            min_containers=arguments.web.min_containers, max_containers=arguments.web.max_containers
        )
        await errors.bounded(scaling, _CALL_SECONDS, "scale the App")

    async def _tag(self, live: DeployedApp, spec: LaunchSpec, arguments: WebArguments) -> None:
        client = await self._connection.client()
        tagging = live.handle.set_tags.aio(self._tags(spec, arguments, live), client=client)
        await errors.bounded(tagging, _CALL_SECONDS, "tag the App")

    async def _check(self, spec: LaunchSpec, arguments: WebArguments) -> None:
        """Deploy the revision to a second App, ask it, and stop that App. Raises Rejected if it cannot serve."""
        self.progress(spec.claim, "image", f"Modal checks the new revision of {arguments.app}.")
        once = WebApp(**{**_fields(arguments.web), "min_containers": 0, "max_containers": 1})
        tags = tags_module.encode(
            spec,
            created=self._now(),
            usd_per_hour=arguments.usd_per_hour,
            max_containers=1,
            revision=arguments.revision,
            is_check=True,
        )
        # A check takes longer than the orphan collector waits. One of a process that has died is an orphan.
        with self._checking(arguments.check_app):
            app, function = await self._call_deploy(arguments, arguments.check_app, once, tags, spec)
            begun = self._now()
            try:
                await self._probe(await self._url(function))
            except (OutcomeUnknown, Gone) as error:
                # Not Throttled: other Apps can be deployed.
                refused = NoCapacity(str(error))
                refused.usd = self._cost_of_check(arguments, 1, begun)
                raise refused from error
            except Rejected as error:
                error.usd = self._cost_of_check(arguments, 1, begun)
                raise
            finally:
                with contextlib.suppress(*errors.SDK_ERRORS):
                    await errors.bounded(app.stop.aio(), _CALL_SECONDS, "stop the check")

    async def _begin(self, spec: LaunchSpec, arguments: WebArguments, unverified: DeployedApp | None) -> None:
        """Deploy a new App, or go on with one of this revision that was never asked, and ask it.

        It is no instance before it has answered, for no process. Raises Rejected if it cannot serve.
        """
        with self._checking(arguments.app):
            if unverified is None or unverified.tags.revision != arguments.revision:
                await self._deploy(spec, arguments, None)
            made = await self._made(arguments)
            # Another process may have asked it for a while.
            begun = self._now() if unverified is None else unverified.tags.created
            try:
                await self._verify(made)
            except (Rejected, NoCapacity) as error:
                error.usd = self._cost_of_check(arguments, max(1, arguments.web.min_containers), begun)
                raise
            try:
                if unverified is not None:
                    await self._scale(made, arguments)
                await self._tag(made, spec, arguments)
            except errors.SDK_ERRORS as error:
                raise OutcomeUnknown(str(errors.of_read(error))) from error
            cost = self._cost_of_check(arguments, max(1, arguments.web.min_containers), begun)
            self._inventory.begin(made, spec.claim, cost)

    def _cost_of_check(self, arguments: WebArguments, containers: int, begun: float) -> float:
        """Return what the containers that were asked have cost since the deploy had ended."""
        return round(containers * arguments.usd_per_hour * max(0.0, self._now() - begun) / 3600, 6)

    @contextlib.contextmanager
    def _checking(self, name: str) -> Iterator[None]:
        self._inventory.checking.add(name)
        try:
            yield
        finally:
            self._inventory.checking.discard(name)

    async def _deploy(self, spec: LaunchSpec, arguments: WebArguments, live: DeployedApp | None) -> None:
        self.progress(spec.claim, "image", f"Modal prepares image {arguments.image}.")
        tags = self._tags(spec, arguments, live)
        if live is None:
            tags = tags_module.as_unverified(tags)
        else:
            self._inventory.expect(live, spec.claim)
        await self._call_deploy(arguments, arguments.app, arguments.web, tags, spec)

    async def _verify(self, made: DeployedApp) -> None:
        """Ask a new App. Stop it if it cannot serve, and raise Rejected."""
        try:
            await self._probe(made.url)
        except asyncio.CancelledError:
            with contextlib.suppress(ProviderError, *errors.SDK_ERRORS):
                await errors.bounded(self._abandon(made), _ABANDON_SECONDS, "stop the App")
            raise
        except ProviderError as error:
            client = await self._connection.client()
            try:
                await errors.bounded(made.handle.stop.aio(client=client), _CALL_SECONDS, "stop the App")
            except errors.SDK_ERRORS as failure:
                raise OutcomeUnknown(f"{error} The App could not be stopped: {errors.text(failure)}.") from error
            if isinstance(error, Rejected):
                raise
            raise NoCapacity(str(error)) from error

    async def _abandon(self, made: DeployedApp) -> None:
        """Stop an App that nobody waits for any more, unless another process has asked it meanwhile."""
        found = await self._inventory.named(made.name)
        if found is not None and found.tags == made.tags:
            await found.handle.stop.aio(client=await self._connection.client())

    async def _deployed(self, spec: LaunchSpec, arguments: WebArguments) -> Instance:
        made = await self._made(arguments)
        try:
            found = await self._inventory.get(tags_module.instance_id(made.app_id, spec.claim))
        except ProviderError as error:
            raise OutcomeUnknown(str(error)) from error
        if found is None:
            raise OutcomeUnknown(f"Modal does not list App {arguments.app} after its deploy.")
        return found

    async def _made(self, arguments: WebArguments) -> DeployedApp:
        """Return the App after its deploy. It exists, so every error is OutcomeUnknown."""
        try:
            made = await self._inventory.named(arguments.app)
        except ProviderError as error:
            raise OutcomeUnknown(str(error)) from error
        if made is None:
            raise OutcomeUnknown(f"Modal does not list App {arguments.app} after its deploy.")
        return made

    async def _url(self, function: AnyFunction) -> str:
        try:
            url = await errors.bounded(function.get_web_url.aio(), _CALL_SECONDS, "return a URL")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        assert url, "a web Function has a URL"
        return url

    async def _probe(self, url: str) -> None:
        await probe_module.probe(url, await self._tokens.headers(), _PROBE_SECONDS)

    def _tags(self, spec: LaunchSpec, arguments: WebArguments, live: DeployedApp | None) -> dict[str, str]:
        created = self._now()
        if live is not None and live.tags.claim == spec.claim and not live.tags.is_returned:
            created = live.tags.created  # the claim pays since then
        tags = tags_module.encode(
            spec,
            created=created,
            usd_per_hour=arguments.usd_per_hour,
            max_containers=arguments.web.max_containers,
            revision=arguments.revision,
        )
        before = (live.tags.claim, *live.tags.earlier) if live is not None else ()
        return tags_module.with_earlier(tags, tuple(claim for claim in before if claim != spec.claim))

    async def _call_deploy(
        self, arguments: WebArguments, name: str, web: WebApp, tags: dict[str, str], spec: LaunchSpec
    ) -> tuple[modal.App, AnyFunction]:
        """Deploy one App with its function. Raises an error that says whether the deploy may have happened."""
        try:
            client = await self._connection.client()
        except OutcomeUnknown as error:
            raise Throttled(str(error), _CALL_SECONDS) from error
        try:
            with _written(arguments.files) as files:
                image = base_image(arguments.image, spec.registry_credentials)
                for remote, local in files:
                    image = image.add_local_file(local, remote)
                app = modal.App(name, tags=tags)
                function = app.function(**_function(arguments, web, image))(self._target(arguments, name, web))
                deploying = app.deploy.aio(
                    client=client, environment_name=self._connection.environment or None, tag=arguments.revision
                )
                await errors.bounded(deploying, _DEPLOY_SECONDS, "deploy the App")
        except exception.ImageBuildError as error:
            raise await self._build_error(error, client) from error
        except errors.SDK_ERRORS as error:
            raise errors.of_creation(error) from error
        return app, function

    def _target(self, arguments: WebArguments, name: str, web: WebApp) -> Any:
        label = tags_module.label(name)
        if web.port:
            decorate = modal.web_server(
                web.port, startup_timeout=_STARTUP_SECONDS, label=label, requires_proxy_auth=True
            )
            target = decorate(self._shim.serve)
        else:
            target = modal.asgi_app(label=label, requires_proxy_auth=True)(self._shim.asgi)
        inputs = min(arguments.web.inputs, _MAX_INPUTS)
        return modal.concurrent(max_inputs=inputs)(target) if inputs > 1 else target

    async def _build_error(self, error: exception.ImageBuildError, client: modal.Client) -> ProviderError:
        """Return the failure of a build with the end of its log."""
        lines: list[str] = []
        if error.image_id:
            try:
                failed = modal.Image.from_id(error.image_id, client=client)
                async with asyncio.timeout(_CALL_SECONDS):
                    lines = [entry.message.strip() async for entry in failed.logs.tail.aio(_LOG_LINES)]
            except (*errors.SDK_ERRORS, TypeError, AttributeError) as failure:
                log.info("build log not read", extra={"why": errors.text(failure)})
        tail = f" End of the build log: {' | '.join(lines)}" if lines else ""
        return Rejected("ErrImagePull", f"Modal cannot build the image: {errors.text(error)}.{tail}")


def _function(arguments: WebArguments, web: WebApp, image: modal.Image) -> dict[str, Any]:
    return {
        "name": FUNCTION,
        "image": image,
        "env": dict(arguments.env),
        "gpu": arguments.gpu or None,
        "cpu": arguments.cores,
        "memory": arguments.memory_mib,
        "region": arguments.region or None,
        "min_containers": web.min_containers,
        "max_containers": web.max_containers,
        "scaledown_window": _SCALEDOWN_SECONDS,
        "timeout": min(web.timeout + _TIMEOUT_MARGIN, _MAX_TIMEOUT),
        "restrict_modal_access": True,
    }


def _fields(web: WebApp) -> dict[str, Any]:
    return {name: getattr(web, name) for name in web.__struct_fields__}


@contextlib.contextmanager
def _written(files: tuple[tuple[str, bytes], ...]) -> Iterator[list[tuple[str, Path]]]:
    """Write the files for the time of the deploy. Yields their paths in the container and here."""
    with tempfile.TemporaryDirectory(prefix="skysail-app-") as folder:
        found = []
        for number, (remote, content) in enumerate(files):
            local = Path(folder) / str(number)
            local.write_bytes(content)
            found.append((remote, local))
        yield found


def _load(path: Path) -> ModuleType:
    """Load a lone file: of a module in our package, the SDK would upload the whole package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None, "a Python file has a loader"
    module = importlib.util.module_from_spec(spec)
    # The SDK looks a function's module up by its name. Without it, the SDK would upload pickled bytecode.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
