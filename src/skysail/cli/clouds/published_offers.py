"""Offers of the clouds, as the operator publishes them in a ConfigMap of its namespace."""

from __future__ import annotations

import msgspec

from skysail.base.errors import UserError
from skysail.claims.tracking.offer_publisher import NAME, OffersPage
from skysail.cloud.offers import OfferList
from skysail.kube.api.resources import CONFIG_MAP
from skysail.kube.client.client import Client
from skysail.kube.client.errors import Forbidden


class OffersMissing(UserError):
    """The offers cannot be read. The message says why and what to do."""

    exit_code = 1


async def read(client: Client, namespace: str) -> dict[str, OfferList]:
    """Return the offers by provider. The time of a list is the time since which its prices are unchanged.

    Raises OffersMissing if they are not published, or not readable for this user.
    """
    place = f"ConfigMap {NAME} in namespace {namespace}"
    try:
        found = await client.find(CONFIG_MAP, namespace, NAME, OffersPage)
    except Forbidden as error:
        raise OffersMissing(f"You may not read {place}: ask for the right to get it.") from error
    if found is None:
        raise OffersMissing(
            f"No offers are published: {place} does not exist. Check that an operator with an account at a cloud runs"
            " there (`--operator-namespace` names another namespace)."
        )
    try:
        return {provider: msgspec.json.decode(text, type=OfferList) for provider, text in sorted(found.data.items())}
    except msgspec.MsgspecError as error:
        raise OffersMissing(
            f"{place} cannot be decoded: {error}. Use a skysail command of the operator's version."
        ) from error
