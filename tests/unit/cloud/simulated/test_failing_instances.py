"""Instances whose task fails: each one is reported, can be ended, and is not billed on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from skysail.cloud.errors import ProviderError
from skysail.cloud.provider import Ended, Output, Running
from skysail.cloud.simulated import billing
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.ledger import Ledger, Row
from tests.support.virtual_time import run
from tests.unit.cloud.simulated.shop import PLAIN, account, launch_spec, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STEPS = ("prepare", "start", "output", "changes", "state", "stop", "release")
ERRORS = (
    TypeError("<lambda>() takes 2 positional arguments but 3 were given"),
    OSError(errno.ENOSPC, "No space left on device"),
    ProviderError("The machine is on fire."),
    TimeoutError(),
    asyncio.CancelledError(),
)
LINGERING = replace(PLAIN, lingers=True)


class Broken:
    """A provider that fails at one step: always, or as often as `times` says."""

    def __init__(self, step: str, error: BaseException, times: float = float("inf")) -> None:
        self._step = step
        self._error = error
        self._times = times
        self._stopped = asyncio.Event()
        self.pods: set[str] = set()

    async def create_sandbox(self, pod: object) -> str:
        self.pods.add(pod.uid)
        self._fail("prepare")
        return "10.0.0.1"

    async def start(self, run: object, container: object) -> None:
        self._run = run
        self._fail("start")

    async def output(self, run: object) -> AsyncIterator[Output]:
        yield Output("stdout", 0.0, b"ahoy\n")
        self._fail("output")
        await self._stopped.wait()

    async def changes(self) -> AsyncIterator[object]:
        self._fail("changes")
        await self._stopped.wait()
        yield self._run
        await asyncio.Event().wait()

    async def state(self, run: object) -> Running | Ended:
        self._fail("state")
        if self._stopped.is_set():
            return Ended(code=143, reason="Error", ended=now())
        return Running(0.0)

    async def stop(self, run: object, grace: float) -> None:
        self._fail("stop")
        self._stopped.set()

    async def remove_sandbox(self, pod: str) -> None:
        self._fail("release")
        self._stopped.set()
        self.pods.discard(pod)

    def _fail(self, step: str) -> None:
        if step == self._step and self._times > 0:
            self._times -= 1
            raise self._error


class FullLedger(Ledger):
    """Takes no row of one verb for as long as the disk is full."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self.is_full = True

    def write(self, row: Row) -> None:
        if self.is_full and row.verb == self._verb:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(row)


def open_account(provider: Broken, vendor=PLAIN) -> SimulatedAccount:
    return SimulatedAccount(vendor, Ledger(), now=now, provider=provider)


@pytest.mark.parametrize("vendor", [PLAIN, LINGERING], ids=["ends", "lingers"])
@pytest.mark.parametrize("times", [1, float("inf")], ids=["once", "always"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_an_instance_that_fails_anywhere_can_be_ended_and_is_billed_no_more(step, error, times, vendor):
    async def main():
        cloud = open_account(Broken(step, error, times), vendor)
        made = await cloud.create(launch_spec())
        await asyncio.sleep(60)
        if (await cloud.get(made.id)).state != "ended":
            with contextlib.suppress(asyncio.CancelledError):  # injected into the call itself
                await cloud.terminate(made.id, 5)
        await asyncio.sleep(300)
        ended = await cloud.get(made.id)
        assert (ended.state, ended.usd_total is not None) == ("ended", True)
        assert ended.exit is not None
        assert billing.billable(cloud.ledger.rows) == ()
        async with asyncio.timeout(1):
            assert isinstance([piece async for piece in cloud.output(made.id)], list)
        await cloud.close()

    run(main())


@pytest.mark.parametrize("step", ["prepare", "start", "state", "changes"])
def test_a_failure_that_nobody_foresaw_is_reported_without_being_asked(step, caplog):
    async def main():
        provider = Broken(step, ERRORS[0])
        cloud = open_account(provider, LINGERING)
        made = await cloud.create(launch_spec())
        await asyncio.sleep(60)
        ended = await cloud.get(made.id)
        assert (ended.state, ended.exit.reason) == ("ended", "InstanceFailed")
        assert "TypeError" in ended.exit.message
        assert "lambda" not in ended.exit.message, "an unforeseen text could quote a secret"
        assert provider.pods == set(), "nothing of it runs on"
        assert billing.billable(cloud.ledger.rows) == ()
        await cloud.terminate(made.id, 0)
        await cloud.close()

    run(main())
    assert [record.message for record in caplog.records].count("simulated instance failed, ending it") == 1


@pytest.mark.parametrize("verb", ["started", "exited", "ended"])
def test_instance_unrecordable_state_ends_it_when_disk_has_space_again(verb):
    async def main():
        ledger = FullLedger(verb)
        cloud = account(ledger=ledger)
        made = await cloud.create(launch_spec("exit=37"))
        await asyncio.sleep(300)
        assert (await cloud.get(made.id)).state != "ended" or verb == "started"
        ledger.is_full = False
        await asyncio.sleep(60)
        ended = await cloud.get(made.id)
        assert ended.state == "ended"
        assert ended.exit.code == (128 if verb == "started" else 37)
        await cloud.close()

    run(main())


def test_a_program_that_does_not_end_when_it_is_stopped_does_not_keep_the_instance():
    class Deaf(Broken):
        async def stop(self, run: object, grace: float) -> None:
            pass

    async def main():
        provider = Deaf("", ERRORS[0])
        cloud = open_account(provider)
        made = await cloud.create(launch_spec())
        await asyncio.sleep(10)
        await cloud.terminate(made.id, 5)
        await asyncio.sleep(60)
        ended = await cloud.get(made.id)
        assert (ended.state, ended.exit.reason, ended.exit.code) == ("ended", "InstanceFailed", 137)
        assert provider.pods == set()
        await cloud.close()

    run(main())


def test_an_instance_that_lost_its_task_is_ended_and_can_be_asked_to_end():
    async def main():
        provider = Broken("", ERRORS[0])
        cloud = open_account(provider)
        made = await cloud.create(launch_spec())
        await asyncio.sleep(10)
        (task,) = [task for task in asyncio.all_tasks() if "InstanceLifecycle.run" in repr(task)]
        task.cancel()
        await asyncio.sleep(1)
        ended = await cloud.get(made.id)
        assert (ended.state, ended.exit.reason) == ("ended", "InstanceFailed")
        await cloud.terminate(made.id, 0)
        assert billing.billable(cloud.ledger.rows) == ()
        assert provider.pods == set()
        await cloud.close()

    run(main())


def test_half_a_row_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path, mark="m")
    ledger.write(Row(at=1.0, verb="create", instance="one"))
    whole, write = path.read_bytes(), os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:7]))
    with pytest.raises(OSError, match="No space left"):
        ledger.write(Row(at=2.0, verb="started", instance="one"))
    assert path.read_bytes() == whole
    monkeypatch.undo()
    ledger.write(Row(at=3.0, verb="started", instance="one"))
    ledger.close()
    assert Ledger.open(path, mark="m").instances["one"].started == 3.0
