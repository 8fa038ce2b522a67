"""Commands, readiness and ways into sandboxes, through the task command router and the tunnels."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import modal
import pytest
from modal.exception import ConflictError, InvalidError, NotFoundError

from tests.support.modal import PYTHON_IMAGE, shell

if TYPE_CHECKING:
    from tests.support.modal import StandInHarness

BACK_ENDS = pytest.mark.parametrize("gpu", [None, "T4"], ids=["V2", "V1"])
# Answers each HTTP request with the request itself.
ECHO = """
import socket, sys
open("/tmp/ready", "w").close()
server = socket.create_server(("", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    data = connection.recv(65536)
    if data:
        head = f"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: {len(data)}\\r\\n\\r\\n"
        connection.sendall(head.encode() + data)
    connection.close()
"""


@BACK_ENDS
async def test_exec_returns_output_and_code(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu)
    process = await sandbox.exec.aio(
        "sh", "-c", "echo out $K; pwd; echo err >&2; exit 5", env={"K": "v"}, workdir="/tmp"
    )
    assert await process.stdout.read.aio() == "out v\n/tmp\n"
    assert await process.stderr.read.aio() == "err\n"
    assert await process.wait.aio() == 5
    assert await process.poll.aio() == 5


async def test_exec_reads_standard_input(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000")
    process = await sandbox.exec.aio("sha256sum")
    data = b"nonce" * 100_000
    process.stdin.write(data)
    await process.stdin.drain.aio()
    process.stdin.write_eof()
    await process.stdin.drain.aio()
    assert (await process.stdout.read.aio()).startswith(hashlib.sha256(data).hexdigest())
    assert await process.wait.aio() == 0


async def test_exec_with_a_terminal_has_its_size(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000")
    process = await sandbox.exec.aio("sh", "-c", "test -t 0 && echo terminal", pty=True)
    assert "terminal" in await process.stdout.read.aio()
    assert await process.wait.aio() == 0


async def test_exec_beyond_its_timeout_is_ended(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000")
    process = await sandbox.exec.aio("sleep", "1000", timeout=1)
    assert await process.wait.aio() != 0


async def test_exec_of_an_unknown_program_is_refused(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000")
    with pytest.raises(InvalidError):
        await sandbox.exec.aio("no-such-program")


@BACK_ENDS
async def test_exec_in_an_ended_sandbox_is_refused(cloud: StandInHarness, gpu: str | None):
    sandbox = await shell(cloud, "sleep 1000", gpu=gpu)
    await sandbox.terminate.aio(wait=True)
    with pytest.raises((NotFoundError, ConflictError)):
        await sandbox.exec.aio("true")


async def test_exec_output_survives_cut_connections(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000")
    process = await sandbox.exec.aio("seq", "1", "20000")
    seen: list[str] = []
    async for chunk in process.stdout:
        seen.append(chunk)
        if len(seen) == 1:
            cloud.stand_in.connections.cut()
    assert "".join(seen) == "".join(f"{number}\n" for number in range(1, 20001))


@BACK_ENDS
@pytest.mark.parametrize("kind", ["tcp", "exec"])
async def test_readiness_probe_answers_when_the_program_is_ready(cloud: StandInHarness, gpu: str | None, kind: str):
    port = _free_port()
    probe = modal.Probe.with_tcp(port) if kind == "tcp" else modal.Probe.with_exec("test", "-e", "/tmp/ready")
    await _server(cloud, port, gpu=gpu, readiness_probe=probe)


async def test_readiness_probe_that_never_succeeds_times_out(cloud: StandInHarness):
    sandbox = await shell(cloud, "sleep 1000", readiness_probe=modal.Probe.with_exec("false"))
    with pytest.raises(modal.exception.TimeoutError):
        await sandbox.wait_until_ready.aio(timeout=1)


@BACK_ENDS
async def test_tunnel_reaches_the_declared_port(cloud: StandInHarness, gpu: str | None):
    port = _free_port()
    sandbox = await _server(cloud, port, gpu=gpu, encrypted_ports=[port])
    tunnels = await sandbox.tunnels.aio()
    assert "GET /nonce" in await _get(cloud, f"{tunnels[port].url}/nonce")
    again = await modal.Sandbox.from_id.aio(sandbox.object_id, client=await cloud.client())
    assert (await again.tunnels.aio())[port].url == tunnels[port].url


@BACK_ENDS
async def test_connect_token_lets_only_its_bearer_in(cloud: StandInHarness, gpu: str | None):
    port = _free_port()
    sandbox = await _server(cloud, port, gpu=gpu)
    given = await sandbox.create_connect_token.aio(port=port, user_metadata={"user": "ada"})
    seen = await _get(cloud, given.url, {"Authorization": f"Bearer {given.token}"})
    assert "X-Verified-User-Data" in seen
    for headers in ({"Authorization": "Bearer wrong"}, {}):
        with pytest.raises(aiohttp.ClientResponseError, match="401"):
            await _get(cloud, given.url, headers)


async def _server(cloud: StandInHarness, port: int, **wishes: Any) -> modal.Sandbox:
    wishes = {"readiness_probe": modal.Probe.with_tcp(port), **wishes}
    image = modal.Image.from_registry(PYTHON_IMAGE).entrypoint([])
    sandbox = await shell(cloud, "", argv=("python", "-c", ECHO, str(port)), image=image, **wishes)
    await sandbox.wait_until_ready.aio(timeout=60)
    return sandbox


def _free_port() -> int:
    """The sandboxes of tests are on the machine's own network."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def _get(cloud: StandInHarness, url: str, headers: dict[str, str] | None = None) -> str:
    context = ssl.create_default_context(cafile=str(cloud.ca))
    async with (
        asyncio.timeout(60),
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(url, ssl=context, headers=headers) as reply,
    ):
        return await reply.text()
