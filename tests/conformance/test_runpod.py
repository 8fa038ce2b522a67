"""The account at RunPod passes the suite of clouds, against the stand-in with real containers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from skysail.cloud.errors import Gone, Rejected, Unsupported
from skysail.cloud.provider import Container
from tests.conformance.account_harness import AccountHarness, with_container
from tests.conformance.instances import CloudConformance, Real
from tests.conformance.local import local_provider
from tests.conformance.provider_harness import TIMEOUT_SECONDS, hear, outcome
from tests.support.runpod import QUICK, account, stand_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from skysail.cloud.account import Instance
    from skysail.cloud.provider import PortConnection

_HTTP_SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode() + b" " + body.upper())
server = http.server.HTTPServer(("", 8080), Handler)
print("ready", flush=True)
server.serve_forever()
"""


class TestRunPod(CloudConformance, Real):
    @pytest.fixture
    async def customer(self, tmp_path: Path) -> AsyncIterator[AccountHarness]:
        async with (
            local_provider(tmp_path) as provider,
            stand_in(provider, replace(QUICK, lag=0.05)) as (_, endpoint),
            account(endpoint) as cloud,
        ):
            yield AccountHarness(cloud)

    async def test_the_streams_are_kept_apart_and_pieces_are_in_order(self, customer: AccountHarness):
        """RunPod has one stream for both."""
        made = await customer.cloud.create(customer.launch_spec("seq 1 20000; echo err >&2"))
        pieces = [piece async for piece in customer.cloud.output(made.id)]
        heard = b"".join(piece.data for piece in pieces).decode().splitlines()
        assert [line for line in heard if line != "err"] == [str(number) for number in range(1, 20001)]
        assert [piece.at for piece in pieces] == sorted({piece.at for piece in pieces})

    @pytest.mark.parametrize(
        ("script", "want"),
        [("echo out; echo err >&2", (0, "out\n", "err\n")), ("exit 7", (7, "", "")), ("kill -KILL $$", (137, "", ""))],
    )
    async def test_a_command_ends_as_it_does(self, customer: AccountHarness, script, want):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("sh", "-c", script), stdin=False, tty=False)
        assert await outcome(session) == want
        await session.close()

    async def test_input_terminal_and_attach_are_refused(self, customer: AccountHarness):
        running = await customer.running()
        for attempt in (
            customer.cloud.exec(running.id, ("sh",), stdin=True, tty=False),
            customer.cloud.exec(running.id, ("sh",), stdin=False, tty=True),
            customer.cloud.attach(running.id, stdin=False),
        ):
            with pytest.raises(Unsupported):
                await attempt

    async def test_program_runs_once_though_its_container_is_restarted(self, customer: AccountHarness, tmp_path: Path):
        made = await customer.cloud.create(customer.launch_spec("echo run; kill -KILL $PPID"))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (137, "ContainerRestarted")
        assert await customer.said(made.id) == "run\n"

    async def test_a_mapped_port_answers(self, customer: AccountHarness):
        script = (
            "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True)\n"
            "c, _ = s.accept()\nheard = b''\nwhile data := c.recv(65536): heard += data\nc.sendall(heard.upper())\n"
            "c.close()\nimport time; time.sleep(1000)"
        )
        running = await self._serving(customer, script, "7000/tcp")
        connection = await _dialled(customer, running.id, 7000)
        await connection.write(b"ahoy" * 50_000)
        await connection.write_eof()
        assert await _heard(connection) == b"AHOY" * 50_000

    async def test_an_http_port_answers_through_the_proxy(self, customer: AccountHarness):
        running = await self._serving(customer, _HTTP_SERVER, "8080/http")
        connection = await _dialled(customer, running.id, 8080)
        await connection.write(b"POST /x HTTP/1.1\r\nHost: svc\r\nContent-Length: 4\r\n\r\nahoy")
        answer = await _heard(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"/x AHOY" in answer

    async def test_where_nobody_listens_or_no_port_is_open_it_is_said(self, customer: AccountHarness):
        running = await customer.running(replace(customer.launch_spec(), options=(("ports", "7001/tcp"),)))
        # The list of pods is shared for an interval: the first connection waits until it shows this pod with its ports.
        connection = await _dialled(customer, running.id, 7001)
        assert await _heard(connection) == b""
        with pytest.raises(Rejected, match="port 1"):
            await customer.cloud.dial(running.id, 1)

    async def test_a_missing_program_is_told_by_name(self, customer: AccountHarness):
        running = await customer.running()
        with pytest.raises(Rejected, match="no-such-program"):
            await customer.cloud.exec(running.id, ("no-such-program",), stdin=False, tty=False)

    async def test_many_commands_at_once(self, customer: AccountHarness):
        running = await customer.running()

        async def one(number: int) -> tuple[int, str, str]:
            script = f"echo {number}; exit {number}"
            return await outcome(await customer.cloud.exec(running.id, ("sh", "-c", script), stdin=False, tty=False))

        assert await asyncio.gather(*map(one, range(5))) == [(number, f"{number}\n", "") for number in range(5)]

    async def test_nobody_enters_what_does_not_run(self, customer: AccountHarness):
        ended = await customer.cloud.create(customer.short())
        await customer.exited(ended.id)
        for instance in ("nobody", ended.id):
            with pytest.raises(Gone):
                await customer.cloud.exec(instance, ("true",), stdin=False, tty=False)
            with pytest.raises(Gone):
                await customer.cloud.dial(instance, 7000)

    async def _serving(self, customer: AccountHarness, script: str, port: str) -> Instance:
        """A pod that listens at its port."""
        container = Container(name="main", image=customer.python_image, command=("python3", "-c", script))
        spec = with_container(customer.launch_spec(), container)
        running = await customer.running(replace(spec, options=(("ports", port),)))
        await hear(customer.cloud.output(running.id), "ready")
        return running


async def _dialled(customer: AccountHarness, pod: str, port: int) -> PortConnection:
    """Connect as soon as the port is mapped."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                return await customer.cloud.dial(pod, port)
            except Rejected as error:
                if error.reason != "PortNotMapped":
                    raise
                await asyncio.sleep(0.01)


async def _heard(connection: PortConnection) -> bytes:
    heard = b""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while data := await connection.read():
            heard += data
    await connection.close()
    return heard
