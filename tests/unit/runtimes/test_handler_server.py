"""The program that serves a tenant's function: its call convention, its failures, and a real server process."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skysail.runtimes import handler_server
from skysail.runtimes.handler_server import HandlerApp, HandlerNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def add(a: Any, b: Any = 1) -> Any:
    return {"a": a, "b": b}


async def later(x: Any) -> Any:
    return [x]


def fail(**_: Any) -> None:
    raise ValueError("canary-secret")


def leave() -> None:
    raise SystemExit(3)


def give_up() -> None:
    raise TimeoutError("of its own")


def call(function: Any, method: str, target: str, body: bytes = b"", **options: Any) -> tuple[int, Any]:
    status, kind, answer = HandlerApp(function, **options).answer(method, target, (), body)
    content = answer if isinstance(answer, bytes) else b"".join(answer)
    return status, json.loads(content) if kind == "application/json" else (kind, content)


@pytest.mark.parametrize(
    ("function", "method", "target", "body", "expected"),
    [
        (add, "GET", "/?a=1&b=x", b"", (200, {"a": "1", "b": "x"})),
        (add, "GET", "/?a=1&a=2", b"", (200, {"a": ["1", "2"], "b": 1})),
        (add, "POST", "/", b'{"a": 5, "b": [1]}', (200, {"a": 5, "b": [1]})),
        (add, "POST", "/?b=q", b"[1, 2]", (200, {"a": [1, 2], "b": "q"})),
        (add, "POST", "/", b'"text"', (200, {"a": "text", "b": 1})),
        (later, "GET", "/?x=1", b"", (200, ["1"])),
        (fail, "GET", "/", b"", (500, {"error": "ValueError"})),
        (lambda: {1, 2}, "GET", "/", b"", (500, {"error": "TypeError"})),
        (leave, "GET", "/", b"", (500, {"error": "SystemExit"})),
        (give_up, "GET", "/", b"", (500, {"error": "TimeoutError"})),
    ],
)
def test_handler_app_follows_the_call_convention(function, method, target, body, expected):
    assert call(function, method, target, body) == expected


@pytest.mark.parametrize(("target", "body"), [("/", b""), ("/?a=1&c=2", b""), ("/", b"{not json")])
def test_handler_app_arguments_that_do_not_fit_are_a_bad_request(target, body):
    status, answer = call(add, "POST" if body else "GET", target, body)
    assert status == 400
    assert "error" in answer


class Calls:
    """A function that hangs until it is released, and an app that runs two calls of it at once."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.stuck = 0
        self.timers: list[Callable[[], None]] = []
        self.app = HandlerApp(
            self._wait,
            timeout=0.5,
            concurrency=2,
            on_stuck=self._count_stuck,
            call_later=lambda _, function: self.timers.append(function),
        )

    def _wait(self, at_once: str = "") -> str:
        return "done" if at_once or self.released.wait(60) else ""

    def _count_stuck(self) -> None:
        self.stuck += 1

    def answer(self, target: str = "/") -> tuple[int, Any]:
        status, _, answer = self.app.answer("GET", target, (), b"")
        assert isinstance(answer, bytes)
        return status, json.loads(answer)


@pytest.fixture
def calls() -> Iterator[Calls]:
    found = Calls()
    yield found
    found.released.set()


LATE = (504, {"error": "TimeoutError"})


def test_handler_app_slow_call_fails_alone(calls):
    assert calls.answer() == LATE
    assert calls.answer("/?at_once=1") == (200, "done")
    assert not calls.timers


def test_handler_app_runs_no_more_calls_at_once_than_its_concurrency():
    lock, pair = threading.Lock(), threading.Barrier(2)
    running: list[int] = []
    most = []

    def function() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        pair.wait(60)
        time.sleep(0.02)
        with lock:
            running.pop()

    app = HandlerApp(function, concurrency=2)
    with ThreadPoolExecutor(max_workers=8) as callers:
        answers = list(callers.map(lambda _: app.answer("GET", "/", (), b"")[0], range(8)))
    assert answers == [200] * 8
    assert max(most) == 2


def test_handler_app_whose_calls_all_hang_is_stuck(calls):
    assert [calls.answer() for _ in range(3)] == [LATE, LATE, LATE]
    (timer,) = calls.timers
    assert not calls.stuck, "they may be only slow"
    timer()
    assert calls.stuck == 1


def test_handler_app_whose_calls_were_only_slow_goes_on(calls):
    assert [calls.answer() for _ in range(2)] == [LATE, LATE]
    calls.released.set()
    while calls.app._hanging:
        threading.Event().wait(0.01)
    calls.timers[0]()
    assert calls.stuck == 0
    assert calls.answer("/?at_once=1") == (200, "done")


def test_handler_server_whose_calls_all_hang_ends_after_its_last_answer(tmp_path: Path):
    (tmp_path / "app.py").write_text("import threading\ndef handler():\n    threading.Event().wait()\n")
    settings = {"SKYSAIL_HANDLER": "app.handler", "SKYSAIL_PORT": "0", "SKYSAIL_TIMEOUT": "0.1"}
    env = {**os.environ, **settings, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, handler_server.__file__], env=env, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(run.stdout.readline().rsplit(" ", 1)[1]), timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 504
        connection.close()
        assert run.wait(60) == 1, "so that the cloud starts another container"


def test_handler_app_endpoint_returns_text_bytes_and_streams():
    assert call(lambda: "hi", "GET", "/", returns="any") == (200, ("text/plain; charset=utf-8", b"hi"))
    assert call(lambda: b"\x00", "GET", "/", returns="any") == (200, ("application/octet-stream", b"\x00"))
    assert call(lambda: (f"data: {n}\n\n" for n in range(2)), "GET", "/", returns="any") == (
        200,
        ("text/event-stream", b"data: 0\n\ndata: 1\n\n"),
    )
    assert call(lambda request: [request.method, request.path, request.query], "GET", "/a?x=1", returns="any") == (
        200,
        ["GET", "/a", {"x": "1"}],
    )


def test_load_names_the_reason():
    with pytest.raises(HandlerNotFound, match="names no module"):
        handler_server.load("handler")
    with pytest.raises(HandlerNotFound, match="ModuleNotFoundError: No module named 'no_such_module'"):
        handler_server.load("no_such_module.handler")
    with pytest.raises(HandlerNotFound, match="has no function absent"):
        handler_server.load("json.absent")
    assert handler_server.load("json.dumps") is json.dumps


def test_load_module_cannot_reach_a_server_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for error, is_transient in (("ConnectionError", True), ("RuntimeError", False)):
        (tmp_path / f"raises_{error}.py").write_text(f"raise {error}('no weights')\n")
        with pytest.raises(HandlerNotFound, match=f"{error}: no weights") as found:
            handler_server.load(f"raises_{error}.handler")
        assert found.value.is_transient == is_transient


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (tmp_path / "app.py").write_text(
        "import threading\nbegun, going = threading.Event(), threading.Event()\n"
        "def handler(name='you', wait=''):\n"
        "    if wait:\n        print('waiting', flush=True)\n        going.wait(1)\n"
        "    return {'hello': name}\n"
    )
    env = {**os.environ, "SKYSAIL_HANDLER": "app.handler", "SKYSAIL_PORT": "0", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, handler_server.__file__]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        yield running, int(line.rsplit(" ", 1)[1])
        running.kill()


def test_handler_server_answers_over_one_connection_and_finishes_requests_before_it_ends(process):
    running, port = process
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/?name=world")
    assert json.loads(connection.getresponse().read()) == {"hello": "world"}
    connection.request("POST", "/", body=iter([b'{"na', b'me": "x"}']), encode_chunked=True)
    assert json.loads(connection.getresponse().read()) == {"hello": "x"}
    connection.request("GET", "/?wait=1")
    assert running.stdout.readline() == "waiting\n"
    running.send_signal(signal.SIGTERM)
    assert json.loads(connection.getresponse().read()) == {"hello": "you"}
    assert running.wait(60) == 0


def test_handler_server_missing_handler_has_its_own_exit_code():
    env = {**os.environ, "SKYSAIL_HANDLER": "no_such_module.handler"}
    done = subprocess.run(
        [sys.executable, handler_server.__file__], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == handler_server.HANDLER_NOT_FOUND
    assert "No module named 'no_such_module'" in done.stderr
