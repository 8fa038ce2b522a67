from __future__ import annotations

import asyncio
import socket

import pytest

from skysail.local.cluster import control_client
from skysail.local.cluster.control_client import Answer, Control, LocalClusterStatus
from skysail.local.cluster.control_server import ControlServer
from skysail.local.cluster.supervisor import Unit
from skysail.local.errors import NotRunning, Refused

STATUS = LocalClusterStatus(
    is_ready=True,
    pid=7,
    started=1.0,
    url="https://x",
    with_operator=True,
    with_audit=False,
    mock_clouds=False,
    steps=("one",),
    units=(),
)


class Handler:
    """Remembers what it was asked; answers as a local cluster would."""

    def __init__(self) -> None:
        self.requests: list[control_client.Request] = []

    async def handle(self, request: control_client.Request) -> Answer | socket.socket:
        self.requests.append(request)
        match request:
            case control_client.AskStatus():
                return Answer(status=STATUS)
            case control_client.Listen(host, port):
                listener = socket.socket()
                listener.bind((host, port))
                listener.listen()
                return listener
            case control_client.Dial(port=1):
                raise ConnectionRefusedError(111, "nobody there")
            case control_client.Dial():
                raise TimeoutError
            case control_client.ResumeUnit("defect"):
                raise KeyError("nobody foresaw this")
            case control_client.StopUnit(name):
                raise Refused(f"no {name}")
        return Answer()


@pytest.fixture
async def served(tmp_path):
    # Deeper than the 107 bytes that a socket's name may have.
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    handler = Handler()
    task = asyncio.create_task(ControlServer(folder / "control.sock", handler.handle).serve())
    yield handler, Control(folder / "control.sock"), folder / "control.sock"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_question_gets_its_answer(served):
    _, client, _ = served
    assert await asyncio.to_thread(client.status) == STATUS


async def test_requests_arrive_whole(served):
    handler, client, _ = served
    unit = Unit(name="operator", argv=("python", "-m", "x"), env={"A": "b"}, restart=False)
    await asyncio.to_thread(client.start_unit, unit)
    await asyncio.to_thread(client.signal_unit, "operator", 9)
    await asyncio.to_thread(client.resume_unit, "operator")
    await asyncio.to_thread(client.stop)
    assert handler.requests == [
        control_client.StartUnit(unit),
        control_client.SignalUnit("operator", 9),
        control_client.ResumeUnit("operator"),
        control_client.StopCluster(),
    ]


async def test_a_socket_that_is_handed_out_is_the_one_that_was_made_inside(served):
    _, client, _ = served
    listener = await asyncio.to_thread(client.listen, "127.0.0.1")
    with listener, socket.create_connection(listener.getsockname()) as caller, listener.accept()[0] as accepted:
        caller.sendall(b"ahoy")
        assert accepted.recv(10) == b"ahoy"


async def test_what_cannot_be_done_is_told_and_the_server_goes_on(served):
    _, client, _ = served
    with pytest.raises(Refused, match="no operator"):
        await asyncio.to_thread(client.stop_unit, "operator")
    with pytest.raises(Refused, match="nobody there"):
        await asyncio.to_thread(client.dial, "127.0.0.1", 1)
    with pytest.raises(Refused, match="TimeoutError"):
        await asyncio.to_thread(client.dial, "127.0.0.1", 2)
    with pytest.raises(Refused, match="65535"):
        await asyncio.to_thread(client.dial, "127.0.0.1", 70_000)
    assert await asyncio.to_thread(client.status) == STATUS


async def test_a_defect_costs_one_answer_and_not_the_cluster(served, caplog):
    _, client, _ = served
    with pytest.raises(Refused, match=r"Skysail failed unexpectedly.*nobody foresaw this"):
        await asyncio.to_thread(client.resume_unit, "defect")
    assert await asyncio.to_thread(client.status) == STATUS
    # Not what the event loop says of connections that another test has left open.
    assert [record.exc_info[0] for record in caplog.records if record.name.startswith("skysail.")] == [KeyError]


async def test_a_unit_without_a_program_is_refused(served):
    _, client, _ = served
    with pytest.raises(Refused, match="length >= 1"):
        await asyncio.to_thread(client.start_unit, Unit(name="empty", argv=()))


async def test_nonsense_and_callers_who_hang_up_do_no_harm(served):
    _, client, path = served
    for words in (b"{}", b"not json"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, control_client.reachable(path) as name:
            line.connect(name)
            line.send(words)
    assert await asyncio.to_thread(client.status) == STATUS


async def test_only_the_owner_may_speak(served):
    _, _, path = served
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_no_cluster_is_the_fix_is_told(tmp_path):
    with pytest.raises(NotRunning, match="`skysail up` starts one"):
        Control(tmp_path / "control.sock").status()


def test_a_cluster_that_does_not_answer_is_not_one_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(control_client, "_TIMEOUT_SECONDS", 0.001)
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(NotRunning, match="did not answer within"):
            Control(path).status()


def test_another_users_cluster_is_not_one_that_is_not_there(tmp_path):
    error = Control(tmp_path / "control.sock")._translate(PermissionError(13, "Permission denied"))
    assert isinstance(error, Refused)
    assert "belongs to another user" in str(error)
