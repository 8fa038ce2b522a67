"""The sweeper: ends what the account runs in our name without a claim. What is not ours is never touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from skysail.claims.listings import Listings
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.instances import Instance
from skysail.core.actions import End
from skysail.core.fence import Fenced
from skysail.kube.cache import Cache
from skysail.kube.client import Client
from skysail.kube.errors import KubeError, NotFound
from skysail.kube.objects import Key

log = logging.getLogger(__name__)


def orphans(instances: Iterable[Instance], cluster: str, claims: Callable[[str], bool]) -> list[Instance]:
    """Living instances that carry our cluster's name, and a claim that does not exist. Without any claim: not ours."""
    alive = [instance for instance in instances if instance.cluster == cluster and instance.state != "ended"]
    return [instance for instance in alive if instance.claim and not claims(instance.claim)]


class Sweeper:
    """Of one cloud. An orphan ends when it was seen for `grace` seconds, in every listing of that time."""

    def __init__(
        self,
        client: Client,
        listings: Listings,
        claims: Cache[CloudInstance],
        *,
        grace: float,
        clock: Callable[[], float],
        end: Callable[[End], Awaitable[None]],
    ) -> None:
        self._client = client
        self._listings = listings
        self._claims = claims
        self._grace = grace
        self._clock = clock
        self._end = end
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        await self._claims.synced.wait()
        while True:
            try:
                await self.sweep()
            except Fenced:
                log.debug("no sweep, another process leads")
            await asyncio.sleep(self._listings.cloud.terms.tick)

    async def sweep(self) -> None:
        if self._listings.latest is None or self._listings.outage:
            return
        found = orphans(self._listings.latest.instances, self._listings.cluster, self._is_claimed)
        now = self._clock()
        self._since = {instance.id: self._since.get(instance.id, now) for instance in found}
        for instance in found:
            if now - self._since[instance.id] >= self._grace and await self._is_orphan(instance):
                log.warning(
                    "ending an instance without a claim",
                    extra={"cloud": self._listings.cloud.name, "instance": instance.id, "claim": instance.claim},
                )
                await self._end(End(self._listings.cloud.name, instance.id, 0.0))

    def _is_claimed(self, name: str) -> bool:
        return self._claims.get(Key("", name)) is not None

    async def _is_orphan(self, instance: Instance) -> bool:
        """The API server itself is asked: a cache may be late. What it does not say is not so."""
        try:
            await self._client.get(CLOUD_INSTANCE.resource, "", instance.claim, CloudInstance)
        except NotFound:
            return True
        except KubeError as error:
            log.info("not swept", extra={"instance": instance.id, "why": str(error)})
        return False
