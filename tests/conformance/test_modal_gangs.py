"""Gangs at Modal pass the suite of gangs, against the stand-in and through the vendor's SDK."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import NoCapacity, OutcomeUnknown, ProviderError, Rejected, Unsupported
from skysail.cloud.modal.account import ModalAccount
from skysail.cloud.modal.gangs import state
from skysail.cloud.modal.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from tests.conformance.account_harness import AccountHarness
from tests.conformance.instances import Gangs
from tests.conformance.provider_harness import hear
from tests.conformance.test_modal import CLUSTER, opened
from tests.support.gang_programs import DDP
from tests.support.modal import CREDENTIALS, TORCH_IMAGE, eventually, stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import LaunchSpec
    from tests.support.modal import StandInHarness


class NodeHarness(AccountHarness):
    """Orders whole nodes: Modal has no other gangs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gang_gpus = GpuRequest("H100", 8)


class TestGangs(Gangs):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with opened(tmp_path, NodeHarness) as harness:
            yield harness


def on_demand(*rpcs: str) -> list[Any]:
    return [pytest.param(rpc, marks=pytest.mark.on_demand) for rpc in rpcs]


# Steps of a launch. All of them are shown on demand, and in CI the one that bills.
LAUNCH = [
    "FunctionMap",
    *on_demand("AppGetOrCreate", "AppList", "AppCreate", "FunctionCreate", "AppPublish", "AppSetTags"),
]
DEPLOY = ["FunctionMap", *on_demand("AppCreate", "FunctionCreate", "AppPublish", "AppSetTags")]
SLEEP = "import time; print('up', flush=True); time.sleep(3600)"
NONCE = "canary-7f3a"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness


@asynccontextmanager
async def account(**options: float) -> AsyncIterator[NodeHarness]:
    """A process of the operator: an account with no memory of what others have launched."""
    token = {"token_id": CREDENTIALS.token_id, "token_secret": CREDENTIALS.token_secret}
    opened_account = ModalAccount(token, cluster=CLUSTER, **options)
    await opened_account.offers()
    harness = NodeHarness(opened_account)
    harness.cluster = CLUSTER
    try:
        yield harness
    finally:
        await opened_account.close()


def apps(service: StandInHarness) -> list[str]:
    """Names of live Apps of gangs."""
    return [app.name for app in service.stand_in.apps.apps.values() if app.is_live and ".claim" in app.name]


def spawned(service: StandInHarness) -> int:
    return len(service.stand_in.calls.calls)


async def until_free(service: StandInHarness) -> None:
    """Nothing is left: no App, no container, no bill, and no claim was billed twice at once."""
    await eventually(lambda: billing.billable(service.ledger.rows) == ())
    service.check_ledger()
    assert apps(service) == []
    assert (await service.provider.list()).pods == {}


async def end_all(harness: NodeHarness) -> None:
    """End what an inventory shows, as the launch protocol does."""
    for instance in (await harness.mine()).values():
        if instance.state != "ended":
            await harness.ended(instance.id)


@pytest.mark.parametrize("rpc", LAUNCH)
async def test_lost_reply_of_each_step_of_a_launch_leaves_at_most_one_gang(service, rpc):
    service.inject(Fault(rpc=rpc, kind="lost-reply"))
    async with account() as customer:
        spec = customer.gang(SLEEP, SLEEP)
        try:
            made = await customer.cloud.create(spec)
        except OutcomeUnknown:
            assert len(await customer.mine()) <= 1
        else:
            assert (made.claim, made.state) == (spec.claim, "running")
            assert set(await customer.mine()) == {made.id}
        assert spawned(service) == 1
        await end_all(customer)
    await until_free(service)


@pytest.mark.parametrize("rpc", LAUNCH)
async def test_failed_step_of_a_launch_proves_that_nothing_is_left(service, rpc):
    service.inject(Fault(rpc=rpc, kind="unavailable", times=None))
    async with account() as customer:
        with pytest.raises(ProviderError) as failed:
            await customer.cloud.create(customer.gang(SLEEP, SLEEP))
        service.faults.clear()
        if not isinstance(failed.value, OutcomeUnknown):
            assert await customer.mine() == {}
        await end_all(customer)
    await until_free(service)


@pytest.mark.parametrize("rpc", DEPLOY)
@pytest.mark.parametrize(
    "is_executed", [pytest.param(False, marks=pytest.mark.on_demand), True], ids=["before", "after"]
)
async def test_operator_that_dies_around_each_step_leaves_one_gang_or_none(service, monkeypatch, rpc, is_executed):
    """The process is never heard of again: it waits for a reply that does not come. The next one finds all of it."""
    monkeypatch.setattr(state, "_UNFINISHED_SECONDS", 0.0)
    service.inject(Fault(rpc=rpc, kind="unanswered" if is_executed else "stuck"))
    async with account() as first, account() as second:
        spec = first.gang(SLEEP, SLEEP)
        dying = asyncio.create_task(first.cloud.create(spec))
        await eventually(lambda: rpc in service.stand_in.log.calls)
        await asyncio.sleep(0.1)  # the call may be executed after it was logged
        found = list((await second.mine()).values())
        assert len(found) <= 1
        for instance in found:
            assert instance.claim == spec.claim
            seen = await second.until(instance.id, lambda now: now.state == "running" or now.exit is not None)
            # A call that was not recorded is never followed: its App is stopped, and the next attempt starts.
            assert seen.exit is None or seen.exit.reason == "Lost"
        await end_all(second)
        assert spawned(service) <= 1
        await until_free(service)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)


@pytest.mark.on_demand
async def test_second_launch_of_a_claim_adopts_the_gang(service):
    async with account() as first:
        spec = first.gang(SLEEP, SLEEP)
        made = await first.running(spec)
        async with account() as second:
            assert (await second.cloud.create(spec)).id == made.id
            assert spawned(service) == 1
            assert "up" in await hear(second.cloud.output(made.id, rank=1), "up")
            await second.ended(made.id)
    await until_free(service)


@pytest.mark.parametrize("rpc", ["AppGetTags", "FunctionGetCallGraph"])
async def test_gang_that_cannot_be_read_does_not_hide_the_others(service, rpc):
    async with account() as first, account() as second:
        made = [await first.cloud.create(first.gang(SLEEP, SLEEP)) for _ in range(2)]
        service.inject(Fault(rpc=rpc, kind="exhausted"))
        found = await second.cloud.list()
        (seen,) = found.instances
        (bad,) = (gang for gang in made if gang.id != seen.id)
        assert found.complete
        assert found.unreadable == {bad.id, bad.claim}
        assert set(await second.mine()) == {gang.id for gang in made}
        await end_all(second)
    await until_free(service)


async def test_gang_without_capacity_is_ended_before_that_is_told(service):
    service.inject(Fault(rpc="FunctionMap", kind="no-capacity"))
    async with account(capacity_timeout=2.0) as customer:
        with pytest.raises(NoCapacity, match="2 nodes with H100:8"):
            await customer.cloud.create(customer.gang(SLEEP, SLEEP))
        assert await customer.mine() == {}
    await until_free(service)


@pytest.mark.on_demand
async def test_cancelled_launch_leaves_nothing(service):
    service.inject(Fault(rpc="FunctionMap", kind="stuck", times=None))
    async with account() as customer:
        creating = asyncio.create_task(customer.cloud.create(customer.gang(SLEEP, SLEEP)))
        await eventually(lambda: "FunctionMap" in service.stand_in.log.calls)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
    await until_free(service)


@pytest.mark.on_demand
async def test_gang_that_is_preempted_is_lost_and_not_run_twice(service):
    async with account() as customer:
        made = await customer.running(customer.gang(SLEEP, SLEEP))
        (call,) = service.stand_in.calls.calls.values()
        call.preempt()
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (137, "Lost")
        assert "preempted" in exit_.message
        await customer.ended(made.id)
    await until_free(service)


async def test_lost_container_is_named(service):
    async with account() as customer:
        made = await customer.running(customer.gang(SLEEP, SLEEP))
        (call,) = service.stand_in.calls.calls.values()
        await call.containers[1].kill()
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (137, "Error")
        assert exit_.message.startswith("Rank 1 ")
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.on_demand
async def test_gang_beyond_its_lifetime_is_a_deadline(service):
    async with account() as customer:
        made = await customer.running(replace(customer.gang(SLEEP, SLEEP), max_lifetime=3.0))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (124, "DeadlineExceeded")
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.on_demand
async def test_termination_with_grace_lets_every_rank_save(service):
    script = (
        "import signal, sys, time\n"
        "def save(*_): print('saved', flush=True); sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True); time.sleep(3600)"
    )
    async with account() as customer:
        made = await customer.running(customer.gang(script, script))
        for rank in range(2):
            await hear(customer.cloud.output(made.id, rank=rank), "up")
        ended = await customer.ended(made.id, grace=30.0)
        assert [rank.exit and rank.exit.code for rank in ended.ranks] == [9, 9]
        for rank in range(2):
            assert "saved\n" in await customer.said(made.id, rank=rank)
    await until_free(service)


async def test_output_of_ranks_is_apart_and_has_no_line_of_the_shim(service):
    script = (
        "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr); "
        "print('open', end='')"
    )
    async with account() as customer:
        made = await customer.cloud.create(customer.gang(script, f"{script}; raise SystemExit(3)"))
        for rank in range(2):
            assert sorted((await customer.said(made.id, rank=rank)).split("\n")) == [
                f"err {rank}",
                "open",
                f"out {rank}",
            ]
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.on_demand
async def test_output_over_cut_connections_arrives_once(service):
    script = "for n in range(3000): print('line', n, flush=True)\nimport time; time.sleep(2)"
    service.inject(*(Fault(rpc="AppGetLogs", kind="cut", skip=number) for number in range(3)))
    async with account() as customer:
        made = await customer.cloud.create(customer.gang(script, script))
        wanted = "".join(f"line {number}\n" for number in range(3000))
        assert [await customer.said(made.id, rank=rank) for rank in range(2)] == [wanted, wanted]
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.on_demand
async def test_entering_a_rank_is_refused_with_the_reason(service):
    async with account() as customer:
        made = await customer.running(customer.gang(SLEEP, SLEEP))
        for attempt in (
            customer.cloud.exec(made.id, ("true",), stdin=False, tty=False, rank=1),
            customer.cloud.attach(made.id, stdin=False, rank=1),
            customer.cloud.dial(made.id, 80, rank=1),
        ):
            with pytest.raises(Unsupported, match="rank 1 of a gang: read its log"):
                await attempt
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.parametrize("gpus", [None, GpuRequest("H100", 1), GpuRequest("A10", 8)], ids=["cpu", "part", "too-many"])
async def test_gang_beyond_modals_limits_is_rejected_before_any_call(service, gpus):
    async with account() as customer:
        service.stand_in.log.calls.clear()
        with pytest.raises(Rejected, match="whole GPU nodes only") as rejected:
            await customer.cloud.create(replace(customer.gang(SLEEP, SLEEP), gpus=gpus))
        assert rejected.value.reason == "GangNotOffloaded"
        assert list(service.stand_in.log.calls) == []


async def test_tenants_get_one_file_of_ours_and_secrets_stay_out_of_names(service):
    spec_env = (("TOKEN", NONCE),)
    async with account() as customer:
        spec = customer.gang("import os; assert os.environ['TOKEN']", "import os; assert os.environ['TOKEN']")
        members = tuple(replace(each, container=replace(each.container, env=spec_env)) for each in spec.members)
        made = await customer.cloud.create(replace(spec, members=members))
        assert (await customer.exited(made.id)).code == 0
        (call,) = service.stand_in.calls.calls.values()
        ours = [file.path for file in call.containers[0].spec.files]
        assert ours == ["/root/skysail_gang.py"]
        shown = [str(app.tags) + app.name for app in service.stand_in.apps.apps.values()]
        shown += [str(row) for row in service.ledger.rows] + [
            str(record) for record in service.stand_in.calls.records()
        ]
        assert NONCE not in "".join(shown)
        # The result of a call is pickled by the tenant.
        assert "FunctionGetOutputs" not in service.stand_in.log.calls
        await customer.ended(made.id)
    await until_free(service)


@pytest.mark.on_demand
@pytest.mark.timeout(1200)
async def test_pytorch_ranks_average_gradients_and_resume_after_one_was_killed(service):
    async with account() as customer:

        def training(*env: tuple[str, str]) -> LaunchSpec:
            spec = customer.gang(DDP, DDP)
            own = (("CHECKPOINT_DIR", "/checkpoints"), *env)
            members = (
                replace(each, container=replace(each.container, image=TORCH_IMAGE, env=own)) for each in spec.members
            )
            return replace(spec, members=tuple(members), options=(("modal-volumes", "ddp:/checkpoints"),))

        killed = await customer.cloud.create(training())
        exit_ = await customer.exited(killed.id, seconds=600)
        said = await customer.said(killed.id)
        assert (exit_.code, exit_.message) == (137, "Rank 1 ended with exit code 137."), said
        assert "skysail-checkpoint step=3 path=/checkpoints/step-3.pt\n" in said
        await customer.ended(killed.id)
        resumed = await customer.cloud.create(training(("RESUME_FROM", "/checkpoints/step-3.pt")))
        exit_ = await customer.exited(resumed.id, seconds=600)
        for rank in range(2):
            said = await customer.said(resumed.id, rank=rank)
            assert "resumed at 3\n" in said
            assert "averaged over 2 ranks\n" in said
        assert exit_.code == 0
        await customer.ended(resumed.id)
    await until_free(service)
