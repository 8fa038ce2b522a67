"""Pods at RunPod that vanish, end by themselves or belong to another key."""

from __future__ import annotations

import asyncio

import pytest

from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.runpod.account import KEY_FIELD
from skysail.cloud.runpod.stand_in.faults import Fault
from tests.support.runpod_scene import launch_spec, scene, second_account, virtual


@virtual
async def test_terminated_pod_ends_once_and_is_not_looked_up_again():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)

        async def track() -> None:
            async for _ in at.account.watch():
                await at.account.get(made.id)

        tracking = asyncio.create_task(track())
        await at.service.pods[made.id].terminate()
        ended = await at.account.get(made.id)
        for _ in range(10):
            await asyncio.sleep(10.0)
            assert (await at.account.list()).instances == (ended,)
        tracking.cancel()
        assert ended.state == "ended"
        assert at.server.requests.count(f"GET /v2/pods/{made.id}") <= 2


@virtual
async def test_terminated_pod_of_an_earlier_process_has_one_end():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.service.pods[made.id].terminate()
        second = second_account(at)
        (first,) = (await second.list()).instances
        await asyncio.sleep(10.0)
        assert (await second.list()).instances == (first,)
        assert first.state == "ended"
        await second.close()


@virtual
async def test_pod_that_a_list_shows_before_its_creation_is_answered_is_followed_once():
    async with scene() as at:
        create = at.account.client.create_pod

        async def create_slowly(body):
            pod = await create(body)
            await asyncio.sleep(30.0)
            return pod

        at.account.client.create_pod = create_slowly
        creating = asyncio.create_task(at.account.create(launch_spec()))
        await asyncio.sleep(5.0)
        await at.until_running(1)
        made = await creating
        assert made.state == "running"
        await asyncio.sleep(30.0)
        assert at.server.requests.count(f"GET /v2/pods/{made.id}/logs") == 1
        await at.account.terminate(made.id, 0.0)
        await asyncio.sleep(10.0)
        before = len(at.server.requests)
        await asyncio.sleep(3600.0)
        assert at.server.requests[before:] == []


@virtual
async def test_key_of_another_account_proves_no_absence():
    async with scene() as at, scene() as other:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        # The other account is behind the same address: exchange the services.
        at.server.service = other.service
        at.server.set_key("rpa_other")
        at.account.set_credentials({KEY_FIELD: "rpa_other"})
        for _ in range(30):
            await asyncio.sleep(10.0)
            inventory = await at.account.list()
            assert (inventory.instances, inventory.complete) == ((), False)
            assert "API key" in inventory.problem
            assert "RUNPOD_API_KEY" in inventory.problem
        with pytest.raises(OutcomeUnknown, match="API key"):
            await at.account.get(made.id)
        at.server.service = at.service
        at.server.set_key("rpa_new")
        at.account.set_credentials({KEY_FIELD: "rpa_new"})
        inventory = await at.account.list()
        assert ([found.id for found in inventory.instances], inventory.complete) == ([made.id], True)
        assert inventory.problem == ""


@virtual
async def test_new_key_is_trusted_if_no_pod_is_known():
    async with scene() as at:
        at.server.set_key("rpa_new")
        at.account.set_credentials({KEY_FIELD: "rpa_new"})
        assert (await at.account.list()).complete


@virtual
async def test_vanished_pod_is_forgotten_and_its_readers_end():
    async with scene(start=1e6) as at:
        waiting = await at.account.create(launch_spec())
        output = asyncio.create_task(anext(at.account.output(waiting.id), None))
        await asyncio.sleep(1.0)
        del at.service.pods[waiting.id]
        for _ in range(15):
            await asyncio.sleep(10.0)
            await at.account.list()
        await asyncio.sleep(1.0)
        assert output.done()
        assert output.result() is None
        before = len(at.server.requests)
        await asyncio.sleep(3600.0)
        assert len(at.server.requests) == before
        assert await at.account.get(waiting.id) is None


@virtual
async def test_follower_of_a_vanished_pod_ends():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        await asyncio.sleep(10.0)
        record = at.service.pods.pop(made.id)
        record.log.end()
        for _ in range(15):
            await asyncio.sleep(10.0)
            await at.account.list()
        await asyncio.sleep(1.0)
        before = len(at.server.requests)
        await asyncio.sleep(3600.0)
        assert len(at.server.requests) == before
        await record.terminate()


@virtual
async def test_vanished_pod_with_a_known_exit_ends_with_its_code():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\n\nskysail-exit {nonce} 37 exited \n")
        await asyncio.sleep(10.0)
        record = at.service.pods.pop(made.id)
        for _ in range(60):
            await asyncio.sleep(10.0)
            inventory = await at.account.list()
        (found,) = inventory.instances
        assert (found.id, found.state, found.exit.code) == (made.id, "ended", 37)
        await record.terminate()


@virtual
async def test_hidden_pod_is_not_forgotten():
    async with scene(Fault(what="late", on="create", at=1, seconds=400.0)) as at:
        made = await at.account.create(launch_spec())
        for _ in range(30):
            await asyncio.sleep(10.0)
            await at.account.list()
        (run,) = at.provider.containers
        nonce = at.body().env["SKYSAIL_NONCE"]
        await at.provider.say(run, f"skysail-start {nonce}\n\nskysail-exit {nonce} 37 exited \n")
        await asyncio.sleep(10.0)
        assert (await at.account.get(made.id)).exit.code == 37
