"""The simulated clouds pass the suite of clouds, pretending and with a provider, in the process and over HTTP."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from skysail.cloud.account import Member
from skysail.cloud.errors import Unsupported
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.http.server import serve
from skysail.cloud.simulated.ledger import Ledger
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import Closed, CloudConformance, Entering, OpenGangs, Real
from tests.conformance.local import local_provider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from skysail.cloud.provider import Provider
    from skysail.cloud.simulated.vendors import Vendor

QUICK = [replace(MODAL, start=0.0), replace(RUNPOD, start=0.0, lag=0.05)]


@asynccontextmanager
async def account(vendor: Vendor, provider: Provider | None = None) -> AsyncIterator[SimulatedAccount]:
    opened = SimulatedAccount(vendor, Ledger(), now=time.time, provider=provider)
    try:
        yield opened
    finally:
        await opened.close()


@pytest.fixture(params=QUICK, ids=lambda vendor: vendor.name)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return request.param


class TestPretending(CloudConformance, Closed):
    @pytest.fixture
    async def customer(self, vendor: Vendor) -> AsyncIterator[AccountHarness]:
        async with account(vendor) as cloud:
            yield AccountHarness(cloud)


class TestWithAProvider(CloudConformance, Real, Entering):
    @pytest.fixture
    async def customer(self, vendor: Vendor, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with local_provider(tmp_path) as provider, account(vendor, provider) as cloud:
            yield AccountHarness(cloud)


@asynccontextmanager
async def over_http(cloud: SimulatedAccount) -> AsyncIterator[RemoteAccount]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clouds.sock"
        runner = await serve([cloud], "token", path)
        remote = RemoteAccount(cloud.vendor, path, "token", features=cloud.features)
        try:
            yield remote
        finally:
            await remote.close()
            await runner.cleanup()


class TestPretendingOverHttp(CloudConformance, Closed):
    @pytest.fixture
    async def customer(self, vendor: Vendor) -> AsyncIterator[AccountHarness]:
        async with account(vendor) as cloud, over_http(cloud) as remote:
            yield AccountHarness(remote)


class TestWithAProviderOverHttp(CloudConformance, Real, Entering):
    @pytest.fixture
    async def customer(self, vendor: Vendor, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with (
            local_provider(tmp_path) as provider,
            account(vendor, provider) as cloud,
            over_http(cloud) as remote,
        ):
            yield AccountHarness(remote)


async def test_the_end_of_an_instance_leaves_nothing_at_the_provider(tmp_path: Path):
    async with local_provider(tmp_path) as provider, account(QUICK[0], provider) as cloud:
        account_harness = AccountHarness(cloud)
        spec = account_harness.launch_spec()
        one, two = [await account_harness.running(spec) for _ in range(2)]
        assert spec.pod.uid not in (await provider.list()).pods
        assert len((await provider.list()).pods) == 2
        await account_harness.ended(one.id)
        assert len((await provider.list()).pods) == 1
        await account_harness.ended(two.id)
        assert (await provider.list()).pods == {}


async def test_what_ran_in_the_process_before_is_lost_and_not_billed_on(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    async with local_provider(tmp_path) as provider:
        before = SimulatedAccount(QUICK[0], Ledger.open(path, mark="m"), now=time.time, provider=provider)
        running = await AccountHarness(before).running()
        await before.close()
    async with local_provider(tmp_path) as provider:
        after = SimulatedAccount(QUICK[0], Ledger.open(path, mark="m"), now=time.time, provider=provider)
        found = await after.get(running.id)
        assert found is not None
        assert found.exit is not None
        assert (found.state, found.exit.reason, found.claim) == ("ended", "Lost", running.claim)
        await after.close()


async def test_a_program_that_the_machine_lost_is_told(tmp_path: Path):
    async with local_provider(tmp_path) as provider, account(QUICK[0], provider) as cloud:
        account_harness = AccountHarness(cloud)
        running = await account_harness.running()
        (pod,) = (await provider.list()).pods
        await provider.remove_sandbox(pod)
        assert (await account_harness.exited(running.id)).reason in {"Lost", "Error"}
        assert (await account_harness.until(running.id, lambda now: now.state == "ended")).usd_total is not None


class TestGangs(OpenGangs):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with (
            local_provider(tmp_path) as provider,
            account(QUICK[0], provider) as cloud,
            over_http(cloud) as remote,
        ):
            yield AccountHarness(remote)


async def test_a_cloud_without_private_network_refuses_a_gang():
    async with account(QUICK[1]) as cloud:
        assert not cloud.features.gang
        with pytest.raises(Unsupported, match="private network"):
            await cloud.create(AccountHarness(cloud).gang("", ""))


async def test_ranks_of_a_fake_gang_survive_a_restart_of_the_account(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    first = SimulatedAccount(QUICK[0], Ledger.open(path, mark="m"), now=time.time)
    harness = AccountHarness(first)
    spec = harness.gang("", "")
    container = harness.launch_spec(run=0.2, exit_=3).container
    members = (Member(spec.pod, container), spec.members[1])
    running = await harness.running(replace(spec, members=members))
    await first.close()
    second = SimulatedAccount(QUICK[0], Ledger.open(path, mark="m"), now=time.time)
    ended = await AccountHarness(second).until(running.id, lambda now: now.state == "ended")
    assert [rank.exit and rank.exit.code for rank in ended.ranks] == [3, 3]
    await second.close()
