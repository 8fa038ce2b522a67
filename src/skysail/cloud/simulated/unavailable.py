"""A simulated cloud that cannot be used: each call fails with the reason.

Its errors prove neither presence nor absence: instances that were created earlier may still be billed.
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
    """Replaces the account of this vendor. `message` is a sentence that includes the fix."""

    features = Features()

    def __init__(self, vendor: Vendor, account: str, message: str) -> None:
        self.vendor = vendor
        self.account = account
        self._message = message

    @property
    def name(self) -> str:
        return self.vendor.name

    @property
    def terms(self) -> Timings:
        return self.vendor.terms

    async def close(self) -> None:
        return

    async def create(self, spec: LaunchSpec) -> Instance:  # noqa: ARG002 (required by the interface, as below)
        self._fail()

    async def terminate(self, instance: str, grace: float) -> None:  # noqa: ARG002
        self._fail()

    async def delete_volume(self, namespace: str, volume: str) -> None:  # noqa: ARG002
        self._fail()

    async def list(self) -> Inventory:
        self._fail()

    async def offers(self) -> OfferList:
        self._fail()

    async def get(self, instance: str) -> Instance | None:  # noqa: ARG002
        self._fail()

    async def watch(self) -> AsyncIterator[str]:
        changes: tuple[str, ...] = ()
        for change in changes:
            yield change

    def output(self, instance: str, *, rank: int = 0) -> AsyncIterator[Output]:  # noqa: ARG002
        self._fail()

    async def exec(self, instance: str, command: tuple[str, ...], *, stdin: bool, tty: bool, rank: int = 0) -> Session:  # noqa: ARG002
        self._fail()

    async def attach(self, instance: str, *, stdin: bool, rank: int = 0) -> Session:  # noqa: ARG002
        self._fail()

    async def dial(self, instance: str, port: int, *, rank: int = 0) -> PortConnection:  # noqa: ARG002
        self._fail()

    def _fail(self) -> NoReturn:
        raise OutcomeUnknown(self._message)
