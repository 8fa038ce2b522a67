"""`skysail doctor modal` and `test_real_modal.py` against the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from skysail.cli.doctor import modal as part
from skysail.cli.doctor.checks import DoctorContext, Outcome
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.http_address import HttpAddress
from skysail.cloud.modal import checks
from skysail.cloud.modal.checks import AccountChecks
from skysail.cloud.modal.stand_in.faults import Fault
from tests.support.modal import CREDENTIALS, PYTHON_IMAGE, stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.modal import StandInHarness

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[StandInHarness]:
    async with stand_in(tmp_path) as harness:
        yield harness


async def test_every_check_of_an_account_passes_and_leaves_nothing(service):
    token = {"token_id": CREDENTIALS.token_id, "token_secret": CREDENTIALS.token_secret}
    account = AccountChecks(token, image=PYTHON_IMAGE)
    try:
        assert "Modal answers" in await account.hello()
        assert "offers" in await account.prices()
        assert await account.inventory() == "Sandboxes can be listed."
        assert "code 0" in await account.sandbox()
        assert "T4" in await account.sandbox("T4")
        assert "200" in await account.port()
        assert await account.tunnel() == "A tunnel to a sandbox answered with its token, and not without."
        assert "deployed and stopped" in await account.deploy()
        assert await account.inventory() == "Sandboxes can be listed."
    finally:
        await account.close()
    service.check_ledger()


async def found(service: StandInHarness, *, is_paid: bool = False, **variables: str) -> dict[str, Outcome]:
    environment = {**service.env, **variables}
    context = DoctorContext(environment=environment, is_paid=is_paid)
    return {check.name: check.outcome async for check in part.MODAL.checks(context)}


async def test_doctor_without_permission_to_pay_costs_nothing(service):
    outcomes = await found(service)
    free = {"credentials", "api", "prices", "inventory"}
    assert {name for name, outcome in outcomes.items() if outcome is Outcome.OK} == free
    assert {outcome for name, outcome in outcomes.items() if name not in free} == {Outcome.SKIPPED}
    assert service.ledger.rows == []


async def test_doctor_with_permission_to_pay_runs_sandboxes(service, monkeypatch):
    monkeypatch.setattr(checks.AccountChecks.__init__, "__defaults__", ("", PYTHON_IMAGE))
    assert set((await found(service, is_paid=True)).values()) == {Outcome.OK}
    service.check_ledger()


async def test_tunnel_that_everybody_may_use_fails(monkeypatch):
    async def serve(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/", serve)
    async with TestServer(app) as server:
        address = HttpAddress(url=str(server.make_url("/")))
        with pytest.raises(OutcomeUnknown, match="without its token"):
            await checks.check_tunnel(address)
    monkeypatch.setattr(checks, "_TUNNEL_SECONDS", 0.0)
    with pytest.raises(OutcomeUnknown, match="answered nothing"):
        await checks.check_tunnel(address)


async def test_doctor_with_a_wrong_token_fails_with_the_fix(service):
    context = DoctorContext(environment={**service.env, "MODAL_TOKEN_SECRET": "wrong"})
    seen = [check async for check in part.MODAL.checks(context)]
    assert [check.outcome for check in seen] == [Outcome.OK, Outcome.FAILED]
    assert "rejects the token" in seen[-1].message


async def test_doctor_during_an_outage_fails_at_the_api(service):
    service.inject(Fault(rpc="*", kind="unavailable", times=None))
    assert (await found(service))["api"] is Outcome.FAILED


def test_live_check_without_a_token_names_it_and_exits_2(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    command = [sys.executable, str(ROOT / "test_real_modal.py")]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET not found" in done.stdout
