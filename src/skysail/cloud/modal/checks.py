"""Checks of an account, for `skysail doctor`. Each is one call or one short sandbox, and returns a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp
import modal
from yarl import URL

from skysail.cloud import outbound
from skysail.cloud.account import GpuRequest, LaunchSpec, Member
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.http_address import HttpAddress
from skysail.cloud.modal import errors, identity
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.connection import Connection
from skysail.cloud.modal.prices import AS_OF
from skysail.cloud.provider import Container, Pod

# Cluster of the sandboxes that checks create. It is nobody's UID, so no operator takes them for its own.
CHECK_CLUSTER = "00000000-0000-4000-8000-skysaildoctor"
_IMAGE = "python:3.12-slim"
_LIFETIME = 300.0
_POLL_SECONDS = 0.5
_DEPLOY_SECONDS = 120.0
_PORT = 8000
_SERVER = (
    "import http.server as h, threading, time\n"
    "print('ready', flush=True)\n"
    "h.test(h.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')"
)
# A new tunnel may need a moment until it answers.
_TUNNEL_SECONDS = 60.0
_REQUEST_SECONDS = 15.0
_OK = 200


class AccountChecks:
    """Checks of one account. Must be closed."""

    def __init__(self, credentials: Mapping[str, str], environment: str = "", image: str = _IMAGE) -> None:
        self._account = ModalAccount(credentials, cluster=CHECK_CLUSTER, environment=environment)
        self._connection = Connection(credentials, environment)
        self._image = image

    async def close(self) -> None:
        await self._account.close()
        await self._connection.close()

    async def hello(self) -> str:
        """Connect, and name the workspace. Raises an error of `cloud.errors`."""
        await self._account.offers()
        return f"Modal answers; the account is {self._account.account}."

    async def prices(self) -> str:
        """Describe the table of prices."""
        listed = await self._account.offers()
        return f"{len(listed.offers)} offers with prices of {AS_OF:%Y-%m-%d}; set modal_prices to change them."

    async def inventory(self) -> str:
        """List what earlier checks have left."""
        inventory = await self._account.list()
        left = sum(instance.state != "ended" for instance in inventory.instances)
        return "Sandboxes can be listed." if not left else f"Sandboxes can be listed; {left} of earlier checks run."

    async def sandbox(self, gpu: str = "") -> str:
        """Run a program that prints a nonce, in a sandbox with or without a GPU, and terminate it."""
        nonce = secrets.token_hex(8)
        spec = self._spec(("python3", "-c", f"print('{nonce}')"), gpu)
        instance = await self._account.create(spec)
        try:
            printed = b"".join([piece.data async for piece in self._account.output(instance.id)])
            if nonce.encode() not in printed:
                raise OutcomeUnknown(f"Sandbox {instance.id} ran, and its output is missing.")
            ended = await self._until_ended(instance.id)
        finally:
            await self._account.terminate(instance.id, 0)
        return f"A sandbox{' with ' + gpu if gpu else ''} printed its line and ended with code {ended}."

    async def port(self) -> str:
        """Connect to a port of a sandbox."""
        async with self._server() as instance:
            answer = await self._request(instance)
        return f"A port of a sandbox answered {answer!r}."

    async def tunnel(self) -> str:
        """Reach an HTTP server in a sandbox by its tunnel."""
        async with self._server() as instance:
            await check_tunnel(await self._account.http_address(instance, _PORT))
        return "A tunnel to a sandbox answered with its token, and not without."

    async def deploy(self) -> str:
        """Deploy an App without functions, which costs nothing, and stop it."""
        client = await self._connection.client()
        app = modal.App(f"{identity.app_prefix(CHECK_CLUSTER)}deploy-{secrets.token_hex(4)}")
        environment = self._connection.environment or None
        try:
            deploying = app.deploy.aio(client=client, environment_name=environment)
            await errors.bounded(deploying, _DEPLOY_SECONDS, "deploy an App")
            await errors.bounded(app.stop.aio(), _DEPLOY_SECONDS, "stop an App")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        return f"App {app.app_id} was deployed and stopped."

    @contextlib.asynccontextmanager
    async def _server(self) -> AsyncIterator[str]:
        """Run an HTTP server in a sandbox. Yields the sandbox when the server is ready."""
        instance = await self._account.create(self._spec(("python3", "-c", _SERVER)))
        try:
            async for piece in self._account.output(instance.id):
                if b"Serving" in piece.data or b"ready" in piece.data:
                    break
            yield instance.id
        finally:
            await self._account.terminate(instance.id, 0)

    async def _request(self, instance: str) -> str:
        connection = await self._account.dial(instance, _PORT)
        try:
            await connection.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return (await connection.read()).decode(errors="replace").partition("\r\n")[0]
        finally:
            await connection.close()

    async def _until_ended(self, instance: str) -> int:
        while (found := await self._account.get(instance)) is None or found.exit is None:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(_POLL_SECONDS)
        return found.exit.code

    def _spec(self, command: tuple[str, ...], gpu: str = "") -> LaunchSpec:
        name = f"doctor-{secrets.token_hex(8)}"
        pod = Pod(uid=name, namespace="doctor", name=name, hostname="doctor")
        return LaunchSpec(
            claim=name,
            cluster=CHECK_CLUSTER,
            members=(Member(pod, Container(name="main", image=self._image, command=command)),),
            gpus=GpuRequest(gpu) if gpu else None,
            max_lifetime=_LIFETIME,
        )


async def check_tunnel(address: HttpAddress) -> None:
    """Wait until the tunnel answers. Raises OutcomeUnknown if it does not, or if it answers without its token, too."""
    deadline = time.monotonic() + _TUNNEL_SECONDS
    while (status := await _status(address, dict(address.headers))) != _OK:
        if time.monotonic() > deadline:
            raise OutcomeUnknown(f"The tunnel answered {status or 'nothing'} instead of {_OK}.")
        await asyncio.sleep(_POLL_SECONDS)
    if await _status(address, {}) == _OK:
        raise OutcomeUnknown(f"The tunnel {address.url} answers without its token: end the sandbox.")


async def _status(address: HttpAddress, headers: Mapping[str, str]) -> int:
    """Return the status of one request, or 0 without an answer."""
    url, timeout = URL(address.url), aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        try:
            async with session.get(
                url, headers=headers, allow_redirects=False, ssl=address.verifies, proxy=outbound.http_proxy(url)
            ) as reply:
                return reply.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0
