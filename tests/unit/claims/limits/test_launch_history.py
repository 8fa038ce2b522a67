"""Launches whose claims are gone are known to the next process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from skysail.claims.limits.launch_history import NAME, LaunchHistory
from skysail.claims.types import MemberPod
from skysail.kube.api.resources import CONFIG_MAP, NAMESPACE
from skysail.kube.client.client import Client
from tests.simulation.api import ApiModel
from tests.simulation.ownership import Manager
from tests.simulation.world import World
from tests.simulation.writes import Write
from tests.support import virtual_time
from tests.unit.claims.samples import NOW, ago, claim, spec

HOME = "skysail-system"
USER = Write(Manager("test", "Update"))


class Desk:
    """Operators, one after the other, in one cluster."""

    def __init__(self) -> None:
        self.world = World()
        self.world.create(self.world.kinds[NAMESPACE], {"metadata": {"name": HOME}}, USER)

    @asynccontextmanager
    async def operator(self, later: timedelta = timedelta()):
        history = LaunchHistory(Client(ApiModel(self.world)), HOME, lambda: NOW + later)
        task = asyncio.create_task(history.run())
        yield history
        await asyncio.sleep(60)
        task.cancel()

    @property
    def page(self) -> dict:
        return self.world.objects[CONFIG_MAP].get((HOME, NAME), {})


def run_virtual(test) -> None:
    virtual_time.run(test())


def test_who_stood_by_and_saw_it_too_counts_it_once():
    async def test() -> None:
        desk = Desk()
        over = claim("Terminated", of=spec(launch=1), start_time=ago(60))
        stand_by = LaunchHistory(Client(ApiModel(desk.world)), HOME, lambda: NOW)
        stand_by.claim_changed(claim("Terminated", of=spec(launch=0), start_time=ago(7200)), None)
        async with desk.operator() as leader:
            for history in (leader, stand_by):
                history.claim_changed(over, None)
        assert [row.spec.launch for row in await stand_by.read()] == [1]

    run_virtual(test)


def test_what_was_launched_and_is_gone_is_read_by_the_next_one():
    async def test() -> None:
        desk = Desk()
        for number in range(2):
            async with desk.operator() as diary:
                assert len(await diary.read()) == number
                diary.claim_changed(claim("Terminated", of=spec(launch=number), start_time=ago(60)), None)
        async with desk.operator() as diary:
            assert [(row.at.isoformat(), row.spec.launch) for row in await diary.read()] == [
                ("2026-11-15T11:59:00+00:00", 0),
                ("2026-11-15T11:59:00+00:00", 1),
            ]

    run_virtual(test)


def test_it_is_kept_for_an_hour():
    async def test() -> None:
        desk = Desk()
        async with desk.operator() as diary:
            diary.claim_changed(claim("Terminated", start_time=ago(60)), None)
        async with desk.operator(timedelta(minutes=58)) as diary:
            assert len(await diary.read()) == 1
        async with desk.operator(timedelta(minutes=59)) as diary:
            assert await diary.read() == []

    run_virtual(test)


@pytest.mark.parametrize(
    "change", [(None, claim("Running")), (claim("Running"), claim("Running")), (claim("Claimed"), None)]
)
def test_what_is_there_or_was_never_launched_is_not_written(change):
    async def test() -> None:
        desk = Desk()
        async with desk.operator() as diary:
            diary.claim_changed(*change)
        assert desk.page == {}

    run_virtual(test)


def test_a_page_that_nobody_can_read_tells_nothing_and_is_written_anew():
    async def test() -> None:
        desk = Desk()
        nonsense = {"metadata": {"name": NAME, "namespace": HOME}, "data": {"launches": "nonsense"}}
        desk.world.create(desk.world.kinds[CONFIG_MAP], nonsense, USER)
        async with desk.operator() as diary:
            assert await diary.read() == []
            diary.claim_changed(claim("Terminated", start_time=ago(60)), None)
        async with desk.operator() as diary:
            assert len(await diary.read()) == 1

    run_virtual(test)


def test_many_that_go_at_once_are_one_write():
    async def test() -> None:
        desk = Desk()
        async with desk.operator() as diary:
            for number in range(50):
                diary.claim_changed(claim("Terminated", of=spec(launch=number), start_time=ago(60)), None)
        assert [change.resource for change in desk.world.history.journal].count(CONFIG_MAP) == 1

    run_virtual(test)


def test_an_hour_of_large_gangs_fits_into_one_config_map():
    async def test() -> None:
        desk = Desk()
        members = tuple(
            MemberPod(
                name=f"language-model-pretraining-worker-0-{rank}-x7k2p",
                uid=f"7c0e5a52-5d0c-4a5e-9a0a-2f5f0a5a{rank:04}",
                container="main",
            )
            for rank in range(32)
        )
        async with desk.operator() as diary:
            for number in range(300):
                gang = spec(launch=number, members=32, member_pods=members)
                diary.claim_changed(claim("Terminated", of=gang, start_time=ago(60)), None)
        assert len(await diary.read()) == 300
        assert len(desk.page["data"]["launches"]) < 2**20

    run_virtual(test)
