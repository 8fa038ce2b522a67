from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from skysail.base import unix_sockets
from skysail.cli.doctor import runpod
from skysail.cli.doctor.checks import DoctorContext, Outcome
from skysail.cloud.runpod.stand_in.faults import Fault
from tests.conformance.local import local_provider
from tests.support.runpod import KEY, QUICK, stand_in

if TYPE_CHECKING:
    from pathlib import Path


async def outcomes(environment: dict[str, str], *, is_paid: bool = False) -> dict[str, tuple[Outcome, str]]:
    context = DoctorContext(environment=environment, is_paid=is_paid)
    return {check.name: (check.outcome, check.message) async for check in runpod.RUNPOD.checks(context)}


async def served(tmp_path: Path, *script: Fault, is_paid: bool = False, key: str = KEY, meanwhile=None):
    """Outcomes, and the pods that are left. `meanwhile` runs at the same time, with the stand-in's service."""
    async with local_provider(tmp_path) as provider, stand_in(provider, QUICK, script=script) as (server, _):
        path = tmp_path / "runpod.sock"
        await server.start(unix_sockets.listen(path))
        side = asyncio.create_task(meanwhile(server.service)) if meanwhile else None
        await asyncio.sleep(0)
        found = await outcomes({"RUNPOD_KEY": key, "RUNPOD_API_BASE_URL": f"unix:{path}"}, is_paid=is_paid)
        if side is not None:
            await side
        return found, dict(server.service.pods)


async def test_without_a_key_says_what_to_set():
    found = await outcomes({})
    assert found["credentials"][0] is Outcome.MISSING
    assert "RUNPOD_API_KEY" in found["credentials"][1]


async def test_unprotected_address_is_a_failure():
    found = await outcomes({"RUNPOD_API_KEY": "k", "RUNPOD_API_BASE_URL": "http://example.test"})
    assert found["address"][0] is Outcome.FAILED


async def test_account_that_works_is_ok_and_nothing_is_paid(tmp_path: Path):
    found, pods = await served(tmp_path)
    assert {name: outcome for name, (outcome, _) in found.items()} == {
        "credentials": Outcome.OK,
        "pods": Outcome.OK,
        "offers": Outcome.OK,
        "launch": Outcome.SKIPPED,
    }
    assert "RTX A4000" in found["offers"][1]
    assert pods == {}


async def test_wrong_key_is_a_failure_with_the_fix(tmp_path: Path):
    found, _ = await served(tmp_path, key="wrong")
    assert found["pods"][0] is Outcome.FAILED
    assert "runpod-controller-secrets" in found["pods"][1]
    assert "offers" not in found


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(runpod, "_POLL_SECONDS", 0.05)


@pytest.mark.usefixtures("_quick")
async def test_paid_check_brings_an_exit_code_back_and_deletes_its_pod(tmp_path: Path):
    found, pods = await served(tmp_path, is_paid=True)
    assert found["launch"][0] is Outcome.OK
    assert pods == {}


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("what", ["500-done", "malformed-done"])
async def test_pod_of_a_create_without_an_answer_is_deleted(tmp_path: Path, what):
    found, pods = await served(tmp_path, Fault(what=what, on="create"), is_paid=True)
    assert found["launch"][0] is Outcome.FAILED
    assert pods == {}


@pytest.mark.usefixtures("_quick")
async def test_pod_that_may_exist_is_named(tmp_path: Path):
    found, _ = await served(tmp_path, Fault(what="500", on="create"), is_paid=True)
    assert found["launch"][0] is Outcome.FAILED
    assert "Pod skysail-skysail--doctor-" in found["launch"][1]


@pytest.mark.usefixtures("_quick")
async def test_pod_that_cannot_be_deleted_is_a_failure_with_its_id(tmp_path: Path):
    found, pods = await served(tmp_path, Fault(what="500", on="delete"), is_paid=True)
    (id_,) = pods
    assert found["launch"][0] is Outcome.FAILED
    assert f"Pod {id_} is not deleted" in found["launch"][1]


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("script", [(), (Fault(what="timeout-done", on="create"),)])
async def test_sigterm_deletes_the_pod(tmp_path: Path, script):
    left = []

    async def end(service) -> None:
        left.append(service)
        while not service.pods:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        await served(tmp_path, Fault(what="404", on="logs"), *script, is_paid=True, meanwhile=end)
    assert caught.value.code == 143
    assert left[0].pods == {}


@pytest.mark.usefixtures("_quick")
async def test_pod_of_an_earlier_check_is_deleted(tmp_path: Path, monkeypatch):
    async def age(service) -> None:
        while not service.pods:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for record in service.pods.values():
            record.created -= 1000.0

    async with local_provider(tmp_path) as provider, stand_in(provider, QUICK) as (server, _):
        path = tmp_path / "runpod.sock"
        await server.start(unix_sockets.listen(path))
        variables = {"RUNPOD_KEY": KEY, "RUNPOD_API_BASE_URL": f"unix:{path}"}
        aging = asyncio.create_task(age(server.service))
        with monkeypatch.context() as patch:
            patch.setattr(runpod, "_deleted", _nothing)
            await outcomes(variables, is_paid=True)
        await aging
        (old,) = server.service.pods
        found = await outcomes(variables, is_paid=True)
        assert found["launch"][0] is Outcome.OK
        assert old not in server.service.pods
        assert server.service.pods == {}


async def _nothing(*_: object, **__: object) -> str:
    return ""
