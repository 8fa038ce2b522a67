"""What to run for each claim, as the node said it since this process began. Never written down: it holds secrets."""

from __future__ import annotations

from collections.abc import Callable

from skysail.cloud.account import Order


class Orders:
    """`changed` is told the name of each claim that has an order now."""

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
