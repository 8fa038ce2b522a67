"""Creation of sandboxes. Each step before the creation can be repeated; the creation itself happens once per claim."""

from __future__ import annotations

import logging
import time

import modal
from modal import exception

from skysail.cloud.account import Instance, LaunchProgress, LaunchSpec, RegistryCredentials, Timings
from skysail.cloud.errors import NoCapacity, OutcomeUnknown, ProviderError, Throttled
from skysail.cloud.modal import errors, identity, launch
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.inventory import SandboxInventory, detach
from skysail.cloud.modal.launch import SandboxArguments
from skysail.cloud.modal.prices import PriceTable

_CALL_SECONDS = 30.0
_IMAGE_SECONDS = 3600.0
# A sandbox without GPUs is created at once; one with GPUs waits for capacity.
_CREATE_SECONDS = 120.0
_TERMINATE_SECONDS = 60.0

log = logging.getLogger(__name__)


class SandboxLauncher:
    """Creates sandboxes. `progress` gets each step of each creation."""

    def __init__(
        self,
        connection: Connection,
        inventory: SandboxInventory,
        *,
        prices: PriceTable,
        timings: Timings,
        capacity_timeout: float,
        shared_volumes: tuple[str, ...] = (),
    ) -> None:
        self._connection = connection
        self._inventory = inventory
        self._prices = prices
        self._timings = timings
        self._capacity_timeout = capacity_timeout
        self._shared_volumes = shared_volumes
        self.progress: LaunchProgress = lambda _claim, _step, _message: None

    async def create(self, spec: LaunchSpec) -> Instance:
        """Create the sandbox of a claim, or adopt the one that an earlier call has created, even if it has ended."""
        arguments = launch.sandbox_arguments(
            spec, self._prices, self._timings, now=time.time(), shared_volumes=self._shared_volumes
        )
        try:
            client = await self._connection.client()
        except OutcomeUnknown as error:
            raise Throttled(str(error), _CALL_SECONDS) from error
        self.progress(spec.claim, "image", f"Modal prepares image {arguments.image}.")
        app, built = await prepare_image(self._connection, client, arguments.app, spec)
        assert app.app_id, "an App that was looked up has an id"
        self._inventory.add_app(arguments.app, app.app_id)
        return await self._finished(client, spec, app.app_id) or await self._create(client, spec, arguments, app, built)

    async def _finished(self, client: modal.Client, spec: LaunchSpec, app_id: str) -> Instance | None:
        """Return the sandbox of an earlier call whose answer was lost and whose program has ended.

        Modal keeps names unique among running sandboxes only, so the name alone would let the program run again.
        """
        try:
            instance = await self._inventory.finished(client, app_id, spec.claim)
        except ProviderError as error:
            raise Throttled(f"Modal does not say whether the program has run before: {error}", _CALL_SECONDS) from error
        if instance is None or instance.cluster != spec.cluster:
            return None
        log.info("ended sandbox adopted", extra={"claim": spec.claim, "instance": instance.id})
        return instance

    async def _create(
        self,
        client: modal.Client,
        spec: LaunchSpec,
        arguments: SandboxArguments,
        app: modal.App,
        image: modal.Image,
    ) -> Instance:
        deadline = self._capacity_timeout if arguments.gpu else _CREATE_SECONDS
        tags = {**arguments.tags, "app": app.app_id or ""}
        if arguments.gpu:
            message = f"Modal looks for {arguments.gpu}, for at most {deadline:.0f} seconds."
            self.progress(spec.claim, "capacity", message)
        try:
            creating = modal.Sandbox.create.aio(
                *arguments.argv,
                app=app,
                name=arguments.name,
                tags=tags,
                image=image,
                env=dict(arguments.env),
                timeout=arguments.timeout,
                workdir=arguments.workdir or None,
                gpu=arguments.gpu or None,
                region=arguments.region or None,
                cpu=arguments.cores,
                memory=arguments.memory_mib,
                volumes={mount.path: volume(mount, self._connection.environment) for mount in arguments.volumes},
                pty=arguments.has_tty,
                client=client,
            )
            sandbox = await errors.bounded(creating, deadline, "create the sandbox")
        except exception.AlreadyExistsError as error:
            return await self._adopt(client, arguments, spec, error)
        except errors.SDK_ERRORS as error:
            raise await self._failure(client, arguments, error) from error
        await detach(sandbox)
        return self._inventory.created(sandbox.object_id, tags)

    async def _adopt(
        self, client: modal.Client, arguments: SandboxArguments, spec: LaunchSpec, error: Exception
    ) -> Instance:
        """Return the running sandbox with the name of the claim: an earlier call created it."""
        sandbox_id = await self._find(client, arguments)
        instance = await self._inventory.get(sandbox_id) if sandbox_id else None
        if instance is None or (instance.claim, instance.cluster) != (spec.claim, spec.cluster):
            raise OutcomeUnknown(f"Another sandbox has the name {arguments.name}: {errors.text(error)}.") from error
        log.info("sandbox adopted by name", extra={"claim": spec.claim, "instance": instance.id})
        return instance

    async def _failure(self, client: modal.Client, arguments: SandboxArguments, error: Exception) -> ProviderError:
        """Return the error of a failed creation, after a check that no sandbox is left if one may wait.

        The SDK creates one with GPUs or a terminal, and then waits for its machine, so every error may come after the
        creation. It terminates a sandbox that was not scheduled in time, but hides whether that worked.
        """
        failure = errors.of_creation(error)
        if _is_without_capacity(arguments, error):
            wanted = arguments.gpu or "a sandbox"
            failure = NoCapacity(f"Modal has no capacity for {wanted}: {errors.text(error)}.")
        elif not (arguments.gpu or arguments.has_tty) or isinstance(failure, OutcomeUnknown):
            return failure
        try:
            sandbox_id = await self._find(client, arguments)
            if sandbox_id:
                await self._terminate(client, sandbox_id)
        except ProviderError as problem:
            return OutcomeUnknown(f"{failure} Modal does not say whether a sandbox is left: {problem}")
        return failure

    async def _find(self, client: modal.Client, arguments: SandboxArguments) -> str:
        """Return the id of the running sandbox with this name, or an empty string."""
        try:
            sandbox = await errors.bounded(
                modal.Sandbox.from_name.aio(
                    arguments.app,
                    identity.sandbox_name(arguments.name),
                    environment_name=self._connection.environment or None,
                    client=client,
                ),
                _CALL_SECONDS,
                "find the sandbox by its name",
            )
        except exception.NotFoundError:
            return ""
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        await detach(sandbox)
        return sandbox.object_id

    async def _terminate(self, client: modal.Client, sandbox_id: str) -> None:
        try:
            sandbox = await errors.bounded(
                modal.Sandbox.from_id.aio(sandbox_id, client=client), _CALL_SECONDS, "look up the sandbox"
            )
            await errors.bounded(sandbox.terminate.aio(wait=True), _TERMINATE_SECONDS, "terminate the sandbox")
        except exception.NotFoundError:
            return
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        await detach(sandbox)


def _is_without_capacity(arguments: SandboxArguments, error: Exception) -> bool:
    if isinstance(error, exception.ResourceExhaustedError):
        return "capacity" in str(error).casefold()
    return bool(arguments.gpu) and isinstance(error, TimeoutError)


async def prepare_image(
    connection: Connection, client: modal.Client, app_name: str, spec: LaunchSpec
) -> tuple[modal.App, modal.Image]:
    """Look up the App and build the image. Nothing is billed yet, so every error proves that nothing exists."""
    try:
        app = await errors.bounded(
            modal.App.lookup.aio(
                app_name,
                client=client,
                environment_name=connection.environment or None,
                create_if_missing=True,
            ),
            _CALL_SECONDS,
            "open the App",
        )
        built = image(spec.container.image, spec.registry_credentials)
        await errors.bounded(built.build.aio(app), _IMAGE_SECONDS, "build the image")
    except errors.SDK_ERRORS as error:
        raise errors.of_preparation(error) from error
    return app, built


def image(name: str, credentials: RegistryCredentials | None) -> modal.Image:
    """Return the image without its ENTRYPOINT: the launch spec has the whole command line."""
    secret = None
    if credentials is not None:
        secret = modal.Secret.from_dict(
            {"REGISTRY_USERNAME": credentials.username, "REGISTRY_PASSWORD": credentials.password}
        )
    return modal.Image.from_registry(name, secret=secret).entrypoint([])


def volume(mount: launch.VolumeMount, environment: str) -> modal.Volume:
    """Return the Modal Volume of a mount. A shared one belongs to others, so it is not created."""
    found = modal.Volume.from_name(
        mount.name, environment_name=environment or None, create_if_missing=not mount.is_shared
    )
    return found.with_mount_options(read_only=True) if mount.is_read_only else found
