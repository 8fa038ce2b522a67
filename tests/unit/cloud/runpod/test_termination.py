"""Pods at RunPod are deleted, and their end is confirmed."""

from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.errors import Gone, OutcomeUnknown
from skysail.cloud.runpod.stand_in.faults import Fault
from skysail.cloud.simulated import billing
from tests.support import virtual_time
from tests.support.runpod_scene import A40, Exited, launch_spec, scene, second_account, virtual


@virtual
async def test_deletion_is_confirmed_and_a_404_alone_proves_nothing():
    async with scene(Fault(what="404", on="delete", at=1)) as at:
        made = await at.account.create(launch_spec())
        with pytest.raises(Gone):
            await at.account.terminate(made.id, 0.0)
        assert (await at.account.get(made.id)).state != "ended"
        await at.account.terminate(made.id, 0.0)
        ended = await at.account.get(made.id)
        assert (ended.state, ended.usd_total is not None) == ("ended", True)
        assert billing.billable(at.service.ledger.rows) == ()


@virtual
async def test_lost_answer_of_a_deletion_is_repeated():
    async with scene(Fault(what="500-done", on="delete", at=1)) as at:
        made = await at.account.create(launch_spec())
        with pytest.raises(OutcomeUnknown):
            await at.account.terminate(made.id, 0.0)
        with pytest.raises(Gone):
            await at.account.terminate(made.id, 0.0)
        assert await at.account.get(made.id) is None


@virtual
async def test_billing_records_that_show_more_than_the_rate_are_the_cost():
    async with scene() as at:
        made = await at.account.create(launch_spec(gpus=A40))
        await asyncio.sleep(1800.0)
        at.service.billed = lambda id_: {made.id: 1.25}.get(id_, 0.0)
        await at.account.terminate(made.id, 0.0)
        assert (await at.account.get(made.id)).usd_total == 1.25


@pytest.mark.parametrize("fault", [Fault(what="500", on="billing"), Fault(what="404", on="billing"), None])
def test_cost_is_the_rate_if_billing_records_are_missing_or_lower(fault):
    async def check() -> None:
        async with scene(*([fault] if fault else [])) as at:
            made = await at.account.create(launch_spec(gpus=A40))
            at.service.billed = lambda _: 0.01
            await asyncio.sleep(1800.0)
            await at.account.terminate(made.id, 0.0)
            ended = await at.account.get(made.id)
            assert (ended.state, ended.usd_total) == ("ended", 0.22)

    virtual_time.run(check())


@virtual
async def test_slow_billing_records_do_not_delay_the_end():
    async with scene(quota=14) as at:  # the last requests of the minute are kept for deletions
        made = await at.account.create(launch_spec())
        await at.account.terminate(made.id, 0.0)
        ended = await at.account.get(made.id)
        assert (ended.state, ended.usd_total is not None) == ("ended", True)
        assert "GET /v2/billing/pods" not in at.server.requests


@virtual
async def test_pod_of_an_earlier_process_gets_its_grace_period_and_a_final_cost():
    """The process has listed nothing yet."""
    async with scene(has_exec=False) as at:
        made = await at.account.create(launch_spec(gpus=A40))
        await at.until_running(1)
        await asyncio.sleep(1800.0)
        second = second_account(at)
        await second.terminate(made.id, 30.0)
        await asyncio.sleep(31.0)
        assert f"POST /v2/pods/{made.id}/exec" in at.server.requests, "the program was told to end"
        ended = await second.get(made.id)
        assert (ended.state, made.id in at.service.pods) == ("ended", False)
        assert ended.usd_total >= 0.22
        await second.close()


@pytest.mark.parametrize("what", ["500", "429", "lost"])
def test_program_is_signalled_also_if_the_service_is_busy(what):
    async def check() -> None:
        faults = [Fault(what=what, on="exec", at=number, seconds=2.0) for number in (1, 2)]
        async with scene(*faults) as at:
            made = await at.account.create(launch_spec())
            await at.until_running(1)
            (run,) = at.provider.containers
            nonce = at.body().env["SKYSAIL_NONCE"]
            executed = []

            async def execute(*_: object, **__: object) -> Exited:
                executed.append(asyncio.get_running_loop().time())
                await at.provider.say(run, f"saved\n\nskysail-exit {nonce} 143 exited \n")
                return Exited()

            at.provider.exec = execute
            await at.provider.say(run, f"skysail-start {nonce}\n")
            await at.account.terminate(made.id, 60.0)
            await asyncio.sleep(30.0)
            assert made.id not in at.service.pods
            assert len(executed) == 1
            assert [piece.data async for piece in at.account.output(made.id)] == [b"saved\n"]

    virtual_time.run(check())


@virtual
async def test_program_that_cannot_be_signalled_has_its_grace_period_and_no_more():
    async with scene(Fault(what="500", on="exec")) as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        begun = asyncio.get_running_loop().time()
        await at.account.terminate(made.id, 60.0)
        while made.id in at.service.pods:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert 59 <= asyncio.get_running_loop().time() - begun <= 63


@virtual
async def test_failed_lookup_does_not_keep_a_pod_alive():
    async with scene(Fault(what="500", on="get")) as at:
        made = await at.account.create(launch_spec())
        second = second_account(at)
        await second.terminate(made.id, 30.0)
        assert at.service.pods == {}
        await second.close()
