"""The routes with real processes behind them and WebSocket clients before them, without a cluster between."""

import asyncio
import json
import struct

import pytest
from aiohttp import ClientSession, WSServerHandshakeError
from aiohttp.test_utils import make_mocked_request

from skysail.cloud.errors import Gone, OutcomeUnknown
from skysail.cloud.provider import Features, Output
from skysail.node.log_store import LogQuery, LogStore
from skysail.node.server.backend import PodRef
from skysail.node.server.container_logs import parse_query
from skysail.node.server.errors import BadRequest, Forbidden
from skysail.node.server.exec_attach import sizes
from skysail.node.server.routes import KubeletApi
from tests.support.node_backend import ProcessBackend, listening

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PLACE = PodRef(namespace="ns", pod="pod", uid="uid")


class OpenGate:
    is_open = True

    async def check(self, request):
        if not self.is_open:
            raise Forbidden("closed")


class Node:
    def __init__(self, backend, gate, app, url, session):
        self.backend = backend
        self.gate = gate
        self.app = app
        self._url = str(url)
        self._session = session

    def connect(self, path, *protocols):
        return self._session.ws_connect(self._url + path, protocols=protocols, max_msg_size=0)

    def open(self, path):
        return self._session.get(self._url + path)

    async def get(self, path, method="GET"):
        async with self._session.request(method, self._url + path) as reply:
            return reply.status, await reply.text()


@pytest.fixture
async def node(tmp_path):
    backend, gate = ProcessBackend(LogStore(tmp_path)), OpenGate()
    await backend.start(PLACE, ("cat",))
    api = KubeletApi("node", backend, gate, metrics=lambda: b"own 1\n", clock=lambda: 0.0)
    app = api.application()
    async with ClientSession() as session, listening(app) as url:
        yield Node(backend, gate, app, url, session)
    await backend.close()


async def heard(socket):
    """What was said on each channel until the socket was closed."""
    said = {}
    async for message in socket:
        said[message.data[0]] = said.get(message.data[0], b"") + message.data[1:]
    return said


def exec_path(*command, flags="output=1&error=1", uid=""):
    query = "&".join([f"command={word}" for word in command] + [flags])
    return f"/exec/ns/pod{uid}/main?{query}"


@pytest.mark.parametrize("uid", ["", "/uid"])
@pytest.mark.parametrize("protocol", [V5, V4])
async def test_exec_with_and_without_uid(node, uid, protocol):
    async with node.connect(exec_path("sh", "-c", "echo out;echo err>%262;exit 3", uid=uid), protocol) as socket:
        said = await heard(socket)
    assert (said[1], said[2]) == (b"out\n", b"err\n")
    assert json.loads(said[3])["details"] == {"causes": [{"reason": "ExitCode", "message": "3"}]}


@pytest.mark.parametrize("protocols", [("channel.k8s.io",), ()], ids=["first protocol", "none offered"])
@pytest.mark.parametrize(("code", "said"), [(3, b"command terminated with non-zero exit code: 3"), (0, None)])
async def test_exec_over_the_first_protocol_has_a_plain_status(node, protocols, code, said):
    async with node.connect(exec_path("sh", "-c", f"echo out;exit {code}"), *protocols) as socket:
        heard_ = await heard(socket)
    assert (heard_[1], heard_.get(3)) == (b"out\n", said)


async def test_a_command_may_be_longer_than_common_limits_of_a_request_line(node):
    long = "x" * 100_000
    async with node.connect(exec_path("sh", "-c", f"echo {long}|wc -c"), V5) as socket:
        assert (await heard(socket))[1].strip() == b"100001"


async def test_input_that_is_not_read_yet_blocks_nobody(node, tmp_path):
    """Ten megabytes wait, mostly on disk, while pings are answered; then the program reads them all."""
    go = tmp_path / "go"
    script = f"until test -e {go};do sleep 0.01;done;wc -c"
    async with node.connect(exec_path("sh", "-c", script, flags="input=1&output=1"), V5) as socket:
        assert (await socket.receive()).data == b"\x01"
        for _ in range(100):
            await socket.send_bytes(b"\x00" + bytes(100_000))
        await socket.send_bytes(b"\xff\x00")
        go.touch()
        assert (await heard(socket))[1].strip() == b"10000000"


class Faulty:
    """A session whose provider fails while it runs."""

    def __init__(self, error):
        self.error = error
        self.is_closed = False

    async def output(self):
        yield Output("stdout", 0.0, b"begun")
        raise self.error

    async def close(self):
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OutcomeUnknown("the cloud does not answer"), "the cloud does not answer"),
        (OSError("broken"), "broken"),
        (RuntimeError("a bug"), "the node failed while it served this command"),
    ],
    ids=["provider", "system", "bug"],
)
async def test_a_fault_behind_is_a_failure_and_never_silence(node, error, words):
    session = Faulty(error)

    async def start(*_, **__):
        return session

    node.backend.exec = start
    async with node.connect(exec_path("any"), V5) as socket:
        said = await heard(socket)
    assert said[1] == b"begun"
    assert words in json.loads(said[3])["message"]
    assert json.loads(said[3])["status"] == "Failure"
    assert session.is_closed


async def test_a_user_who_leaves_ends_the_command(node):
    talks = []
    start = node.backend.exec

    async def watched(*arguments, **options):
        talks.append(await start(*arguments, **options))
        return talks[-1]

    node.backend.exec = watched
    async with node.connect(exec_path("sh", "-c", "echo begun;exec sleep 1000"), V5) as socket:
        assert [(await socket.receive()).data for _ in range(2)] == [b"\x01", b"\x01begun\n"]
    assert await talks[0].wait() == 128 + 9


async def test_attach_ends_with_success_whatever_the_exit_code(node):
    container = await node.backend.start(PLACE, ("sh", "-c", "read line;echo $line;exit 7"))
    async with node.connect("/attach/ns/pod/main?input=1&output=1", V5) as socket:
        await socket.receive()
        await socket.send_bytes(b"\x00hello\n")
        said = await heard(socket)
    assert said[1] == b"hello\n"
    assert json.loads(said[3])["status"] == "Success"
    assert await container.talk.wait() == 7


@pytest.fixture
async def upper_port():
    """Answers a line in capitals and closes."""

    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_the_old_form_of_port_forward(node, upper_port):
    async with node.connect(f"/portForward/ns/pod?port={upper_port}", V4) as socket:
        port = struct.pack("<H", upper_port)
        assert [(await socket.receive()).data for _ in range(2)] == [b"\x00" + port, b"\x01" + port]
        await socket.send_bytes(b"\x00hello\n")
        assert await heard(socket) == {0: b"HELLO\n"}
        assert socket.close_code == 1000


async def test_port_forward_to_a_pod_that_is_gone_says_so(node):
    async def gone(*_):
        raise Gone("the pod is gone")

    node.backend.dial = gone
    async with node.connect("/portForward/ns/pod?port=80,81", V4) as socket:
        said = await heard(socket)
    assert said[1] == struct.pack("<H", 80) + b"error forwarding port 80 to pod uid: the pod is gone"
    assert said[3] == struct.pack("<H", 81) + b"error forwarding port 81 to pod uid: the pod is gone"


async def test_port_forward_to_a_port_where_nobody_listens_says_so(node):
    async with node.connect("/portForward/ns/pod?port=1", V4) as socket:
        said = await heard(socket)
    port = struct.pack("<H", 1)
    assert said == {0: port, 1: port + b"error forwarding port 1 to pod uid: nothing listens on port 1"}


REFUSED = [
    (exec_path("true"), 400, "Upgrade request required"),
    (exec_path(), 400, "at least one command"),
    (exec_path("true", flags=""), 400, "at least 1 of stdin, stdout, stderr"),
    (exec_path("true", uid="/other"), 404, "is not on this node"),
    ("/exec/ns/pod/sidecar?command=true&output=1", 404, '"sidecar" is not in pod'),
    ("/attach/ns/other/main?output=1", 404, '"other" in namespace "ns" is not on this node'),
    ("/portForward/ns/pod", 400, "Upgrade request required"),
    ("/containerLogs/ns/pod/main?tailLines=-1", 400, "tailLines must be a non-negative number"),
    ("/containerLogs/ns/pod/main?previous=true", 400, "previous terminated container"),
    ("/containerLogs/ns/pod/main?sinceTime=yesterday", 400, "sinceTime must be a time"),
    ("/nothing", 404, ""),
]


@pytest.mark.parametrize(("path", "status", "words"), REFUSED)
async def test_what_makes_no_sense_is_refused_with_a_sentence(node, path, status, words):
    answer = await node.get(path)
    assert answer[0] == status
    assert words in answer[1]


@pytest.mark.parametrize("query", ["", "?port=", "?port=0", "?port=65536", "?port=80,x", "?port=-1"])
async def test_port_forward_of_the_old_form_needs_ports(node, query):
    with pytest.raises(WSServerHandshakeError, match="400"):
        await node.connect(f"/portForward/ns/pod{query}", V4)


@pytest.mark.parametrize(
    "path", ["/exec/ns/pod/main?command=true&output=1", "/attach/ns/pod/main?output=1", "/portForward/ns/pod"]
)
async def test_what_a_provider_cannot_do_is_answered_before_the_upgrade(node, path):
    node.backend.features = Features()
    status, text = await node.get(path, "POST")
    assert status == 501
    assert text.startswith("this provider cannot")


async def test_nothing_passes_a_closed_gate(node):
    node.gate.is_open = False
    for path in (*(row[0] for row in REFUSED), "/pods", "/metrics", "/healthz"):
        assert await node.get(path) == (403, "closed")


async def test_followed_logs_end_when_the_node_stops(node):
    await node.backend.containers["uid"].talk.write(b"line\n")
    async with node.open("/containerLogs/ns/pod/main?follow=true") as reply:
        assert await reply.content.readline() == b"line\n"
        await node.app.shutdown()
        assert await reply.content.read() == b""


class Said:
    def __init__(self, *pieces):
        self._pieces = [*pieces, b""]

    async def read(self):
        return self._pieces.pop(0)


SIZES = [
    ((b'{"Width":101,"Height":33}',), [(101, 33)]),
    ((b'{"Width":1,"Height":2}\n{"Width":3,"Height":4}',), [(1, 2), (3, 4)]),
    ((b'{"Wid', b'th":5,"Height"', b":6} "), [(5, 6)]),
    ((), []),
]


@pytest.mark.parametrize(("pieces", "found"), SIZES)
async def test_sizes_are_objects_in_a_row(pieces, found):
    assert [size async for size in sizes(Said(*pieces))] == found


@pytest.mark.parametrize("junk", [b"[]", b"7", b'{"Width":0,"Height":5}', b'{"Width":"a","Height":5}', b"{" * 5000])
async def test_a_size_that_is_none_is_refused(junk):
    with pytest.raises(BadRequest):
        _ = [size async for size in sizes(Said(junk))]


EXCERPTS = [
    ("", LogQuery()),
    ("follow=true&timestamps=true", LogQuery(follow=True, timestamps=True)),
    ("follow=false&tailLines=5&limitBytes=7", LogQuery(tail=5, limit=7)),
    ("sinceSeconds=10", LogQuery(since=90.0)),
    ("sinceTime=1970-01-01T00:01:00Z", LogQuery(since=60.0)),
]


@pytest.mark.parametrize(("query", "excerpt"), EXCERPTS)
def test_the_query_of_logs(query, excerpt):
    assert parse_query(make_mocked_request("GET", f"/?{query}"), now=100.0) == excerpt


@pytest.mark.parametrize("query", ["sinceSeconds=1&sinceTime=1970-01-01T00:01:00Z", "sinceTime=1970-01-01T00:01:00"])
def test_a_query_of_logs_that_contradicts_itself(query):
    with pytest.raises(BadRequest):
        parse_query(make_mocked_request("GET", f"/?{query}"), now=100.0)
