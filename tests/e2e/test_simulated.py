"""Simulated clouds as the agent serves them in a local cluster: the suite of clouds, and restarts of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from skysail.app import simulated_clouds
from skysail.cloud.errors import Rejected
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.ledger import Row
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import CloudConformance, Entering, Real
from tests.conformance.provider_harness import hear

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.cluster import Cluster

pytestmark = pytest.mark.plane


@pytest.fixture
async def cloud(node: Cluster) -> AsyncIterator[RemoteAccount]:
    remote = simulated_clouds.remote(node.home, MODAL)
    yield remote
    await remote.close()


def answers(node: Cluster, before: int | None) -> bool:
    """Whether another agent than that one serves the simulated clouds."""
    return node.unit("agent").pid not in {None, before} and node.serves_clouds()


class TestInTheHull(CloudConformance, Real, Entering):
    @pytest.fixture
    async def customer(self, cloud: RemoteAccount) -> AsyncIterator[AccountHarness]:
        account_harness = AccountHarness(cloud)
        yield account_harness
        for instance in await account_harness.mine():
            await cloud.terminate(instance, 0)


async def test_what_ran_when_the_agent_was_killed_is_lost(node: Cluster, cloud: RemoteAccount):
    account_harness = AccountHarness(cloud)
    running = await account_harness.running()
    await hear(cloud.output(running.id), "ahoy")
    before = node.unit("agent").pid
    node.signal("agent")
    node.until(lambda: answers(node, before), "another agent")
    lost = await account_harness.until(running.id, lambda now: now.state == "ended")
    assert lost.exit is not None
    assert (lost.exit.reason, lost.claim) == ("Lost", running.claim)
    again = await account_harness.running(account_harness.launch_spec(claim=running.claim))
    assert again.id != running.id
    await account_harness.ended(again.id)
    # Not opened as a ledger: that would cut off a line which the agent is just writing.
    whole, _, _ = (node.home.root / "simulated" / "modal.jsonl").read_bytes().rpartition(b"\n")
    rows = list(billing.rows_of_cluster(msgspec.json.Decoder(Row).decode_lines(whole), account_harness.cluster))
    assert billing.max_concurrent(rows) == 1
    assert billing.billable(rows) == ()


async def test_each_cloud_has_its_own_account(node: Cluster, cloud: RemoteAccount):
    other = simulated_clouds.remote(node.home, RUNPOD)
    made = await AccountHarness(cloud).running()
    assert await other.get(made.id) is None
    await cloud.terminate(made.id, 0)
    await other.close()


async def test_a_process_that_does_not_know_the_token_is_kept_out(node: Cluster):
    stranger = RemoteAccount(MODAL, node.home.simulated_clouds, "guessed")
    with pytest.raises(Rejected, match="token"):
        await stranger.create(AccountHarness(stranger).launch_spec())
    await stranger.close()


def test_the_token_the_socket_and_the_ledgers_are_for_their_owner_only(node: Cluster):
    folder = node.home.root / "simulated"
    assert node.home.simulated_clouds.stat().st_mode & 0o077 == 0
    for name in ("token", "modal.jsonl", "runpod.jsonl"):
        assert (folder / name).stat().st_mode & 0o077 == 0
