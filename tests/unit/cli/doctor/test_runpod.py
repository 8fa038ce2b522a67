from __future__ import annotations

from typing import TYPE_CHECKING

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


async def served(tmp_path: Path, *script: Fault, is_paid: bool = False, key: str = KEY):
    async with local_provider(tmp_path) as provider, stand_in(provider, QUICK, script=script) as (server, _):
        path = tmp_path / "runpod.sock"
        await server.start(unix_sockets.listen(path))
        found = await outcomes({"RUNPOD_KEY": key, "RUNPOD_API_BASE_URL": f"unix:{path}"}, is_paid=is_paid)
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


async def test_paid_check_brings_an_exit_code_back_and_deletes_its_pod(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(runpod, "_POLL_SECONDS", 0.05)
    found, pods = await served(tmp_path, is_paid=True)
    assert found["launch"][0] is Outcome.OK
    assert pods == {}
