"""Exec and ports of a pod at RunPod: mapped TCP ports, the proxy of HTTP ports, and clear refusals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from skysail.cloud.errors import Gone, OutcomeUnknown, Rejected, Unsupported
from skysail.cloud.runpod import api, sessions
from skysail.cloud.runpod.client import Endpoint
from skysail.cloud.runpod.sessions import ProxiedConnection
from skysail.cloud.runpod.stand_in.faults import Fault
from tests.support import virtual_time
from tests.support.runpod_scene import launch_spec, scene, virtual

if TYPE_CHECKING:
    pass

POD = api.Pod(id="pod1", status="RUNNING", ports=("22/tcp", "8080/http"))
REAL = Endpoint()


def mapped(**fields: object) -> api.Pod:
    row = api.PortMapping(**{"private": 22, "public": 40022, "type": "tcp", "ip": "203.0.113.9", **fields})
    return api.Pod(id="pod1", status="RUNNING", ports=("22/tcp",), runtime=api.PodRuntime(ports=(row,)))


class Pipe:
    """A connection into a pod that answers everything in upper case."""

    def __init__(self) -> None:
        self._data: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self._data.get()

    async def write(self, data: bytes) -> None:
        self._data.put_nowait(data.upper())

    async def write_eof(self) -> None:
        self._data.put_nowait(b"")

    async def close(self) -> None:
        self._data.put_nowait(b"")


async def running_pod(at, *ports: str):
    """A running pod whose ports lead to a `Pipe`."""

    async def connect(_pod: str, _port: int, **_: object) -> Pipe:
        return Pipe()

    at.provider.connect = connect
    made = await at.account.create(launch_spec(options=(("ports", ",".join(ports)),)))
    await at.until_running(1)
    return made


@virtual
async def test_mapped_tcp_port_carries_bytes_both_ways_to_the_end():
    async with scene() as at:
        made = await running_pod(at, "5432/tcp")
        connection = await at.account.dial(made.id, 5432)
        await connection.write(b"ahoy ")
        await connection.write(b"there")
        await connection.write_eof()
        said = b""
        while piece := await connection.read():
            said += piece
        assert said == b"AHOY THERE"
        await connection.close()
        await at.account.terminate(made.id, 0.0)
        with pytest.raises(Gone):
            await at.account.dial(made.id, 5432)


@virtual
async def test_dial_to_a_running_pod_that_no_list_shows_yet_says_to_retry():
    async with scene() as at:
        made = await at.account.create(launch_spec(options=(("ports", "5432/tcp"),)))
        at.account._directory.update([], is_complete=True)
        while (await at.account.get(made.id)).state != "running":  # noqa: ASYNC110 (asking is the only way)
            await asyncio.sleep(0.1)
        with pytest.raises(Rejected, match=r"does not list pod .* yet") as caught:
            await at.account.dial(made.id, 5432)
        assert caught.value.reason == "PortNotMapped"


@virtual
async def test_port_that_is_not_mapped_yet_or_not_exposed_says_which():
    async with scene(port=60.0) as at:
        made = await running_pod(at, "5432/tcp")
        with pytest.raises(Rejected, match="not mapped port 5432 yet") as caught:
            await at.account.dial(made.id, 5432)
        assert caught.value.reason == "PortNotMapped"
        with pytest.raises(Rejected, match="does not expose") as caught:
            await at.account.dial(made.id, 80)
        assert caught.value.reason == "PortNotExposed"
        await asyncio.sleep(61.0)
        await (await at.account.dial(made.id, 5432)).close()


@pytest.mark.parametrize(
    "ip", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "fd00::1", "100.64.0.1", "localhost", "x/y"]
)
async def test_mapping_into_the_own_network_is_not_connected_to(ip):
    with pytest.raises(Rejected, match="not public"):
        await sessions.connect(REAL, mapped(ip=ip), 22)


@pytest.mark.parametrize("public", [-1, 65536, 2**70])
async def test_mapping_to_a_number_that_no_port_has_is_rejected(public):
    with pytest.raises(Rejected, match="no port has"):
        await sessions.connect(REAL, mapped(ip="8.8.8.8", public=public), 22)


@pytest.mark.parametrize("ip", ["x" * 1000, "x/y", "127.0.0.1\0"])
async def test_mapping_of_a_stand_in_to_no_address_is_rejected(ip):
    with pytest.raises(Rejected, match="not public"):
        await sessions.connect(Endpoint("http://127.0.0.1:1"), mapped(ip=ip), 22)


async def test_mapping_that_does_not_answer_is_rejected():
    with pytest.raises(Rejected) as caught:
        await sessions.connect(Endpoint("http://127.0.0.1:1"), mapped(ip="127.0.0.1", public=1), 22)
    assert caught.value.reason == "PortUnreachable"


class Sink:
    """The writing end of a connection."""

    def __init__(self) -> None:
        self.data = b""
        self.is_broken = False

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        if self.is_broken:
            raise ConnectionResetError

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise OSError("closed")

    def close(self) -> None: ...


def proxied() -> tuple[ProxiedConnection, Sink]:
    sink = Sink()
    return ProxiedConnection(asyncio.StreamReader(), sink, "pod1-8080.proxy.runpod.net"), sink  # type: ignore[arg-type]


async def test_request_through_the_proxy_names_its_pod_and_closes():
    connection, sink = proxied()
    request = b"POST /x HTTP/1.1\r\nHost: svc\r\nA: host: x\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody"
    for at in range(0, len(request), 7):
        await connection.write(request[at : at + 7])
    await connection.write(b"more")
    head, _, body = sink.data.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /x HTTP/1.1",
        b"Host: pod1-8080.proxy.runpod.net",
        b"Connection: close",
        b"A: host: x",
        b"Content-Length: 4",
    ]
    assert body == b"bodymore"


async def test_websocket_through_the_proxy_stays_open():
    connection, sink = proxied()
    await connection.write(
        b"GET /ws HTTP/1.1\r\nHost: svc\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00"
    )
    assert b"Connection: Upgrade\r\nUpgrade: websocket" in sink.data
    assert b"Connection: close" not in sink.data
    assert sink.data.endswith(b"\r\n\r\n\x81\x00")


async def test_bytes_that_are_no_http_are_rejected_and_a_broken_connection_is_gone():
    connection, sink = proxied()
    with pytest.raises(Rejected, match="map it as tcp"):
        await connection.write(b"x" * 80_000)
    other, sink = proxied()
    sink.is_broken = True
    with pytest.raises(Gone):
        await other.write(b"GET / HTTP/1.1\r\n\r\n")
    await other.write_eof()


async def run(at, made) -> sessions.OneShotExec:
    return await at.account.exec(made.id, ("true",), stdin=False, tty=False)


@virtual
async def test_exec_without_the_call_at_the_api_is_unsupported():
    async with scene(has_exec=False) as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        with pytest.raises(Unsupported, match="no exec for this account"):
            await run(at, made)


@virtual
async def test_exec_in_a_pod_that_vanished_is_gone():
    async with scene(has_exec=False) as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)
        record = at.service.pods.pop(made.id)
        with pytest.raises(Gone):
            await run(at, made)
        await record.terminate()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (api.ExecResult(), OutcomeUnknown),
        (Rejected("MethodNotAllowed", "no"), Unsupported),
        (Rejected("Conflict", "The pod is not running."), Rejected),
    ],
)
def test_exec_with_another_answer_than_expected_is_an_error(answer, error):
    async def check() -> None:
        async with scene() as at:
            made = await at.account.create(launch_spec())
            await at.until_running(1)

            async def answered(*_: object) -> api.ExecResult:
                if isinstance(answer, Exception):
                    raise answer
                return answer

            at.account.client.exec = answered
            with pytest.raises(error):
                await run(at, made)

    virtual_time.run(check())


@virtual
async def test_exec_that_times_out_says_so():
    async with scene() as at:
        made = await at.account.create(launch_spec())
        await at.until_running(1)

        async def answered(*_: object) -> api.ExecResult:
            return api.ExecResult(timed_out=True, stdout="begun\n")

        at.account.client.exec = answered
        session = await run(at, made)
        pieces = [(piece.stream, piece.data) async for piece in session.output()]
        assert pieces[0] == ("stdout", b"begun\n")
        assert b"25 seconds" in pieces[1][1]
        assert await session.wait() == 124


@pytest.mark.parametrize("what", ["500", "lost", "proxy-403", "redirect", "429"])
def test_exec_with_a_fault_is_an_error_of_the_tree(what):
    async def check() -> None:
        async with scene(Fault(what=what, on="exec")) as at:
            made = await at.account.create(launch_spec())
            await at.until_running(1)
            with pytest.raises(Exception, match="RunPod"):
                await run(at, made)

    virtual_time.run(check())
