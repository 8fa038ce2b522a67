"""Faults of the stand-in as the unmodified SDK sees them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import modal
import pytest
from grpclib.exceptions import StreamTerminatedError
from modal.exception import InternalError, ResourceExhaustedError, SandboxTerminatedError, ServiceError

from skysail.cloud.modal.stand_in.faults import Fault, FaultScript
from skysail.cloud.simulated import billing
from tests.support.modal import eventually, shell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.modal import StandInHarness

CREATES = pytest.mark.parametrize(
    ("gpu", "rpc"), [(None, "SandboxCreateV2"), ("T4", "SandboxCreate")], ids=["V2", "V1"]
)


@CREATES
async def test_lost_reply_of_a_create_makes_one_sandbox(cloud: StandInHarness, gpu: str | None, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="lost-reply"))
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu, tags={"claim": "c1"})
    assert list(cloud.ledger.instances) == [sandbox.object_id]
    assert cloud.stand_in.log.counts()[rpc] == 2


@CREATES
async def test_lost_replies_of_all_attempts_leave_a_sandbox_that_can_be_found(
    cloud: StandInHarness, gpu: str | None, rpc: str
):
    cloud.inject(Fault(rpc=rpc, kind="lost-reply", times=None))
    with pytest.raises(StreamTerminatedError):  # the SDK does not translate it
        await shell(cloud, "sleep 1000", gpu=gpu, name="job")
    cloud.faults.clear()
    (made,) = cloud.ledger.instances
    found = await modal.Sandbox.from_name.aio("jobs", "job", client=await cloud.client())
    assert found.object_id == made
    await found.terminate.aio(wait=True)


@CREATES
async def test_throttled_create_is_waited_out(cloud: StandInHarness, gpu: str | None, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="throttled", seconds=0.1, times=2))
    await shell(cloud, "true", gpu=gpu)
    assert cloud.stand_in.log.counts()[rpc] == 3


@CREATES
async def test_exhausted_create_raises_at_once(cloud: StandInHarness, gpu: str | None, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="exhausted"))
    with pytest.raises(ResourceExhaustedError):
        await shell(cloud, "true", gpu=gpu)
    assert cloud.stand_in.log.counts()[rpc] == 1
    assert cloud.ledger.instances == {}


@pytest.mark.parametrize("kind", ["unavailable", "internal"])
async def test_transient_error_is_retried_and_a_lasting_one_is_raised(cloud: StandInHarness, kind: str):
    cloud.inject(Fault(rpc="SandboxCreateV2", kind=kind, times=2))  # type: ignore[arg-type]
    await (await shell(cloud, "sleep 1000")).terminate.aio(wait=True)
    cloud.inject(Fault(rpc="SandboxCreateV2", kind=kind, times=None))  # type: ignore[arg-type]
    with pytest.raises((ServiceError, InternalError)):
        await shell(cloud, "true")


async def test_create_without_capacity_is_cancelled_and_leaves_nothing(cloud: StandInHarness):
    cloud.inject(Fault(rpc="SandboxCreate", kind="no-capacity"))
    creating = asyncio.create_task(shell(cloud, "true", gpu="H100"))
    await eventually(lambda: cloud.stand_in.log.counts()["SandboxGetTaskId"] > 0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await eventually(lambda: billing.billable(cloud.ledger.rows) == ())
    assert "started" not in {row.verb for row in cloud.ledger.rows}


async def test_create_with_late_capacity_starts(cloud: StandInHarness):
    cloud.inject(Fault(rpc="SandboxCreate", kind="no-capacity", seconds=0.7))
    sandbox = await shell(cloud, "exit 3", gpu="H100")
    await sandbox.wait.aio()
    assert sandbox.returncode == 3


@CREATES
async def test_preempted_sandbox_is_terminated_by_the_service(cloud: StandInHarness, gpu: str | None, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="preempted", seconds=0.1))
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu)
    with pytest.raises(SandboxTerminatedError):
        await sandbox.wait.aio()
    assert "end asked" not in {row.verb for row in cloud.ledger.rows}
    cloud.check_ledger()


@pytest.mark.parametrize(("gpu", "rpc"), [(None, "SandboxStdioReadV2"), ("T4", "SandboxGetLogs")], ids=["V2", "V1"])
async def test_stuck_log_stream_does_not_hide_the_end(cloud: StandInHarness, gpu: str | None, rpc: str):
    cloud.inject(Fault(rpc=rpc, kind="stuck", times=None))
    sandbox = await shell(cloud, "echo out; exit 4", gpu=gpu)
    reading = asyncio.create_task(anext(aiter(sandbox.stdout)))
    await sandbox.wait.aio()
    assert sandbox.returncode == 4
    assert not reading.done()
    assert [entry.message async for entry in sandbox.logs.tail.aio(1)] == ["out\n"]
    reading.cancel()


async def test_black_hole_lets_nothing_pass_until_it_ends(cloud: StandInHarness):
    client = await cloud.client()
    await client.hello.aio()
    cloud.stand_in.connections.hold()
    waiting = asyncio.create_task(client.hello.aio())
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert done == set()
    cloud.stand_in.connections.release()
    await waiting


async def test_cut_create_is_retried_and_makes_one_sandbox(cloud: StandInHarness):
    cloud.inject(Fault(rpc="SandboxCreateV2", kind="cut"))
    sandbox = await shell(cloud, "true")
    assert list(cloud.ledger.instances) == [sandbox.object_id]


async def test_black_hole_of_the_script_swallows_a_call(cloud: StandInHarness):
    client = await cloud.client()
    cloud.inject(Fault(rpc="ClientHello", kind="black-hole", seconds=0.2))
    waiting = asyncio.create_task(client.hello.aio())
    await eventually(lambda: cloud.stand_in.log.counts()["ClientHello"] == 1)
    await (await cloud.client()).hello.aio()
    assert not waiting.done()
    waiting.cancel()


async def test_revoked_token_is_refused(cloud: StandInHarness):
    cloud.inject(Fault(rpc="ClientHello", kind="unauthenticated"))
    with pytest.raises(modal.exception.AuthError):
        await (await cloud.client()).hello.aio()


def test_script_counts_calls_of_each_rpc():
    script = FaultScript()
    script.add(Fault(rpc="A", kind="internal", skip=1, times=2), Fault(rpc="*", kind="slow"))
    assert [fault.kind for fault in script.take("B")] == ["slow"]
    assert [len(script.take("A")) for _ in range(5)] == [0, 1, 1, 0, 0]


def test_script_is_read_again_when_its_file_changes(tmp_path: Path):
    path = tmp_path / "faults.json"
    script = FaultScript(path)
    assert script.take("A") == []
    path.write_text(json.dumps([{"rpc": "A", "kind": "internal"}]))
    assert [fault.kind for fault in script.take("A")] == ["internal"]
    assert script.take("A") == []


async def test_unknown_rpc_and_unknown_field_are_recorded(cloud: StandInHarness):
    with pytest.raises(modal.exception.Error):
        await shell(cloud, "true", block_network=True)
    with pytest.raises(modal.exception.Error):
        await modal.Queue.from_name("q", create_if_missing=True, client=await cloud.client()).hydrate.aio()
    assert cloud.stand_in.unknown_calls == ["Sandbox.network_access", "QueueGetOrCreate"]
    cloud.stand_in.unknown_calls.clear()
