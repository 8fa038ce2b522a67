"""A simulated cloud whose ledger cannot be read says so, and is no proof of anything."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from skysail.app.simulated_clouds import open_account
from skysail.base.names import ACCOUNT_MOCK
from skysail.cloud.errors import OutcomeUnknown
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.http.server import serve
from skysail.cloud.simulated.unavailable import UnavailableAccount
from skysail.cloud.simulated.vendors import MODAL, RUNPOD
from tests.unit.cloud.simulated.shop import launch_spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

WORDS = r"Line 1 of the ledger .*/simulated/modal.jsonl cannot be read .*: repair or delete the line"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "simulated").mkdir()
    (tmp_path / "simulated" / "modal.jsonl").write_text("{\n")
    return tmp_path


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[RemoteAccount, RemoteAccount]]:
    accounts = [open_account(vendor, folder) for vendor in (MODAL, RUNPOD)]
    path = folder / "clouds.sock"
    runner = await serve(accounts, "token", path)
    remotes = RemoteAccount(MODAL, path, "token"), RemoteAccount(RUNPOD, path, "token")
    yield remotes
    for opened in (*remotes, *accounts):
        await opened.close()
    await runner.cleanup()


async def test_whoever_asks_is_told_the_line_and_the_other_clouds_work(folder):
    async with served(folder) as (broken, whole):
        for call in (
            broken.list(),
            broken.get("i"),
            broken.create(launch_spec()),
            broken.terminate("i", 0.0),
            anext(broken.output("i")),
            broken.exec("i", ("true",), stdin=False, tty=False),
            broken.attach("i", stdin=False),
            broken.dial("i", 80),
        ):
            with pytest.raises(OutcomeUnknown, match=WORDS):
                await call
        assert (await whole.list()).complete


async def test_one_inside_the_operator_is_the_same_account_as_before(folder):
    opened = open_account(MODAL, folder)
    assert isinstance(opened, UnavailableAccount)
    assert (opened.name, opened.account, opened.terms) == ("modal", ACCOUNT_MOCK, MODAL.terms)
    with pytest.raises(OutcomeUnknown, match=WORDS):
        await opened.list()
    assert [change async for change in opened.watch()] == []


async def test_two_processes_never_make_the_same_id(tmp_path):
    ids = set()
    for number in range(2):
        opened = open_account(MODAL, tmp_path / str(number))
        ids.add((await opened.create(launch_spec())).id)
        await opened.close()
    assert len(ids) == 2
