"""Offers of all clouds, polled every few minutes. A failed poll keeps the list of the last successful one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from skysail.base import tasks as base_tasks
from skysail.cloud.account import CloudAccount
from skysail.cloud.errors import ProviderError
from skysail.cloud.offers import OfferList

_POLL_SECONDS = 300.0
# Poll sooner after a failure: nothing is launched at a cloud whose offers are unknown.
_RETRY_SECONDS = 30.0
_TIMEOUT_SECONDS = 30.0

log = logging.getLogger(__name__)


class OfferCatalogue:
    """Offers by cloud. A cloud that is missing has not listed its offers since this process started."""

    def __init__(self, accounts: Mapping[str, CloudAccount]) -> None:
        self._accounts = accounts
        self._lists: dict[str, OfferList] = {}
        # Clouds whose last poll failed.
        self._failed: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        self._polls = {name: asyncio.Lock() for name in accounts}

    def current(self) -> Mapping[str, OfferList]:
        """Return the offers of the clouds whose offers are known."""
        return dict(self._lists)

    def on_change(self, enqueue: Callable[[], None]) -> None:
        """Call `enqueue` after each poll that found other offers or other prices."""
        self._listeners.append(enqueue)

    async def find(self, cloud: str) -> OfferList | None:
        """Return the offers of a cloud, polled now if they are unknown. Returns None if they stay unknown."""
        if cloud not in self._lists and cloud in self._accounts:
            await self.poll(cloud)
        return self._lists.get(cloud)

    async def run(self) -> None:
        """Poll all clouds until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._accounts:
                group.create_task(self._run(name))

    async def poll(self, cloud: str) -> None:
        """Poll one cloud. Concurrent calls wait for each other."""
        async with self._polls[cloud]:
            self._failed.add(cloud)
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    listed = await self._accounts[cloud].offers()
            except (ProviderError, TimeoutError) as error:
                why = str(error) or f"no answer in {_TIMEOUT_SECONDS:.0f} seconds"
                log.warning("offers not listed, old ones kept", extra={"cloud": cloud, "why": why})
                return
            self._failed.discard(cloud)
            old, self._lists[cloud] = self._lists.get(cloud), listed
        if old is None or not old.has_same_prices(listed):
            for enqueue in self._listeners:
                enqueue()

    async def _run(self, cloud: str) -> None:
        while True:
            await base_tasks.run_logged(self.poll(cloud), f"poll of the offers of {cloud}")
            await asyncio.sleep(_RETRY_SECONDS if cloud in self._failed else _POLL_SECONDS)
