"""Publishes the offers of all clouds in a ConfigMap, for commands that have no account at a cloud.

Each provider has a key, with its offers as JSON. The leader writes the ConfigMap only if offers or prices changed, so
the time of a list is the time since which its prices are unchanged.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from skysail.claims.tracking.offer_catalogue import OfferCatalogue
from skysail.cloud.offers import OfferList
from skysail.kube.api.objects import Object
from skysail.kube.api.rbac import PolicyRule
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound

NAME = "skysail-offers"
NAMESPACE_POLICY_RULES = (
    PolicyRule(CONFIG_MAP, ("create",)),
    PolicyRule(CONFIG_MAP, ("get", "patch"), names=(NAME,)),
)
_RETRY_SECONDS = 10.0

log = logging.getLogger(__name__)


class OffersPage(Object, frozen=True, gc=False):
    """The ConfigMap `skysail-offers`."""

    data: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def lists(self) -> dict[str, OfferList]:
        """Return the offers by provider. A key that cannot be decoded is left out."""
        found = {}
        for provider, text in self.data.items():
            try:
                found[provider] = msgspec.json.decode(text, type=OfferList)
            except msgspec.MsgspecError as error:
                log.warning("published offers unreadable", extra={"cloud": provider, "why": str(error)})
        return found


class OfferPublisher:
    """Writes the offers of the catalogue into the operator's namespace."""

    def __init__(self, client: Client, namespace: str, catalogue: OfferCatalogue) -> None:
        self._client = client
        self._namespace = namespace
        self._catalogue = catalogue
        self._changed = asyncio.Event()
        catalogue.on_change(self._changed.set)

    async def run(self) -> None:
        """Publish after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.publish()
            except KubeError as error:
                log.info("offers not published, retried", extra={"why": str(error)})
                self._changed.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def publish(self) -> None:
        """Write the lists that differ from the published ones. Keep those of clouds whose offers are unknown."""
        try:
            published = (await self._client.get(CONFIG_MAP, self._namespace, NAME, OffersPage)).lists
        except NotFound:
            published = None
        current = self._catalogue.current()
        data = {
            provider: msgspec.json.encode(listed).decode()
            for provider, listed in current.items()
            if published is None or provider not in published or not published[provider].has_same_prices(listed)
        }
        if published is None and data:
            metadata = {"name": NAME, "namespace": self._namespace}
            manifest = {"apiVersion": CONFIG_MAP.api_version, "kind": CONFIG_MAP.kind, "metadata": metadata}
            await self._client.create(CONFIG_MAP, {**manifest, "data": data}, OffersPage)
        elif data:
            await self._client.merge_patch(CONFIG_MAP, self._namespace, NAME, {"data": data}, OffersPage)
