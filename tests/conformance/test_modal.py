"""The account at Modal passes the suite of clouds, against the stand-in and through the vendor's SDK."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from skysail.cloud.account import GpuRequest
from skysail.cloud.modal.account import ModalAccount
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import CloudConformance, Ends, Entering, Exits, Printing, Real
from tests.support.modal import stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import LaunchSpec

CLUSTER = "0b7e5a70-1111-4222-8333-444455556666"


class GpuHarness(AccountHarness):
    """Orders a GPU, so that Modal runs the sandbox at its older back end."""

    def order(self, *arguments: Any, gpu: GpuRequest | None = None, **options: Any) -> LaunchSpec:
        return super().order(*arguments, gpu=gpu or GpuRequest("T4"), **options)


@asynccontextmanager
async def opened(folder: Path, harness_type: type[AccountHarness]) -> AsyncIterator[AccountHarness]:
    async with stand_in(folder) as service:
        token = {"token_id": service.credentials.token_id, "token_secret": service.credentials.token_secret}
        account = ModalAccount(token, cluster=CLUSTER, capacity_timeout=60.0)
        await account.offers()
        harness = harness_type(account)
        harness.cluster = CLUSTER
        try:
            yield harness
        finally:
            await account.close()


class TestSandboxes(CloudConformance, Real, Entering):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with opened(tmp_path, AccountHarness) as harness:
            yield harness


class TestGpuSandboxes(Exits, Ends, Printing, Real, Entering):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with opened(tmp_path, GpuHarness) as harness:
            yield harness
