"""Launch of gangs: deploy an App, call its Function once, record the call, and wait until all ranks have started.

Nothing is billed before the call, and stopping the App ends everything that the call may have started. So a launch
that fails before its call is recorded leaves nothing, or says that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import secrets
import sys
import time
from types import ModuleType

import modal

from skysail.cloud.account import Instance, LaunchProgress, LaunchSpec
from skysail.cloud.errors import NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled
from skysail.cloud.modal import errors, identity
from skysail.cloud.modal.apps import Apps
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.gangs.arguments import GangArguments, gang_arguments
from skysail.cloud.modal.gangs.inventory import Gang, GangInventory
from skysail.cloud.modal.launch import LaunchConfig
from skysail.cloud.modal.launcher import prepare_image, volume
from skysail.runtimes.modal_gang import SHIM

_FUNCTION = "gang"
_CALL_SECONDS = 30.0
_DEPLOY_SECONDS = 300.0
_STARTUP_SECONDS = 1800
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 10.0

log = logging.getLogger(__name__)


class GangLauncher:
    """Launches gangs. `progress` gets each step of each launch."""

    def __init__(self, connection: Connection, apps: Apps, inventory: GangInventory, config: LaunchConfig) -> None:
        self._connection = connection
        self._apps = apps
        self._inventory = inventory
        self._config = config
        self.progress: LaunchProgress = lambda _claim, _step, _message: None

    async def create(self, spec: LaunchSpec) -> Instance:
        """Launch the gang of a claim, or adopt the one that an earlier call has launched.

        Raises NoCapacity if not all ranks have started in time, after a check that nothing is left.
        """
        self._arguments(spec)
        try:
            client = await self._connection.client()
        except OutcomeUnknown as error:
            raise Throttled(str(error), _CALL_SECONDS) from error
        self._inventory.begin(spec.claim)
        try:
            return await self._previous(spec) or await self._launch(client, spec)
        finally:
            self._inventory.finish(spec.claim)

    def _arguments(self, spec: LaunchSpec) -> GangArguments:
        return gang_arguments(spec, self._config, now=time.time(), nonce=secrets.token_hex(16))

    async def _previous(self, spec: LaunchSpec) -> Instance | None:
        """Return the gang that an earlier call for this claim has launched. One whose call is unknown is ended."""
        try:
            gangs = await self._find(spec)
        except ProviderError as error:
            raise Throttled(f"Modal does not say whether the gang exists: {error}", _RETRY_SECONDS) from error
        for gang in gangs:
            if gang.tags.call:
                await self._inventory.refresh(gang)
                log.info("gang adopted by the name of its app", extra={"claim": spec.claim, "instance": gang.id})
                return self._inventory.instance(gang)
            await self._end(gang)
        return None

    async def _launch(self, client: modal.Client, spec: LaunchSpec) -> Instance:
        self.progress(spec.claim, "image", f"Modal prepares image {spec.container.image}.")
        # The App of the namespace: an image belongs to no App, but is built in one.
        shared = identity.app_name(spec.cluster, spec.pod.namespace)
        _, image = await prepare_image(self._connection, client, shared, spec)
        arguments = self._arguments(spec)
        app = modal.App(arguments.app, tags=arguments.tags)
        function = self._define(app, image, arguments)
        gang: Gang | None = None
        try:
            environment = self._connection.environment or None
            deploying = app.deploy.aio(client=client, environment_name=environment)
            await errors.bounded(deploying, _DEPLOY_SECONDS, "deploy the App")
            gang = self._inventory.add(app, arguments.tags)
            call = await errors.bounded(function.spawn.aio(), _CALL_SECONDS, "call the Function")
            tags = identity.with_call(arguments.tags, gang.id, call.object_id)
            await errors.bounded(app.set_tags.aio(tags, client=client), _CALL_SECONDS, "record the call")
        except errors.SDK_ERRORS as error:
            raise await self._undo(spec, gang, error) from error
        except asyncio.CancelledError as error:
            # Not interrupted again: a call that is not recorded would be found late.
            await asyncio.shield(self._undo(spec, gang, error))
            raise
        gang.tags = identity.decode_tags(tags)
        return await self._until_started(spec, arguments, gang)

    def _define(self, app: modal.App, image: modal.Image, arguments: GangArguments) -> modal.Function[[], None, None]:
        """Return the clustered Function of the App. Nothing is called. Raises Rejected."""
        try:
            return app.function(
                name=_FUNCTION,
                image=image,
                env=dict(arguments.env),
                gpu=arguments.gpu,
                cpu=arguments.cores,
                memory=arguments.memory_mib,
                timeout=arguments.timeout,
                startup_timeout=_STARTUP_SECONDS,
                region=arguments.region or None,
                volumes={mount.path: volume(mount, self._connection.environment) for mount in arguments.volumes},
                retries=0,
                min_containers=0,
                max_containers=arguments.size,
                single_use_containers=True,
                restrict_modal_access=True,
            )(modal.clustered(size=arguments.size)(_shim().run))
        except errors.SDK_ERRORS as error:
            raise Rejected("InvalidSpec", f"Modal's client rejects the gang: {errors.text(error)}.") from error

    async def _until_started(self, spec: LaunchSpec, arguments: GangArguments, gang: Gang) -> Instance:
        """Wait until all ranks have started, or until the gang has ended. A gang that waits too long is ended."""
        seconds = self._config.capacity_timeout
        wanted = f"{arguments.size} nodes with {arguments.gpu}"
        self.progress(spec.claim, "capacity", f"Modal looks for {wanted}, for at most {seconds:.0f} seconds.")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                state = await self._inventory.refresh(gang)
            except ProviderError as error:
                # The call is recorded, so the gang is found again whatever happens.
                log.debug("start of a gang not read, retried", extra={"instance": gang.id, "why": str(error)})
            else:
                if state.started is not None or state.exit is not None:
                    return self._inventory.instance(gang)
            await asyncio.sleep(_POLL_SECONDS)
        await self._end(gang)
        raise NoCapacity(f"Modal did not start all ranks on {wanted} in {seconds:.0f} seconds.")

    async def _undo(self, spec: LaunchSpec, deployed: Gang | None, error: BaseException) -> ProviderError:
        """Stop the App of a failed launch. Returns the error that the failure and the stop prove together.

        A listing may show the App late. Then nothing was called yet, or the App is known.
        """
        try:
            if deployed is not None:
                await self._end(deployed)
            for gang in await self._find(spec):
                await self._end(gang)
        except ProviderError as failure:
            return OutcomeUnknown(f"{errors.text(error)}. Modal does not say whether a gang is left: {failure}")
        return errors.of_preparation(error)

    async def _find(self, spec: LaunchSpec) -> list[Gang]:
        """Return the gangs of a claim whose App lives. Raises an error of `cloud.errors`."""
        apps = await self._apps.named(identity.gang_name(spec.cluster, spec.claim))
        found = [await self._inventory.find(app.app_id or "") for app in apps]
        return [gang for gang in found if gang is not None and gang.tags.claim in {spec.claim, ""}]

    async def _end(self, gang: Gang) -> None:
        """Stop the App of a launch that failed, and forget it. Raises OutcomeUnknown if it was not stopped."""
        gang.is_asked = True
        try:
            await self._inventory.stop(gang)
        except ProviderError as failure:
            raise OutcomeUnknown(f"App {gang.id} was not stopped: {failure}") from failure
        self._inventory.discard(gang)


@functools.cache
def _shim() -> ModuleType:
    """Return the shim as the module of a lone file: of a package, the SDK would upload every file."""
    spec = importlib.util.spec_from_file_location(SHIM.stem, SHIM)
    assert spec is not None, "the shim is a Python file"
    assert spec.loader is not None, "the shim is a Python file"
    module = importlib.util.module_from_spec(spec)
    # The SDK finds the file of a function by its module, and would pickle the function otherwise.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
