"""Launch specs of claims, as the nodes of this process provided them. Never persisted, because they hold secrets."""

from __future__ import annotations

from collections.abc import Callable

from skysail.cloud.account import Order


class Orders:
    """Launch specs by claim. `changed` gets the name of each claim that receives one."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._orders: dict[str, Order] = {}
        self._changed = changed

    def get(self, claim: str) -> Order | None:
        return self._orders.get(claim)

    def put(self, order: Order) -> None:
        self._orders[order.claim] = order
        self._changed(order.claim)

    def forget(self, claim: str) -> None:
        self._orders.pop(claim, None)
