"""Reconciler of SpendAccounts: builds the snapshot of an account for its plan. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from skysail.claims.limits.limits_reader import LimitsReader
from skysail.claims.limits.spend_account import SPEND_ACCOUNT, SpendAccount
from skysail.claims.plan import account
from skysail.claims.plan.account import AccountSnapshot
from skysail.claims.types import CLOUD_INSTANCE, CloudInstance
from skysail.core.actions import Event, Plan
from skysail.kube.api.objects import Key, Object
from skysail.kube.cache.cache import Cache
from skysail.kube.client.client import Client
from skysail.kube.client.errors import KubeError, NotFound


class SpendAccountReconciler:
    """Reconciler of SpendAccounts. Claims write reservations and costs; this reconciler releases what is left over."""

    resource = SPEND_ACCOUNT.resource

    def __init__(
        self, client: Client, limits: LimitsReader, claims: Cache[CloudInstance], now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._limits = limits
        self._claims = claims
        self._now = now

    async def observe(self, key: Key) -> AccountSnapshot | None:
        found = self._limits.accounts.get(key)
        if found is None:
            return None
        absent = await self._absent_claims(found)
        is_known = not self._limits.unknown_policies(key.name)
        return AccountSnapshot(
            object=found,
            now=self._now(),
            budgets=self._limits.limits(key.name).budgets if is_known else None,
            absent_claims=absent,
        )

    def plan(self, snapshot: AccountSnapshot) -> Plan:
        return account.plan(snapshot)

    def on_rejected(self, snapshot: AccountSnapshot, event: Event) -> Plan:
        return account.rejected(snapshot, event)

    async def _absent_claims(self, found: SpendAccount) -> frozenset[str]:
        """Ask the API server for each claim that the cache lacks: it may have been created a moment ago."""
        missing = [
            reservation.claim
            for reservation in found.status.reservations
            if self._claims.get(Key("", reservation.claim)) is None
        ]
        return frozenset([name for name in missing if await self._is_absent(name)])

    async def _is_absent(self, name: str) -> bool:
        try:
            await self._client.get(CLOUD_INSTANCE.resource, "", name, Object)
        except NotFound:
            return True
        except KubeError:
            return False
        return False
