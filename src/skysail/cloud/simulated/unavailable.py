"""A simulated cloud that cannot be used: it says why to whoever asks, and knows of nothing.

No answer of it is a proof of anything: what was made there before may still be billed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

from skysail.cloud.account import Instance, Inventory, LaunchSpec, Timings
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.offers import OfferList
from skysail.cloud.provider import Features, Output, PortConnection, Session
from skysail.cloud.simulated.vendors import Vendor


class UnavailableAccount:
    """Stands in for the account of this vendor. `message` is a sentence with the fix in it."""

    features = Features()

    def __init__(self, vendor: Vendor, account: str, message: str) -> None:
        self.vendor = vendor
        self.account = account
        self._why = message

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def terms(self) -> Timings:
        return self.vendor.terms

    async def close(self) -> None:
        return

    async def create(self, spec: LaunchSpec) -> Instance:  # noqa: ARG002 (the contract's, as are those below)
        self._say()

    async def terminate(self, instance: str, grace: float) -> None:  # noqa: ARG002
        self._say()

    async def list(self) -> Inventory:
        self._say()

    async def offers(self) -> OfferList:
        self._say()

    async def get(self, instance: str) -> Instance | None:  # noqa: ARG002
        self._say()

    async def watch(self) -> AsyncIterator[str]:
        changes: tuple[str, ...] = ()
        for change in changes:
            yield change

    def output(self, instance: str) -> AsyncIterator[Output]:  # noqa: ARG002
        self._say()

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Session:  # noqa: ARG002
        self._say()

    async def attach(self, instance: str, *, stdin: bool) -> Session:  # noqa: ARG002
        self._say()

    async def dial(self, instance: str, port: int) -> PortConnection:  # noqa: ARG002
        self._say()

    def _say(self) -> NoReturn:
        raise OutcomeUnknown(self._why)
