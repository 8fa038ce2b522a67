"""The stand-in's account keeps its ledger right, whatever its clients do."""

from __future__ import annotations

import asyncio

from skysail.cloud.simulated import billing
from tests.support.runpod_scene import launch_spec, scene, virtual


@virtual
async def test_deletion_of_a_client_that_disconnects_is_completed():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        deleting = asyncio.create_task(at.service.terminate(made.id))
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.sleep(1.0)
        assert billing.billable(at.service.ledger.rows) == ()
