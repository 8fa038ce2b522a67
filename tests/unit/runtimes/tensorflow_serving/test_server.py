"""The server in place of TensorFlow Serving, by the byte: where a request ends, and how the process does."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from skysail.runtimes.tensorflow_serving import server as server_module
from skysail.runtimes.tensorflow_serving.server import Page, Server
from tests.support.model_server import SECONDS, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INNER = b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n"
# What the program needs of TensorFlow to start.
TENSORFLOW = """
class saved_model:
    def load(folder):
        return type("Loaded", (), {"signatures": {"serving_default": None}})
"""


class Rest:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def read(self, path: str) -> Any:
        self.asked.append(path)
        return {"read": path}

    def predict(self, path: str, body: bytes) -> Any:
        self.asked.append(body)
        if body == b"wrong":
            raise Page(400, "wrong")
        return {"read": len(body)}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(0, Rest())
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.end(SECONDS)


def line_to(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def rest_of(line: socket.socket) -> str:
    parts = []
    while part := line.recv(65536):
        parts.append(part)
    return b"".join(parts).decode()


def exchange(server: Server, sent: bytes) -> str:
    """All that comes back until the server ends the connection."""
    with line_to(server.server_port) as line:
        line.sendall(sent)
        return rest_of(line)


def post(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join(["POST /m:predict HTTP/1.1", "host: x", *lines, "", ""]).encode() + body


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["transfer-encoding: chunked", "content-length: 0"], 411),
        (["content-length: 0", "Transfer-Encoding: identity"], 411),
        (["content-length: abc"], 400),
        (["content-length: -1"], 400),
        (["content-length: +1"], 400),
        (["content-length: 1_0"], 400),
        (["content-length: "], 400),
        (["content-length: \u0664"], 400),
        ([f"content-length: {'9' * 5000}"], 400),
        (["content-length: 0", "content-length: 5"], 400),
        (["transfer-encoding : chunked", "content-length: 3"], 400),
        (["content-length: 67108865"], 413),
    ],
)
def test_a_request_whose_end_nobody_knows_is_the_last_of_its_connection(server, lines, status):
    told = exchange(server, post(*lines, body=INNER))
    assert told.startswith(f"HTTP/1.1 {status} ")
    assert (told.count("HTTP/1.1"), server.rest.asked) == (1, [])
    assert "\r\nConnection: close\r\n" in told
    assert re.search(r'\{"error": ".+"\}$', told)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_body_is_never_taken_for_a_request(server, method):
    asked = method + post(f"content-length: {len(INNER)}", body=INNER)[4:]
    told = exchange(server, asked + b"GET /last HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert re.findall(r"HTTP/1.1 (\d+)", told) == ["200", "200"]
    assert server.rest.asked[1:] == ["/last"]


def test_a_body_that_ends_early_is_no_body(server):
    with line_to(server.server_port) as line:
        line.sendall(post("content-length: 9", body=b"[1]"))
        line.shutdown(socket.SHUT_WR)
        assert rest_of(line).startswith("HTTP/1.1 400 ")
    assert server.rest.asked == []


def test_a_wrong_question_leaves_the_connection(server):
    told = exchange(server, post("content-length: 5", body=b"wrong") + post("connection: close", "content-length: 0"))
    assert re.findall(r"HTTP/1.1 (\d+)", told) == ["400", "200"]


def test_who_says_nothing_is_not_kept_for_ever():
    assert 60 < server_module._Handler.timeout < 90


def test_sigterm_ends_what_is_idle_and_finishes_what_is_under_way(tmp_path):
    process, port = started(tmp_path)
    with line_to(port) as silent, line_to(port) as idle, line_to(port) as asking:
        idle.sendall(b"GET /v1/models/m HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
        asking.sendall(post("content-length: 4", "expect: 100-continue"))
        # It is being read: this is said after the headers.
        assert asking.recv(65536).startswith(b"HTTP/1.1 100 ")
        process.terminate()
        assert rest_of(idle).count("HTTP/1.1") == 0
        assert rest_of(silent) == ""
        asking.sendall(b"null")
        told = rest_of(asking)
    process.communicate(timeout=SECONDS)
    assert (process.returncode, told.count("HTTP/1.1")) == (0, 1)
    assert told.startswith("HTTP/1.1 404 ")
    assert "\r\nConnection: close\r\n" in told


def started(folder: Path) -> tuple[subprocess.Popen[str], int]:
    (folder / "tensorflow.py").write_text(TENSORFLOW)
    (folder / "model" / "1").mkdir(parents=True)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "skysail.runtimes.tensorflow_serving", "--rest_api_port=0", "--model_name=m"),
            f"--model_base_path={folder / 'model'}",
        ],
        env={"PYTHONPATH": f"{folder}:{SOURCE}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    found = re.search(r"on port (\d+)", said)
    assert found, said
    return process, int(found[1])
