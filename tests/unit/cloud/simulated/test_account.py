"""Lives of instances, by the clock."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import Gone, NoCapacity, Rejected, Unsupported
from skysail.cloud.provider import Ended
from skysail.cloud.simulated.faults import Fault
from skysail.cloud.simulated.ledger import Ledger, Row
from skysail.cloud.simulated.options import SimulationOptions
from tests.support.virtual_time import run
from tests.unit.cloud.simulated.shop import PLAIN, account, launch_spec, told

LINGERING = replace(PLAIN, lingers=True)


def test_an_instance_starts_runs_and_ends_and_is_billed_for_all_of_it():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec("exit=37"))
        assert (made.state, made.created, made.usd_per_hour) == ("starting", 0.0, 3.6)
        await asyncio.sleep(100)
        assert told(cloud) == [(0.0, "create"), (2.0, "started"), (12.0, "exited"), (12.0, "ended")]
        ended = await cloud.get(made.id)
        assert ended == replace(
            made,
            state="ended",
            started=2.0,
            ended=12.0,
            exit=Ended(code=37, reason="Error", started=2.0, ended=12.0),
            usd_total=0.012,
        )

    run(main())


def test_where_instances_linger_they_are_billed_until_they_are_ended():
    async def main():
        cloud = account(vendor=LINGERING)
        made = await cloud.create(launch_spec("run=1s"))
        await asyncio.sleep(50)
        lingering = await cloud.get(made.id)
        assert (lingering.state, lingering.exit.code, lingering.ended) == ("running", 0, None)
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(0.1)
        assert (await cloud.get(made.id)).usd_total == pytest.approx(0.05)

    run(main())


@pytest.mark.parametrize("vendor", [PLAIN, LINGERING], ids=["ends", "lingers"])
@pytest.mark.parametrize(
    ("simulate", "seconds", "want"),
    [
        ("start=20s,run=1h", 60.0, (60.0, 137, "DeadlineExceeded")),
        ("start=2h", 60.0, (60.0, 137, "DeadlineExceeded")),
        ("start=5s,run=1h,preempt=30s", 600.0, (35.0, 137, "Preempted")),
    ],
)
def test_the_cloud_ends_it_by_itself(vendor, simulate, seconds, want):
    async def main():
        cloud = account(vendor=vendor)
        made = await cloud.create(launch_spec(simulate, max_lifetime=seconds))
        await asyncio.sleep(3000)
        ended = await cloud.get(made.id)
        assert (ended.ended, ended.exit.code, ended.exit.reason) == want

    run(main())


def test_a_preempted_instance_says_so_also_before_it_started():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec("start=1h"))
        await asyncio.sleep(1)
        await cloud.preempt(made.id)
        await asyncio.sleep(1)
        ended = await cloud.get(made.id)
        assert (ended.state, ended.exit.reason, ended.exit.started) == ("ended", "Preempted", None)

    run(main())


@pytest.mark.parametrize(("grace", "code"), [(30.0, 143), (0.0, 137)])
def test_a_pretended_program_obeys(grace, code):
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec("run=1h"))
        await asyncio.sleep(5)
        await cloud.terminate(made.id, grace)
        await asyncio.sleep(0.1)
        ended = await cloud.get(made.id)
        assert (ended.ended, ended.exit.code) == (5.0, code)

    run(main())


def test_what_is_ended_while_it_starts_has_no_exit():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec())
        await cloud.terminate(made.id, 30)
        await asyncio.sleep(0.1)
        assert told(cloud) == [(0.0, "create"), (0.0, "end asked"), (0.0, "ended")]
        assert (await cloud.get(made.id)).exit is None

    run(main())


def test_an_end_may_take_a_while_and_is_billed_meanwhile():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec("end=90s"))
        await asyncio.sleep(5)
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(80)
        assert (await cloud.get(made.id)).state == "running"
        await asyncio.sleep(20)
        assert (await cloud.get(made.id)).ended == 95.0

    run(main())


def test_an_ended_instance_is_forgotten_after_a_while():
    async def main():
        cloud = account(vendor=replace(PLAIN, remembers=100.0))
        made = await cloud.create(launch_spec())
        await asyncio.sleep(12 + 99)
        assert (await cloud.list()).instances == (await cloud.get(made.id),)
        assert [piece async for piece in cloud.output(made.id)] != []
        await asyncio.sleep(2)
        assert (await cloud.list()).instances == ()
        assert await cloud.get(made.id) is None
        with pytest.raises(Gone):
            await cloud.terminate(made.id, 0)
        with pytest.raises(Gone):
            await anext(cloud.output(made.id))

    run(main())


def test_a_new_instance_is_missing_from_listings_for_as_long_as_they_lag():
    async def main():
        cloud = account(vendor=replace(PLAIN, lag=3.0))
        made = await cloud.create(launch_spec("run=1h"))
        await asyncio.sleep(2.5)
        assert (await cloud.list()).instances == ()
        assert (await cloud.get(made.id)).id == made.id
        await asyncio.sleep(0.5)
        assert [instance.id for instance in (await cloud.list()).instances] == [made.id]

    run(main())


def test_a_hidden_instance_is_denied_to_everybody_and_lives():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec("hidden=10s,run=1h"))
        await asyncio.sleep(9)
        assert await cloud.get(made.id) is None
        assert (await cloud.list()).instances == ()
        with pytest.raises(Gone):
            await cloud.terminate(made.id, 0)
        await asyncio.sleep(1)
        assert (await cloud.get(made.id)).state == "running"

    run(main())


def test_a_caller_who_leaves_does_not_undo_the_call():
    async def main():
        cloud = account(Fault(on="create", what="slow"), Fault(on="end", what="slow"))
        calling = asyncio.create_task(cloud.create(launch_spec("run=1h")))
        await asyncio.sleep(10)
        calling.cancel()
        await asyncio.sleep(25)
        (made,) = (await cloud.list()).instances
        calling = asyncio.create_task(cloud.terminate(made.id, 0))
        await asyncio.sleep(10)
        calling.cancel()
        await asyncio.sleep(25)
        assert (await cloud.get(made.id)).ended == 65.0

    run(main())


@pytest.mark.parametrize(
    ("gpus", "members", "usd"),
    [
        (None, 1, 3.6),
        (None, 2, 7.2),
        (GpuRequest("A"), 1, 7.2),
        (GpuRequest("B", 4), 2, 288.0),
        (GpuRequest("", 2), 1, 14.4),
    ],
)
def test_the_price_is_of_all_gpus_of_all_members(gpus, members, usd):
    async def main():
        assert (await account().create(launch_spec(gpus=gpus, replicas=members))).usd_per_hour == usd

    run(main())


def test_a_wished_price_is_the_price():
    async def main():
        assert (await account().create(launch_spec("usd=1.25"))).usd_per_hour == 1.25

    run(main())


def test_no_capacity_is_wished_for_so_many_times_by_pod_whatever_the_claim():
    async def main():
        cloud = account()
        for claim in ("one", "two"):
            with pytest.raises(NoCapacity):
                await cloud.create(launch_spec("no-capacity=2", claim=claim))
        assert (await cloud.create(launch_spec("no-capacity=2", claim="three"))).claim == "three"
        with pytest.raises(NoCapacity):
            await cloud.create(launch_spec("no-capacity=2", uid="another pod"))

    run(main())


def test_a_wish_that_nobody_understands_makes_nothing():
    async def main():
        cloud = account()
        with pytest.raises(Rejected, match="SKYSAIL_SIMULATE") as rejected:
            await cloud.create(launch_spec("start=soon"))
        assert rejected.value.reason == "InvalidSimulation"
        assert [row.verb for row in cloud.ledger.rows] == ["refused"]

    run(main())


def test_a_foreign_instance_runs_until_somebody_ends_it():
    async def main():
        cloud = account()
        made = cloud.inject_orphan(claim="theirs", cluster="another")
        await asyncio.sleep(1e6)
        assert (await cloud.get(made.id)).state == "running"
        await cloud.terminate(made.id, 0)
        await asyncio.sleep(1)
        assert (await cloud.get(made.id)).state == "ended"

    run(main())


def test_where_nothing_runs_there_is_nothing_to_enter():
    async def main():
        cloud = account()
        made = await cloud.create(launch_spec())
        with pytest.raises(Unsupported, match="runs fake programs only"):
            await cloud.exec(made.id, ("true",), stdin=False, tty=False)

    run(main())


def test_every_change_of_a_claim_is_told():
    async def main():
        cloud = account()
        changes = cloud.watch()
        await cloud.create(launch_spec(claim="one"))
        heard = [(await anext(changes), asyncio.get_running_loop().time()) for _ in range(2)]
        assert heard == [("one", 0.0), ("one", 2.0)]

    run(main())


@pytest.mark.parametrize(
    "pause", [1.0, 5.0, 50.0], ids=["while it starts", "while it runs", "after it should have ended"]
)
def test_an_account_that_is_opened_again_goes_on(tmp_path, pause):
    async def main():
        path = tmp_path / "ledger.jsonl"
        cloud = account(ledger=Ledger.open(path, mark="m"))
        made = await cloud.create(launch_spec("exit=37"))
        foreign = cloud.inject_orphan(cluster="another")
        await asyncio.sleep(min(pause, 5.0))
        await cloud.close()
        await asyncio.sleep(max(pause - 5.0, 0.0))
        again = account(ledger=Ledger.open(path, mark="m"))
        assert await again.get(made.id) == cloud.ledger.instances[made.id]
        await asyncio.sleep(100)
        ended = await again.get(made.id)
        assert (ended.state, ended.exit.code) == ("ended", 37)
        assert ended.ended == max(12.0, pause)
        assert (await again.get(foreign.id)).state == "running"
        assert (await again.create(launch_spec())).id not in {made.id, foreign.id}
        await again.close()

    run(main())


def test_no_id_comes_back_when_the_ledger_was_lost(tmp_path):
    async def first_id(mark: str) -> str:
        path = tmp_path / "ledger.jsonl"
        path.unlink(missing_ok=True)
        cloud = account(ledger=Ledger.open(path, mark=mark))
        made = await cloud.create(launch_spec())
        await cloud.close()
        return made.id

    assert run(first_id("a")) != run(first_id("b"))


@pytest.mark.parametrize("vendor", [PLAIN, LINGERING], ids=["ends", "lingers"])
@pytest.mark.parametrize("came_to", [1, 2, 3], ids=["made", "started", "exited"])
def test_an_end_that_was_asked_for_is_done_by_who_opens_it_again(vendor, came_to):
    rows = [
        Row(at=-9.0, verb="create", instance="i", seconds=3600.0, options=SimulationOptions(start=20.0, run=1800.0)),
        Row(at=-5.0, verb="started", instance="i"),
        Row(at=-2.0, verb="exited", instance="i", exit=Ended(code=0, reason="Completed", ended=-2.0)),
    ]

    async def main():
        ledger = Ledger()
        for row in (*rows[:came_to], Row(at=-1.0, verb="end asked", instance="i")):
            ledger.write(row)
        cloud = account(vendor=vendor, ledger=ledger)
        await asyncio.sleep(1)
        assert (await cloud.get("i")).ended == 0.0

    run(main())
