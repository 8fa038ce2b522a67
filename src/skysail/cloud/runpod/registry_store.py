"""Registry credentials at RunPod, made from pull secrets. Each has our prefix, and is removed when no pod uses it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection

from skysail.cloud.account import RegistryCredentials
from skysail.cloud.errors import Gone, OutcomeUnknown, ProviderError, Rejected
from skysail.cloud.runpod import api, marks
from skysail.cloud.runpod.client import RunPodClient
from skysail.cloud.runpod.rate_budget import DEFERRABLE, NORMAL

# A credential that is used by no pod is kept this long, because a launch may be about to use it.
_UNUSED_SECONDS = 900.0
_DIGEST_LENGTH = 16

log = logging.getLogger(__name__)


class RegistryStore:
    """Credentials of this cluster at one account. `clock` is monotonic."""

    def __init__(self, client: RunPodClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._ids: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._checked = clock()
        self._lock = asyncio.Lock()  # one creation at a time: the service rejects a name that it has

    async def ensure(self, cluster: str, credentials: RegistryCredentials) -> str:
        """Return the id of the credential with this user and password, created if necessary.

        The name has a digest of all values, so that a changed password is another credential, and a credential whose
        creation was answered by an error is found again. Raises `Throttled` at once if the request quota is used up,
        because a launch waits for the credential.
        """
        name = marks.registry_name(cluster, _digest(credentials))
        async with self._lock:
            if name not in self._ids:
                await self._refresh(cluster)
            if name not in self._ids:
                await self._create(cluster, name, credentials)
            self._used[name] = self._clock()
            return self._ids[name]

    async def collect(self, cluster: str, used_ids: Collection[str]) -> None:
        """Delete the credentials of this cluster that no pod has used for long. Others are never touched."""
        now = self._clock()
        if not cluster or now < self._checked + _UNUSED_SECONDS:
            return
        self._checked = now
        try:
            await self._refresh(cluster, reserve=DEFERRABLE)
            for name, id_ in list(self._ids.items()):
                if id_ in used_ids:
                    self._used[name] = now
                elif now >= self._used.setdefault(name, now) + _UNUSED_SECONDS:
                    await self._delete_unused(name, id_)
        except ProviderError as error:
            log.info("registry credentials not collected, retried", extra={"why": str(error)})

    async def has(self, cluster: str, id_: str) -> bool:
        """Return whether the account still has a credential. One that somebody has deleted is created again."""
        async with self._lock:
            await self._refresh(cluster)
            return id_ in self._ids.values()

    async def _create(self, cluster: str, name: str, credentials: RegistryCredentials) -> None:
        """Create a credential. It may exist after an error: by this request, or by another process."""
        body = api.CreateRegistry(name=name, username=credentials.username, password=credentials.password)
        try:
            self._ids[name] = (await self._client.create_registry(body)).id
        except (OutcomeUnknown, Rejected):
            await self._refresh(cluster)
            if name not in self._ids:
                raise

    async def _delete_unused(self, name: str, id_: str) -> None:
        """Delete a credential. The service keeps one that a pod uses, whatever its list of pods shows."""
        try:
            await self._delete(name, id_)
        except Rejected as error:
            log.debug("registry credential not deleted", extra={"registry": id_, "why": str(error)})

    async def _delete(self, name: str, id_: str) -> None:
        try:
            await self._client.delete_registry(id_)
        except Gone:
            log.debug("registry credential already deleted", extra={"registry": id_})
        self._ids.pop(name, None)
        self._used.pop(name, None)

    async def _refresh(self, cluster: str, *, reserve: int = NORMAL) -> None:
        rows = await self._client.registries(reserve=reserve)
        self._ids = {row.name: row.id for row in rows if marks.is_own_registry(row.name, cluster)}


def _digest(credentials: RegistryCredentials) -> str:
    text = f"{credentials.registry}\0{credentials.username}\0{credentials.password}"
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
