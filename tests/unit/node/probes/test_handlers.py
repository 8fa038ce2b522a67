"""Questions to a run: everything goes through its provider, nothing to any other host."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from skysail.cloud.errors import Rejected, Throttled
from skysail.cloud.provider import Output, RunId
from skysail.kube import certificates
from skysail.kube.client import kubeconfig
from skysail.local.provider.sessions import SocketConnection, connect_socket
from skysail.node.pod_types import Container, Handler, Probe
from skysail.node.probes.handlers import ProbeHandlers
from skysail.node.probes.pace import ProbePace
from tests.support import virtual_time
from tests.unit.node.pods import container
from tests.unit.node.probes.test_grpc_health import NOT_SERVING, SERVING, SETTINGS

RUN = RunId("u", "main", 0)
# Because a machine may be busy with other things.
LONG = 600.0


class Dialer:
    """The part of a provider that reaches ports. The pod's address leads nowhere: only a dialled line does."""

    def __init__(self) -> None:
        self.dialled: list[tuple[str, int, bool]] = []

    async def connect(self, pod: str, port: int, *, from_outside: bool) -> SocketConnection:
        self.dialled.append((pod, port, from_outside))
        try:
            return SocketConnection(await connect_socket("127.0.0.1", port))
        except OSError as error:
            raise Rejected("NotListening", f"Nothing in the pod answers on port {port}.") from error


def asks(port: int, dialer: Dialer | None = None) -> ProbeHandlers:
    ports = [{"name": "http", "containerPort": port}]
    of = msgspec.convert(container("main", ports=ports), Container)
    return ProbeHandlers(dialer or Dialer(), RUN, of, "192.0.2.1")


def probe(**fields) -> Probe:
    return msgspec.convert(fields, Probe)


async def answer_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """/ok is 200, everything else 503."""
    line = await reader.readline()
    status = b"200 OK" if b" /ok " in line else b"503 No"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


def says(answer: bytes):
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    return say


@pytest.fixture
async def listen():
    """Starts a server and returns its port."""
    servers = []

    async def start(answer, tls: ssl.SSLContext | None = None) -> int:
        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls))
        return servers[-1].sockets[0].getsockname()[1]

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("path", "answer"), [("/ok", ""), ("ok", ""), ("/x", "HTTP probe failed with statuscode: 503")]
)
async def test_an_http_probe_looks_at_the_status(listen, path, answer):
    port, dialer = await listen(answer_http), Dialer()
    assert await asks(port, dialer).probe(probe(httpGet={"path": path, "port": "http"}), LONG) == answer
    assert dialer.dialled == [("u", port, True)]


@pytest.mark.parametrize(("path", "answer"), [("/ok", ""), ("/x", "HTTP probe failed with statuscode: 503")])
async def test_an_https_probe_asks_whether_somebody_answers_and_not_who(listen, path, answer):
    stranger = certificates.certificate_authority("x", now=datetime.now(UTC), valid=timedelta(hours=1))
    own = certificates.server(stranger, ["elsewhere"], now=datetime.now(UTC), valid=timedelta(hours=1))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    kubeconfig.load_certificate(tls, own.certificate, own.key)
    port = await listen(answer_http, tls)
    action = probe(httpGet={"path": path, "port": port, "scheme": "HTTPS"})
    assert await asks(port).probe(action, LONG) == answer


async def test_an_https_probe_does_not_read_whom_the_machine_trusts(listen, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError

    for name in ("load_default_certs", "set_default_verify_paths", "load_verify_locations"):
        monkeypatch.setattr(ssl.SSLContext, name, refuse)
    port = await listen(answer_http)
    assert "SSL" in await asks(port).probe(probe(httpGet={"port": port, "scheme": "HTTPS"}), LONG)


async def test_https_to_a_server_without_it_is_a_failure(listen):
    port = await listen(answer_http)
    assert await asks(port).probe(probe(httpGet={"port": port, "scheme": "HTTPS"}), LONG)


async def test_what_answers_something_else_is_told(listen):
    port = await listen(says(b"220 mail ready\r\n"))
    assert await asks(port).probe(probe(httpGet={"port": port}), LONG) == "the response is not HTTP"
    assert await asks(port).probe(probe(grpc={"port": port}), LONG) == "the response is not HTTP/2"


async def test_a_tcp_probe_connects(listen):
    port = await listen(answer_http)
    assert await asks(port).probe(probe(tcpSocket={"port": port}), LONG) == ""
    assert "port 1" in await asks(port).probe(probe(tcpSocket={"port": 1}), LONG)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SETTINGS + SERVING, ""),
        (SETTINGS + NOT_SERVING, 'service unhealthy (responded with "NOT_SERVING")'),
        (SETTINGS, "the server rejected the health check: it must serve grpc.health.v1.Health"),
    ],
)
async def test_a_grpc_probe_believes_one_message(listen, answer, reason):
    port = await listen(says(answer))
    assert await asks(port).probe(probe(grpc={"port": port}), LONG) == reason


def test_an_answer_that_does_not_come_is_a_failure():
    class Silent(Dialer):
        async def connect(self, pod: str, port: int, *, from_outside: bool) -> SocketConnection:
            await asyncio.sleep(3600)
            raise AssertionError

    assert virtual_time.run(asks(1, Silent()).probe(probe(tcpSocket={"port": 1}), 2.0)) == "no answer within 2 s"


def test_a_hook_may_only_sleep_and_not_longer_than_there_is_time():
    async def play() -> float:
        handler = msgspec.convert({"sleep": {"seconds": 100}}, Handler)
        assert await asks(1).run_hook(handler, 5.0) == ""
        return asyncio.get_running_loop().time()

    assert virtual_time.run(play()) == 5.0


class Talk:
    """A command that prints so many pieces, and ends with a code or never."""

    def __init__(self, pieces: list[bytes], code: int | None) -> None:
        self.pieces = pieces
        self.code = code
        self.was_killed = False
        self.was_closed = False

    async def exec(self, run: RunId, command: tuple[str, ...], *, stdin: bool, tty: bool) -> Talk:
        return self

    async def output(self):
        for piece in self.pieces:
            yield Output("stdout", 0.0, piece)

    async def wait(self) -> int:
        if self.code is None:
            await asyncio.Event().wait()
        return self.code

    async def kill(self) -> None:
        self.was_killed = True

    async def close(self) -> None:
        self.was_closed = True


COMMAND = {"exec": {"command": ["x"]}}


def test_a_command_that_prints_without_end_does_not_fill_the_memory():
    talk = Talk([bytes(64 * 1024)] * 1000 + [b"the end"], code=3)
    tracemalloc.start()
    try:
        said = virtual_time.run(asks(1, talk).probe(probe(**COMMAND), 5.0))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said.endswith("the end")
    assert most < 2**20


@pytest.mark.parametrize(("code", "was_killed"), [(0, False), (3, False), (None, True)])
def test_a_command_that_is_not_waited_for_any_longer_is_killed(code, was_killed):
    talk = Talk([b"said"], code)
    answer = virtual_time.run(asks(1, talk).probe(probe(**COMMAND), 5.0))
    assert answer == {0: "", 3: "said", None: "no answer within 5 s"}[code]
    assert (talk.was_killed, talk.was_closed) == (was_killed, True)


class Busy(Dialer):
    """A provider without a request left."""

    async def connect(self, *_: object, **__: object):
        raise Throttled("The request quota is used up.", 60.0)


async def test_probe_without_a_request_left_has_no_result_and_a_hook_has_failed():
    action = probe(tcpSocket={"port": 1})
    assert await asks(1, Busy()).paced_probe(ProbePace(0), action, LONG) is None
    assert "quota" in await asks(1, Busy()).probe(action, LONG)
