"""Web Apps of Modal after a process that ended at any effect: one App is left, and it serves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

import pytest

from skysail.cloud.errors import ProviderError
from skysail.cloud.modal.stand_in.faults import Fault
from tests.support.modal import stand_in
from tests.unit.cloud.modal.stand_in.test_web_apps import call, launch, live_apps, open_account

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.modal import StandInHarness


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness


# Effects of an update and a scale. All of them take minutes; two are enough for every change.
EFFECTS = ("AppCreate", "FunctionCreate", "AppPublish", "AppStop", "AppSetTags", "FunctionUpdateSchedulingParams")
OFTEN = {("AppPublish", "lost-reply"), ("AppSetTags", "lost-reply")}


@pytest.mark.parametrize(
    ("rpc", "kind"),
    [
        pytest.param(rpc, kind, marks=() if (rpc, kind) in OFTEN else pytest.mark.on_demand)
        for rpc in EFFECTS
        for kind in ("lost-reply", "cut")
    ],
)
async def test_process_that_ends_after_any_effect_leaves_one_app(
    cloud: StandInHarness, rpc: str, kind: Literal["lost-reply", "cut"]
):
    """An update and a scale of a live App. The process loses the answer and is replaced by a new one."""
    before = open_account(cloud)
    first = await before.create(launch("c1", env={"VALUE": "old"}))
    # The SDK repeats a call on a cut connection; all of its attempts fail.
    cloud.inject(Fault(rpc=rpc, kind=kind, times=4))
    with contextlib.suppress(ProviderError):
        async with asyncio.timeout(60):
            await before.create(launch("c2", env={"VALUE": "new"}, scale="min=0,max=2"))
            await before.create(launch("c3", env={"VALUE": "new"}, scale="min=0,max=3"))
    cloud.faults.clear()
    after = open_account(cloud)
    # Callers of the address were served all the time.
    assert (await call(cloud, after, first.id))["value"] in {"old", "new"}
    last = await after.create(launch("c4", env={"VALUE": "new"}, scale="min=0,max=3"))
    assert (await call(cloud, after, last.id))["value"] == "new"
    for row in (await after.list()).instances:
        # The orphan collector and the claims end what they do not know.
        if row.claim != "c4" and row.state != "ended":
            await after.terminate(row.id, 0)
    assert live_apps(cloud) == 1
    assert (await call(cloud, after, last.id))["value"] == "new"
    await after.terminate(last.id, 0)
    assert live_apps(cloud) == 0
    for account in (before, after):
        await account.close()
