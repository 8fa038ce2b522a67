"""A simulated cloud that cannot be used: it says why to whoever asks, and knows of nothing.

No answer of it is a proof of anything: what was made there before may still be billed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

from skysail.cloud.account import Instance, Inventory, Order, Terms
from skysail.cloud.errors import Unknown
from skysail.cloud.provider import Abilities, Line, Output, Session
from skysail.cloud.simulated.vendors import Vendor


class Unusable:
    """Stands in for the account of this vendor. `why` is a sentence with the fix in it."""

    abilities = Abilities()

    def __init__(self, vendor: Vendor, account: str, why: str) -> None:
        self.vendor = vendor
        self.account = account
        self._why = why

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def terms(self) -> Terms:
        return self.vendor.terms

    async def close(self) -> None:
        return

    async def create(self, order: Order) -> Instance:  # noqa: ARG002 (the contract's, as are those below)
        self._say()

    async def end(self, instance: str, grace: float) -> None:  # noqa: ARG002
        self._say()

    async def list(self) -> Inventory:
        self._say()

    async def look(self, instance: str) -> Instance | None:  # noqa: ARG002
        self._say()

    async def changes(self) -> AsyncIterator[str]:
        changes: tuple[str, ...] = ()
        for change in changes:
            yield change

    def output(self, instance: str) -> AsyncIterator[Output]:  # noqa: ARG002
        self._say()

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:  # noqa: ARG002
        self._say()

    async def attach(self, instance: str, *, stdin: bool) -> Session:  # noqa: ARG002
        self._say()

    async def dial(self, instance: str, port: int) -> Line:  # noqa: ARG002
        self._say()

    def _say(self) -> NoReturn:
        raise Unknown(self._why)
