"""Credentials of clouds: from a Secret in the operator's namespace, else from the environment.

The Secret comes first, because its changes are seen without a restart of the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from skysail.kube.api.resources import SECRET
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

_POLL_SECONDS = 15.0

log = logging.getLogger(__name__)

# Values by field, such as {"token_id": "ak-…"}. They never appear in a log.
Credentials = Mapping[str, str]


class CredentialFields(msgspec.Struct, frozen=True, kw_only=True):
    """Names under which the credentials of one cloud are stored.

    `secret`: name of the Secret. `keys`: accepted keys of the Secret by field. `variables`: environment variables.
    """

    secret: str
    keys: Mapping[str, tuple[str, ...]]
    variables: Mapping[str, tuple[str, ...]]


class CredentialsUnreadable(Exception):
    """The API server did not answer, so it is unknown whether there are credentials. The message has the reason."""


class _Secret(msgspec.Struct):
    data: dict[str, bytes] | None = None


class CredentialReader:
    """Reads credentials at each call."""

    def __init__(self, client: Client, namespace: str, environment: Mapping[str, str]) -> None:
        self._client = client
        self._namespace = namespace
        self._environment = environment

    async def read(self, fields: CredentialFields) -> Credentials | None:
        """Return the credentials, or None if there are none or a field is missing.

        Raises `CredentialsUnreadable` if the API server does not answer.
        """
        try:
            secret = await self._client.get(SECRET, self._namespace, fields.secret, _Secret)
        except NotFound:
            return from_environment(fields, self._environment)
        except KubeError as error:
            raise CredentialsUnreadable(f"Secret {self._namespace}/{fields.secret} cannot be read: {error}") from error
        texts = {key: value.decode(errors="replace").strip() for key, value in (secret.data or {}).items()}
        return _select(fields.keys, texts) or from_environment(fields, self._environment)


def from_environment(fields: CredentialFields, environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in environment variables, or None if one is missing."""
    return _select(fields.variables, environment)


def _select(names: Mapping[str, tuple[str, ...]], values: Mapping[str, str]) -> Credentials | None:
    found = {field: next((values[name] for name in known if values.get(name)), "") for field, known in names.items()}
    return found if all(found.values()) else None


class CredentialWatch:
    """Polls the credentials of one cloud. `changed` gets each new value.

    Credentials that disappear are ignored: the account still has to terminate its instances.
    `is_awaited`: the caller could not read them. Then `changed` gets the first answer also if there are none: `{}`.
    """

    def __init__(
        self,
        reader: CredentialReader,
        fields: CredentialFields,
        current: Credentials | None,
        changed: Callable[[Credentials], None],
        *,
        is_awaited: bool = False,
    ) -> None:
        self._reader = reader
        self._fields = fields
        self._current = current
        self._changed = changed
        self._is_awaited = is_awaited

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await self.poll()

    async def poll(self) -> None:
        try:
            found = await self._reader.read(self._fields)
        except CredentialsUnreadable as error:
            log.debug("credentials not read, retried", extra={"secret": self._fields.secret, "why": str(error)})
            return
        is_news = found is not None and found != self._current
        if is_news or self._is_awaited:
            self._is_awaited, self._current = False, found
            self._changed(found or {})
