"""The sweeper: ends what the account runs in our name without a claim. What is not ours is never touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from skysail.base import tasks
from skysail.claims.dependencies import Surroundings
from skysail.claims.tracking.inventory import Listings
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.cloud.account import Instance
from skysail.core.actions import End
from skysail.core.fence import Fenced
from skysail.kube.api.objects import Key
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

# An end that takes its time is not asked for at every sweep.
_ASK_AGAIN = 300.0
_MOST_NAMES = 3

log = logging.getLogger(__name__)


def orphans(instances: Iterable[Instance], cluster: str, claims: Callable[[str], bool]) -> list[Instance]:
    """Living instances that carry our cluster's name, and a claim that does not exist. Without any claim: not ours."""
    alive = [instance for instance in instances if instance.cluster == cluster and instance.state != "ended"]
    return [instance for instance in alive if instance.claim and not claims(instance.claim)]


class Sweeper:
    """Of one cloud. An orphan ends `grace` seconds after it was made, if every listing of the last time showed it.

    Not before it was seen for as long as listings may be wrong. A process that begins anew forgets only that.
    """

    def __init__(
        self,
        client: Client,
        listings: Listings,
        claims: Cache[CloudInstance],
        *,
        grace: float,
        around: Surroundings,
    ) -> None:
        self._client = client
        self._listings = listings
        self._claims = claims
        self._grace = grace
        self._clock = around.clock
        self._now = around.now
        self._since: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    @property
    def complaint(self) -> str:
        """What runs at the cloud without a claim, as a sentence; empty where nothing does.

        A listing may show for a while what has ended with its claim: that is not complained of.
        """
        certain = self._clock() - self._listings.cloud.terms.visibility
        strays = sorted(id_ for id_, since in self._since.items() if since <= certain)
        if not strays:
            return ""
        what = "instance runs" if len(strays) == 1 else "instances run"
        ids = ", ".join(strays[:_MOST_NAMES])
        more = f" and {len(strays) - _MOST_NAMES} more" if len(strays) > _MOST_NAMES else ""
        return (
            f"{len(strays)} {what} there in this cluster's name without a claim, and may be paid for: {ids}{more}. "
            f"Skysail ends what is older than {self._grace:.0f} s."
        )

    async def run(self, end: Callable[[End], None]) -> None:
        """Until cancelled. `end` performs an effect, behind the fence."""
        await self._claims.synced.wait()
        while True:
            await tasks.survive(self._sweep_as_leader(end), f"sweep of {self._listings.cloud.name}")
            await asyncio.sleep(self._listings.cloud.terms.tick)

    async def sweep(self, end: Callable[[End], None]) -> None:
        if self._listings.latest is None or self._listings.outage:
            return
        if self._claims.unreadable or not self._claims.synced.is_set():
            return  # a claim that cannot be read is a claim
        found = orphans(self._listings.latest.instances, self._listings.cluster, self._is_claimed)
        now = self._clock()
        self._since = {instance.id: self._since.get(instance.id, now) for instance in found}
        self._asked = {id_: at for id_, at in self._asked.items() if id_ in self._since and now - at < _ASK_AGAIN}
        for instance in found:
            if self._is_due(instance, now - self._since[instance.id]) and instance.id not in self._asked:
                await self._end_orphan(instance, end)

    async def _sweep_as_leader(self, end: Callable[[End], None]) -> None:
        try:
            await self.sweep(end)
        except Fenced:
            log.debug("no sweep, another process leads")

    async def _end_orphan(self, instance: Instance, end: Callable[[End], None]) -> None:
        if not await self._is_orphan(instance):
            return
        cloud = self._listings.cloud.name
        extra = {"cloud": cloud, "instance": instance.id, "claim": instance.claim}
        log.warning("ending an instance without a claim", extra=extra)
        end(End(cloud, instance.id, 0.0))
        self._asked[instance.id] = self._clock()

    def _is_due(self, instance: Instance, seen: float) -> bool:
        age = self._now().timestamp() - instance.created
        return seen >= self._grace or (age >= self._grace and seen >= self._listings.cloud.terms.visibility)

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
