"""Connection to Modal: one client per set of credentials, kept for the life of the process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import modal
import modal.config

from skysail.cloud.errors import OutcomeUnknown, ProviderError
from skysail.cloud.modal import errors, internals

TOKEN_ID = "token_id"  # noqa: S105 (the name of a field)
TOKEN_SECRET = "token_secret"  # noqa: S105 (the name of a field)

_CONNECT_SECONDS = 15.0
_CALL_SECONDS = 20.0
# After a failure, callers get the same error for this long instead of a connection attempt each.
_FAILURE_SECONDS = 3.0
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}

log = logging.getLogger(__name__)


class Connection:
    """Client of one workspace and environment. New credentials replace the client at the next call.

    An old client stays open until the process ends, so that streams that use it can finish.
    """

    def __init__(self, credentials: Mapping[str, str], environment: str) -> None:
        self.environment = environment
        self._credentials = dict(credentials)
        self._client: modal.Client | None = None
        self._workspace = ""
        self._clients: list[modal.Client] = []
        self._lock = asyncio.Lock()
        self._failure: tuple[float, ProviderError] | None = None

    @property
    def account(self) -> str:
        """Return workspace and environment, or an empty string while the workspace is unknown."""
        return f"{self._workspace}/{self.environment or 'default'}" if self._workspace else ""

    @property
    def is_stand_in(self) -> bool:
        """Return whether the SDK's server is on this machine: a Unix socket, or an address of loopback."""
        url = urlsplit(modal.config.config["server_url"])
        return url.scheme == "unix" or url.hostname in _LOOPBACK

    def set_credentials(self, credentials: Mapping[str, str]) -> None:
        """Use these credentials from the next call on."""
        self._credentials = dict(credentials)
        self._client, self._failure = None, None
        log.info("credentials of modal changed, client replaced")

    async def client(self) -> modal.Client:
        """Return the client, connected. Raises OutcomeUnknown if Modal is unreachable or rejects the token."""
        async with self._lock:
            while self._client is None:
                self._check_recent_failure()
                await self._connect()
            return self._client

    async def close(self) -> None:
        for client in self._clients:
            try:
                await errors.bounded(internals.close_client(client), _CALL_SECONDS, "close the connection")
            except errors.SDK_ERRORS as error:
                log.debug("client of modal not closed", extra={"why": errors.text(error)})

    def _check_recent_failure(self) -> None:
        if self._failure is not None and time.monotonic() - self._failure[0] < _FAILURE_SECONDS:
            raise OutcomeUnknown(str(self._failure[1]))

    async def _connect(self) -> None:
        """Set the client and the workspace, or nothing if the credentials were changed meanwhile."""
        credentials = self._credentials
        try:
            opening = modal.Client.from_credentials.aio(credentials[TOKEN_ID], credentials[TOKEN_SECRET])
            client = await errors.bounded(opening, _CONNECT_SECONDS, "accept a connection")
            self._clients.append(client)
            workspace = modal.Workspace.from_context(client=client)
            await errors.bounded(workspace.hydrate.aio(), _CALL_SECONDS, "name the workspace")
        except errors.SDK_ERRORS as error:
            if credentials is not self._credentials:
                return
            failure = errors.of_read(error)
            self._failure = (time.monotonic(), failure)
            raise OutcomeUnknown(str(failure)) from error
        if credentials is self._credentials:
            self._client, self._workspace = client, workspace.name or "unnamed"
