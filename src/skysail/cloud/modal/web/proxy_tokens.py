"""Proxy tokens: web Apps answer only to callers with a token of the workspace.

Modal shows the secret of a token once. So each process has a token of its own, replaces it after some days, and
deletes it at its end. Tokens of processes that crashed are deleted after a month.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

import modal

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal import errors
from skysail.cloud.modal.connection import Connection

_CALL_SECONDS = 20.0
_REPLACED_AFTER = 7 * 24 * 3600.0
_DELETED_AFTER = 30 * 24 * 3600.0

log = logging.getLogger(__name__)


class ProxyTokens:
    """The token of this process. Must be closed."""

    def __init__(self, connection: Connection, cluster: str, now: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._prefix = f"skysail-{cluster[:8]}-"
        self._now = now
        self._id = ""
        self._headers: tuple[tuple[str, str], ...] = ()
        self._created = 0.0
        self._lock = asyncio.Lock()

    async def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of an authorized request. Raises an error of `cloud.errors`."""
        async with self._lock:
            if not self._headers or self._now() - self._created > _REPLACED_AFTER:
                await self._create()
            return self._headers

    async def close(self) -> None:
        if self._id:
            try:
                client = await self._connection.client()
                await self._delete(modal.Workspace.from_context(client=client), self._id)
            except (ProviderError, *errors.SDK_ERRORS) as error:
                # A token that stays is deleted after a month.
                log.debug("proxy token not deleted", extra={"why": str(error)})

    async def _create(self) -> None:
        workspace = modal.Workspace.from_context(client=await self._connection.client())
        try:
            creating = workspace.proxy_tokens.create.aio(name=self._prefix + secrets.token_hex(4))
            token = await errors.bounded(creating, _CALL_SECONDS, "create a proxy token")
        except errors.SDK_ERRORS as error:
            raise errors.of_read(error) from error
        self._id, self._created = token.token_id, self._now()
        self._headers = (("Modal-Key", token.token_id), ("Modal-Secret", token.token_secret))
        await self._delete_old(workspace)

    async def _delete_old(self, workspace: modal.Workspace) -> None:
        try:
            listing = workspace.proxy_tokens.list.aio()
            listed = await errors.bounded(listing, _CALL_SECONDS, "list its proxy tokens")
            for token in listed:
                is_ours = (token.name or "").startswith(self._prefix)
                if is_ours and self._now() - token.created_at.timestamp() > _DELETED_AFTER:
                    await self._delete(workspace, token.token_id)
        except errors.SDK_ERRORS as error:
            log.info("old proxy tokens not deleted, retried", extra={"why": errors.text(error)})

    async def _delete(self, workspace: modal.Workspace, token_id: str) -> None:
        await errors.bounded(workspace.proxy_tokens.delete.aio(token_id), _CALL_SECONDS, "delete a proxy token")
