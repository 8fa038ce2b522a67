"""What goes wrong on the wire is what a caller of a real cloud would meet."""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from msgspec.structs import replace

from skysail.base import unix_sockets
from skysail.cloud.account import Member
from skysail.cloud.errors import Gone, NoCapacity, OutcomeUnknown, ProviderError, Rejected, Throttled, Unsupported
from skysail.cloud.provider import File, ProjectedFiles, Volume
from skysail.cloud.simulated.account import SimulatedAccount
from skysail.cloud.simulated.faults import FAULTS_BY_OPERATION, Fault
from skysail.cloud.simulated.http.client import RemoteAccount
from skysail.cloud.simulated.http.protocol import ErrorMessage
from skysail.cloud.simulated.http.server import serve
from skysail.cloud.simulated.ledger import Ledger
from tests.unit.cloud.simulated.shop import PLAIN, launch_spec
from tests.unit.cloud.simulated.test_faults import DONE, ERRORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICK = replace(PLAIN, start=0.0, run=3600.0)


@asynccontextmanager
async def shop(
    *faults: Fault, token: str = "right", seconds: float = 20.0
) -> AsyncIterator[tuple[SimulatedAccount, RemoteAccount]]:
    account = SimulatedAccount(QUICK, Ledger(), now=time.time, script=faults)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clouds.sock"
        runner = await serve([account], "right", path)
        async with remote(path, token, seconds) as client:
            yield account, client
        await runner.cleanup()
    await account.close()


@asynccontextmanager
async def remote(path: Path, token: str = "right", seconds: float = 20.0) -> AsyncIterator[RemoteAccount]:
    client = RemoteAccount(QUICK, path, token, seconds=seconds)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["create"] if what in ERRORS])
async def test_a_create_that_goes_wrong_is_told_as_it_is_and_called_once(what):
    async with shop(Fault(on="create", at=1, what=what)) as (account, client):
        with pytest.raises(ERRORS[what]):
            await client.create(launch_spec())
        assert [row.verb for row in account.ledger.rows][:1] == ["create" if what in DONE else "refused"]
        assert account.script.calls["create"] == 1


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["list"] if what in ERRORS])
async def test_a_listing_that_goes_wrong_is_no_listing(what):
    async with shop(Fault(on="list", what=what)) as (_, client):
        with pytest.raises(ERRORS[what]):
            await client.list()


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["look"] if what in ERRORS and what != "404"])
async def test_a_look_that_goes_wrong_is_no_absence(what):
    async with shop(Fault(on="look", what=what)) as (_, client):
        with pytest.raises(ERRORS[what]):
            await client.get("simulated-plain-1")


@pytest.mark.parametrize("what", [what for what in FAULTS_BY_OPERATION["end"] if what in ERRORS])
async def test_an_end_that_goes_wrong_is_told_as_it_is(what):
    async with shop(Fault(on="end", what=what)) as (_, client):
        made = await client.create(launch_spec())
        with pytest.raises(ERRORS[what]):
            await client.terminate(made.id, 0)


async def test_http_cloud_slow_answer_is_unknown_outcome_and_instance_is_created():
    async with shop(Fault(on="create", what="slow", seconds=3.0), seconds=2.0) as (account, client):
        changes = account.watch()
        with pytest.raises(OutcomeUnknown, match="gave no answer"):
            await client.create(launch_spec(claim="slow"))
        assert await anext(changes) == "slow"
        assert len((await account.list()).instances) == 1


async def test_however_many_are_listened_to_there_is_room_for_a_call():
    async with shop(seconds=60.0) as (account, client):
        ids = [account.inject_orphan().id for _ in range(150)]
        listening_to = [asyncio.create_task(anext(client.output(id_), None)) for id_ in ids]
        await asyncio.sleep(0.1)
        assert len((await client.list()).instances) == len(ids)
        for task in listening_to:
            task.cancel()
        await asyncio.gather(*listening_to, return_exceptions=True)


@pytest.mark.parametrize("token", ["wrong", "", "é", "rightly"])
async def test_a_wrong_token_is_refused_for_everything(token):
    async with shop(token=token) as (account, client):
        planted = account.inject_orphan()
        for call in (
            client.create(launch_spec()),
            client.list(),
            client.get(planted.id),
            client.terminate(planted.id, 0),
            client.delete_volume("default", "uid-1"),
            anext(client.output(planted.id)),
            client.exec(planted.id, ("true",), stdin=False, tty=False),
            client.dial(planted.id, 80),
        ):
            with pytest.raises(Rejected) as rejected:
                await call
            assert rejected.value.reason == "Unauthorized"
        assert [row.verb for row in account.ledger.rows if row.instance != planted.id] == []
        assert account.script.calls == {}


async def test_volume_is_deleted_by_its_own_name_only():
    async with shop() as (account, client):
        removed: list[str] = []

        async def remove(disk: str) -> None:
            removed.append(disk)

        account.remove_disk = remove
        await client.delete_volume("default", "uid-1-0a1b2c3d")
        for name in ("..", "../uid-1", ".", "a/b", "a\x00", "x" * 73):
            with pytest.raises(ProviderError):
                await client.delete_volume("default", name)
        assert removed == [f"{account.name}-uid-1-0a1b2c3d"]


async def test_where_nobody_listens_nothing_is_known(tmp_path):
    async with remote(tmp_path / "nobody.sock") as client:
        for call in (client.create(launch_spec()), client.list(), client.get("i"), client.terminate("i", 0)):
            with pytest.raises(OutcomeUnknown):
                await call
        with pytest.raises(OutcomeUnknown):
            await client.dial("i", 80)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"null"),
        (200, b"[]"),
        (200, b"<html>welcome</html>"),
        (200, b'{"instances": null}'),
        (200, b'{"instances": [{"id": 7}]}'),
        (200, b'{"id": {}, "claim": "c", "cluster": "", "state": "running", "created": 0}'),
        (204, b""),
        (302, b""),
        (403, b"<html>the proxy says no</html>"),
        (404, b"<html>no such page</html>"),
        (410, b""),
        (422, b'{"kind": "Odd", "message": ""}'),
        (502, b""),
        (503, b"{}"),
        (500, b'{"kind": "NoCapacity", "message": "a liar"}'),
    ],
)
async def test_a_strange_answer_says_nothing(tmp_path, status, body):
    async def strange(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", strange)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, unix_sockets.listen(tmp_path / "strange.sock")).start()
    async with remote(tmp_path / "strange.sock") as client:
        for call in (client.create(launch_spec()), client.list(), client.get("i")):
            with pytest.raises(OutcomeUnknown):
                await call
    await runner.cleanup()


async def test_the_socket_is_for_its_owner_only_and_may_lie_deep(tmp_path):
    folder = tmp_path.joinpath(*["deep" * 10] * 5)
    folder.mkdir(parents=True)
    path = folder / "clouds.sock"
    account = SimulatedAccount(QUICK, Ledger(), now=time.time)
    runner = await serve([account], "right", path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {type(address) for address in runner.addresses} == {str}, "paths only, and no port"
    async with remote(path) as client:
        assert (await client.list()).instances == ()
    await runner.cleanup()
    await account.close()


@pytest.mark.parametrize("name", ["a/b", "../instances", "a?b=c#d", "é %2F", "."])
async def test_an_id_is_never_a_path(name):
    async with shop() as (account, client):
        account.inject_orphan()
        assert await client.get(name) is None
        with pytest.raises(Gone):
            await client.terminate(name, 0)


async def test_an_order_brings_its_files_along():
    async with shop() as (_, client):
        wanted = launch_spec()
        projected_files = ProjectedFiles((File("big", b"\xff" * 3 * 2**20),))
        pod = replace(wanted.pod, volumes=(Volume("v", projected_files),))
        assert (await client.create(replace(wanted, members=(Member(pod, wanted.container),)))).claim == "claim"


async def test_what_is_no_order_is_refused():
    async with shop() as (account, client):
        with pytest.raises(Rejected, match="cannot be decoded"):
            await client._call("POST", "/instances", body=b"{}")
        assert account.ledger.rows == []


async def test_a_cloud_that_is_not_there_is_told():
    async with shop() as (_, client):
        client._base = client._base.replace("plain", "other")
        with pytest.raises(Gone, match="only plain"):
            await client.list()


async def test_changes_are_told_again_after_the_connection_broke(monkeypatch):
    monkeypatch.setattr("skysail.cloud.simulated.http.client._RECONNECT_SECONDS", 0.01)
    async with shop() as (account, client):
        changes = client.watch()
        for claim in ("one", "two"):
            hearing = asyncio.create_task(_until(changes, claim))
            while not hearing.done():  # nobody is told what happened before
                account.inject_orphan(claim=claim)
                await asyncio.wait({hearing}, timeout=0.02)
            await hearing
            for connection in list(client._session.connector._acquired):
                connection.transport.abort()
        await changes.aclose()


async def test_a_connection_for_changes_that_ends_at_once_is_not_opened_again_at_once(monkeypatch):
    monkeypatch.setattr("skysail.cloud.simulated.http.client._RECONNECT_SECONDS", 3600.0)
    async with shop() as (_, client):
        opened: list[str] = []

        async def lines(path: str) -> AsyncIterator[bytes]:
            opened.append(path)
            for nothing in ():
                yield nothing

        monkeypatch.setattr(client, "_lines", lines)
        hearing = asyncio.create_task(anext(client.watch()))
        for _ in range(100):
            await asyncio.sleep(0)
        assert opened == ["/changes"]
        hearing.cancel()
        await asyncio.wait([hearing])


async def test_who_leaves_is_not_followed_any_more():
    async with shop() as (account, client):
        planted = account.inject_orphan()
        output = client.output(planted.id)
        assert b"simulated" in (await anext(output)).data
        tape = account._instances.lifecycles[planted.id].program._output
        assert len(tape._readers) == 1
        await output.aclose()
        async with asyncio.timeout(600):
            while tape._readers:  # noqa: ASYNC110 (the other end of a connection)
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "error",
    [
        Gone("g"),
        Rejected("Reason", "r"),
        Unsupported("u"),
        NoCapacity("n"),
        Throttled("t", 7.5),
        OutcomeUnknown("k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_over_the_wire_as_it_was(error: ProviderError):
    got = ErrorMessage.of(error).error()
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))


async def _until(changes: AsyncIterator[str], claim: str) -> None:
    async for told in changes:
        if told == claim:
            return
